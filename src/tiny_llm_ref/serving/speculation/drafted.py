"""An entry of a plan with drafts, and the batch that checks them: several sampled rows per request."""

from collections import abc
from dataclasses import dataclass

from tiny_llm_common.packed_batch import PackedBatch

from ..batching.packing import Scheduled
from ..batching.sequence import Sequence


@dataclass(frozen=True)
class Drafted(Scheduled):
    """A decode and the drafts after it.

    `size` and `stop` count known tokens alone, so the entry stays a decode for whoever does not ask for its drafts.

    Args:
        sequence, start, size: see `Scheduled`; the size is 1.
        drafts: ids that may follow the last known token. They are not part of `known_tokens`.
    """

    drafts: tuple[int, ...] = ()


def drafts_of(entry: Scheduled) -> tuple[int, ...]:
    """The drafts of any entry of a plan; most entries have none. Given."""
    return entry.drafts if isinstance(entry, Drafted) else ()


def has_drafts(plan: abc.Sequence[Scheduled]) -> bool:
    """Whether any entry of a plan has drafts; without them a step is one of Week 3, in as little time. Given."""
    return any(isinstance(entry, Drafted) for entry in plan)


def pack_drafts(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row, as `pack` does, with the drafts of each after its known tokens.

    Args:
        plan: entries of different requests. Blocks are reserved for known tokens and drafts.
    """
    batch = PackedBatch()
    # TASK 4.3.3: as in Task 3.3.2. A draft is computed like a token that is known, at the position after it.
    # The last known token and every draft have a sampled row: k drafts are checked by k + 1 draws.
    for entry in plan:
        table, drafts = entry.sequence.block_table, drafts_of(entry)
        stop = entry.stop + len(drafts)
        batch.token_ids.extend(entry.sequence.known_tokens[entry.start : entry.stop])
        batch.token_ids.extend(drafts)
        batch.positions.extend(range(entry.start, stop))
        batch.slots.extend(table.slots(entry.start, stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(entry.start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            rows = len(batch.token_ids)
            batch.sample_rows.extend(range(rows - 1 - len(drafts), rows))
            batch.sampling.extend([entry.sequence.sampling] * (1 + len(drafts)))
    # END TASK
    return batch


class SupposedAnswer:
    """A request as its sampled row sees it: the drafts before the row count as its answer. Given.

    Penalties, `min_tokens` and grammars look at the answer so far. A row is drawn only if all drafts before it are
    right, so these are part of that answer.

    Args:
        sequence: the request.
        drafts: before this row.
    """

    def __init__(self, sequence: Sequence, drafts: abc.Sequence[int]):
        self.sequence, self.sampling, self.grammar = sequence, sequence.sampling, sequence.grammar
        self.prompt_tokens, self.eos_token_ids = sequence.prompt_tokens, sequence.eos_token_ids
        self.tokens = [*sequence.tokens, *drafts]


def sampled_requests(plan: abc.Sequence[Scheduled]) -> list[Sequence | SupposedAnswer]:
    """For each sampled row of a batch its request, with the drafts before the row. Given."""
    return [
        SupposedAnswer(entry.sequence, drafts_of(entry)[:count]) if count else entry.sequence
        for entry in plan
        if entry.needs_token
        for count in range(1 + len(drafts_of(entry)))
    ]
