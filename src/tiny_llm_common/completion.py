"""The result of one request. Given."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Completion:
    """The result of one request.

    Args:
        prompt_idx: index of its prompt in the list of prompts.
        text: the answer, without the prompt.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        error: one line that says why, with the finish reason "error".
    """

    prompt_idx: int
    text: str
    finish_reason: str
    error: str | None = None

    @classmethod
    def of(cls, request: Any) -> "Completion":
        """The completion of a `Request` that has ended."""
        reason = (
            request.finish_reason or "unfinished"
        )  # the second is a mistake of the caller, which tests then name
        return cls(request.prompt_idx, request.text, reason, request.error)
