"""The batch that checks drafts: several sampled rows per request."""

from collections import abc

from tiny_llm_common.drafted import drafts_of
from tiny_llm_common.packed_model import PackedBatch
from tiny_llm_common.scheduled import Scheduled


def pack_drafts(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row, as `pack` does, with the drafts of each after its known tokens.

    Args:
        plan: entries of different requests. Blocks are reserved for known tokens and drafts.
    """
    batch = PackedBatch()
    # TASK 4.3.3: as in Task 3.3.2. A draft is computed like a token that is known, at the position after it.
    # The last known token and every draft have a sampled row: k drafts are checked by k + 1 draws.
    raise NotImplementedError("week 4 day 3 task 3: pack_drafts")
    # END TASK
    return batch
