"""How many drafts a request gets: as many as are likely to be right and cost less time than they save."""

from collections.abc import Callable

MEMORY = 0.95  # weight of earlier drafts in the estimate after a step with drafts,
REST = 0.98  # and after a step whose drafts did not pay: slower, so that few are tried in vain
PRIOR = 1.0  # number of drafts that a request counts before it has had any,
PRIOR_RATE = 0.7  # and the share of them that counts as right before any request has had drafts


class AcceptanceRate:
    """The probability that a draft of one request is right, given that all before it are. Given.

    A moving estimate from the request's own drafts. While its drafts do not pay, the estimate moves back to where it
    began, so that one is tried from time to time.

    Args:
        prior: where it begins.
    """

    def __init__(self, prior: float = PRIOR_RATE):
        self.prior = prior
        self._right, self._tried = 0.0, 0.0  # drafts, of which earlier ones count less

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return (self._right + PRIOR * self.prior) / (self._tried + PRIOR)

    def observe(self, drafts: int, accepted: int) -> None:
        """Records a step: the first `accepted` drafts were right. Those after a wrong one were not tried."""
        self._right = MEMORY * self._right + accepted
        self._tried = MEMORY * self._tried + min(accepted + 1, drafts)

    def rest(self, steps: int = 1) -> None:
        """Records steps in which drafts did not pay."""
        kept = REST**steps
        self._right, self._tried = kept * self._right, kept * self._tried


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
