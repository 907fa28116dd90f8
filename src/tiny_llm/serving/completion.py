"""What became of one prompt. Given."""

from dataclasses import dataclass

from .request import Request


@dataclass(frozen=True)
class Completion:
    """What became of one prompt.

    Args:
        prompt_idx: its place in the list of prompts.
        text: the answer, without the prompt.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        error: with "error", one line that says why.
    """

    prompt_idx: int
    text: str
    finish_reason: str
    error: str | None = None

    @classmethod
    def of(cls, request: Request) -> "Completion":
        """Of a request that has ended."""
        return cls(request.prompt_idx, request.text, request.finish_reason, request.error)
