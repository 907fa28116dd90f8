"""The three ways to serve that the demo compares."""

from dataclasses import dataclass

UNCHUNKED = 999_999  # a step that no prompt reaches


@dataclass(frozen=True)
class Policy:
    """One way to serve.

    Args:
        name, says: for the tables.
        is_chunked: whether prompts are cut.
        pauses: whether a long prompt makes room for a shorter one.
    """

    name: str
    says: str
    is_chunked: bool
    pauses: bool

    def options(self, prefill_step: int) -> dict[str, int | bool]:
        """Of the scheduler."""
        return {
            "prefill_step": prefill_step if self.is_chunked else UNCHUNKED,
            "pause_prefill": self.pauses,
        }


POLICIES = (
    Policy("unchunked", "every prompt in one piece", is_chunked=False, pauses=False),
    Policy("chunked", "in pieces, first come first served", is_chunked=True, pauses=False),
    Policy("pausing", "in pieces, and a shorter prompt goes first", is_chunked=True, pauses=True),
)
