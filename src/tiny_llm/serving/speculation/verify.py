"""Which drafts are right, and what replaces the first wrong one."""

from collections import abc

from tiny_llm_common.packed_model import Sampled


def verify(drafts: abc.Sequence[int], drawn: abc.Sequence[Sampled]) -> list[Sampled]:
    """The tokens that a request gets from a step with drafts: those that it would get without them, one by one.

    Rows of logits are drawn with the seed of the request and the position of the row. So the draw after right tokens
    is the draw of a step without drafts, and a draft is right if it is equal to the draw.

    Args:
        drafts: k tokens.
        drawn: k + 1 draws: after the last known token, then after each draft.

    Returns:
        At least one of `drawn`: accepted drafts, then the draw that replaces the first wrong draft, or the draw after
        the last draft if all are right.

    Raises:
        ValueError: there is not one draw more than there are drafts.
    """
    if len(drawn) != len(drafts) + 1:
        raise ValueError(
            f"{len(drawn)} draws for {len(drafts)} drafts: each draft has one, and one follows the last"
        )
    # TASK 4.3.4: count the drafts from the front that are equal to the draw at their position; stop at the first other.
    # What was drawn after a wrong draft was drawn after a text that does not exist.
    raise NotImplementedError("week 4 day 3 task 4: verify")
