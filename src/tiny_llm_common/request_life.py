"""How a request ends, in Week 2 and in Week 3, and how its end waits for a call of the model. Given."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .answer_text import AnswerText


class RequestLife(ABC):
    """An answer that grows until its request ends. `Request` of Week 2 and `Sequence` of Week 3 are such.

    Args:
        answer: its text, still empty.
    """

    def __init__(self, answer: AnswerText):
        self.answer = answer
        self.tokens: list[int] = []  # of the answer, without the token that ended it
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self._is_computing = False  # a call of the model is using it, or is about to
        self._is_aborted = False  # it ends at the end of that call

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: str) -> None:
        """Ends the request: adds held-back text, and releases its memory. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self.release()

    def fail(self, error: str) -> None:
        """Ends the request with the finish reason "error" and a line that says why. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason, self.error = "error", error
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Gives the memory of its keys and values back. A second call does nothing."""

    def begin_call(self) -> None:
        """The next call of the model computes it: its memory stays until `end_call`."""
        self._is_computing = True

    def end_call(self, failed: BaseException | None = None) -> None:
        """The call of the model is over, or will not come. A request that was aborted meanwhile ends now.

        Args:
            failed: what it raised. The memory may hold a part of the step then, so the request cannot go on. On Ctrl-C
                it ends as aborted, else with the error's message.
        """
        self._is_computing = False
        if self._is_aborted or (failed is not None and not isinstance(failed, Exception)):
            self.finish("abort")
        elif failed is not None:
            self.fail(str(failed) or type(failed).__name__)


@contextmanager
def model_call(*requests: RequestLife) -> Iterator[None]:
    """Context of one call of the model on these requests.

    A request that is aborted during the call ends after it. A call that raises ends all of them, with the error's
    message or, on Ctrl-C, as aborted: their caches may hold a part of the step, so none of them can continue.
    """
    for request in requests:
        request.begin_call()
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        for request in requests:
            request.end_call(failed)


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
