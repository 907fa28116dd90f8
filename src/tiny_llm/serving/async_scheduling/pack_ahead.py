"""A packed batch in which some tokens are placeholders."""

from collections import abc

from tiny_llm_common.packed_model import PackedBatch
from tiny_llm_common.scheduled import Scheduled

from ..batching.sequence import Sequence


def pack_ahead(plan: abc.Sequence[Scheduled], drawn: abc.Sequence[Sequence]) -> PackedBatch:
    """Puts the tokens of all entries into one row, as `pack` does, with a placeholder where a token is not known yet.

    Args:
        plan: entries of different requests, whose blocks are reserved for known tokens and placeholders. An entry has
            one placeholder at most: it starts after the known tokens then, and has size 1.
        drawn: the requests that the batch submitted just before draws tokens for, in the order of the draws.

    Returns:
        A batch whose `sources` (T,) are, for a placeholder, the index of its request in `drawn`; -1 where the token
        is known. The id of a placeholder in `token_ids` is 0. Without placeholders `sources` is empty.
    """
    batch = PackedBatch()
    # TASK 4.4.5: as in Task 3.3.2, and for each row where the device finds its token: -1 is `token_ids` itself.
    # The row of a placeholder is sampled, like that of the last known token.
    raise NotImplementedError("week 4 day 4 task 5: pack_ahead")
    # END TASK
    return batch
