"""From a plan to one row of tokens: chunks and decodes of many requests, end to end, for one forward."""

from collections import abc
from dataclasses import dataclass

from tiny_llm_common.events import Part
from tiny_llm_common.packed_batch import PackedBatch

from .sequence import Sequence


@dataclass(frozen=True)
class Scheduled:
    """An entry of a plan: the tokens of one request that the step computes.

    Its properties say what the entry is until `commit` has taken the new tokens.

    Args:
        sequence: the request.
        start: position of the first token.
        size: how many; all of them are known.
    """

    sequence: Sequence
    start: int
    size: int

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + self.size

    @property
    def needs_token(self) -> bool:
        """Whether it ends with the last token that is known, so that the model has to choose the next one."""
        return self.stop == len(self.sequence.known_tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it is the last token of an answer, and nothing else."""
        return self.size == 1 and self.needs_token and self.start >= self.sequence.num_prompt_tokens


def check_plan(plan: abc.Sequence[Scheduled]) -> None:
    """Raises a ValueError when one request has two entries. Given."""
    planned: set[Sequence] = set()
    for entry in plan:
        if entry.sequence in planned:
            raise ValueError(
                f"request {entry.sequence.request_id} is planned twice in one step: `plan_step` adds one entry for a"
                " request, so call `plan_decodes` and `plan_prompts` at most once each"
            )
        planned.add(entry.sequence)


def pack(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row. The entries may come in any order.

    Args:
        plan: entries of different requests, whose blocks are reserved.
    """
    batch = PackedBatch()
    # TASK 3.3.2: for each entry its tokens, their positions and slots, where the next entry begins, and its past.
    # A row is sampled only when it holds the last token that is known. In the middle of a prompt the prompt follows.
    for entry in plan:
        table = entry.sequence.block_table
        batch.token_ids.extend(entry.sequence.known_tokens[entry.start : entry.stop])
        batch.positions.extend(range(entry.start, entry.stop))
        batch.slots.extend(table.slots(entry.start, entry.stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(entry.start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            batch.sample_rows.append(len(batch.token_ids) - 1)
            batch.sampling.append(entry.sequence.sampling)
    # END TASK
    return batch


def step_parts(call: abc.Sequence[Scheduled], running: abc.Sequence[Sequence]) -> tuple[Part, ...]:
    """The chunks of a call, then its decodes, which have waited for the chunks even in the same call. Given.

    Args:
        call: entries whose tokens are not taken yet.
        running: the requests that run; those of them that are ready to decode have waited for the chunks.
    """
    decodes = tuple(entry.sequence for entry in call if entry.is_decode)
    served = (Part("decode", decodes, len(decodes)),) if decodes else ()
    if len(decodes) == len(call):
        return served
    ready = sum(sequence.is_decoding for sequence in running)
    chunks = [entry for entry in call if not entry.is_decode]
    parts = (Part("chunk", (entry.sequence,), entry.size, entry.start, ready) for entry in chunks)
    return (*parts, *served)
