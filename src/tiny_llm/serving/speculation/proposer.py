"""What guesses the next tokens of requests. Given."""

from collections import abc
from typing import Protocol

from ..batching.sequence import Sequence


class Proposer(Protocol):
    """Guesses the next tokens of requests. A wrong guess costs time and changes no answer."""

    draft_seconds: float  # what one draft of one request costs, in seconds; 0 for next to nothing

    def propose(self, wanted: abc.Sequence[tuple[Sequence, int]]) -> list[list[int]]:
        """Drafts of several requests.

        Args:
            wanted: requests that are ready to decode, each with the largest number of drafts.

        Returns:
            For each of them the tokens that may follow its known tokens, in their order; empty without a guess.
        """
        ...
