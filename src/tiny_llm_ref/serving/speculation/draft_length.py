"""How many drafts a request gets: as many as are likely to be right and cost less time than they save."""

from collections.abc import Callable


def choose_k(rate: float, most: int, rows: int, useful: float, seconds: Callable[[int], float]) -> int:
    """How many drafts to add to a step: as long as the tokens per second of the step rise.

    The i-th draft is of use if it is right and all before it are, which has the probability rate ** i.

    Args:
        rate: probability that a draft is right, given that all before it are.
        most: drafts, at most.
        rows: of the step so far.
        useful: how many of them are expected to be of use.
        seconds: of a step with this many rows.

    Returns:
        From 0 to `most`.
    """
    # TASK 4.3.6: add one draft after the other; stop at the first that does not pay.
    # It pays if the useful rows divided by the seconds of the step are more with it than without it.
    k, probability = 0, rate
    while k < most and (useful + probability) * seconds(rows + k) > useful * seconds(rows + k + 1):
        k, useful, probability = k + 1, useful + probability, probability * rate
    return k
