"""What drafts cost in the steps that were made, their host work included."""

from typing import Protocol

MEMORY = 0.9  # weight of earlier steps in a cost after a step with drafts,
REST = 0.995  # and after one without, so that drafts that were too dear are tried again
PRIOR = 8.0  # number of drafts for which the cost before serving counts
WEIGHT = 0.1  # of the newest step without drafts


class StepCosts(Protocol):
    """What a step takes, as far as it is known before serving."""

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with this many tokens, drafts included, for requests of which `decodes` decode."""
        ...


class ObservedCosts:
    """Seconds of steps of decodes and of their drafts, by the number of requests.

    It begins with costs that were measured before serving, perhaps while something else ran, and with other lengths of
    text. The steps themselves have the last word.

    Args:
        before: costs before any step was made.
        draft_seconds: of the proposer for each draft, on top of them.
    """

    def __init__(self, before: StepCosts, draft_seconds: float = 0.0):
        self.before, self.draft_seconds = before, draft_seconds
        self._plain: dict[int, float] = {}  # seconds of a step without drafts
        self._drafts: dict[
            int, tuple[float, float]
        ] = {}  # seconds more, and drafts; by the bits of the requests

    def plain(self, requests: int) -> float:
        """Seconds of a step without drafts."""
        known = self._plain.get(requests)
        return self.before.seconds(requests, requests) if known is None else known

    def draft(self, requests: int) -> float:
        """Seconds of each draft."""
        row = self.before.seconds(requests + 1, requests) - self.before.seconds(requests, requests)
        seconds, drafts = self._drafts.get(requests.bit_length(), (0.0, 0.0))
        return max(0.0, (seconds + PRIOR * (row + self.draft_seconds)) / (drafts + PRIOR))

    def observe(self, requests: int, drafts: int, seconds: float) -> None:
        """Records a step of decodes.

        Args:
            requests: that decode.
            drafts: of all of them.
            seconds: from its plan to its commit.
        """
        size, plain = requests.bit_length(), self._plain.get(requests, seconds)
        more, count = self._drafts.get(size, (0.0, 0.0))
        if drafts == 0:
            self._plain[requests] = plain + WEIGHT * (seconds - plain)
            self._drafts[size] = REST * more, REST * count
        elif requests in self._plain:
            self._drafts[size] = MEMORY * more + seconds - plain, MEMORY * count + drafts
