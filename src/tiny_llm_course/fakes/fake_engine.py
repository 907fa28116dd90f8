"""An engine without a model for the loop of Day 3.6: one token per answer and step, and a record of every call."""

import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace


class FakeAnswer:
    """What a `RequestStream` reads of a `Sequence`, and a request of this answer alone: a letter per step."""

    def __init__(self, text: str = "abc", prefill: int = 0):
        self.whole, self.prefill = text, prefill
        self.text, self.tokens, self.sampled = "", [], []
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.stop_reason: int | str | None = None
        self.engine: FakeEngine | None = None

    @property
    def sequences(self) -> "list[FakeAnswer]":
        return [self]

    def abort(self) -> None:
        """End the answer.

        No step may be running, because a step writes into its block.
        """
        if self.engine is not None:
            self.engine.note("abort", self)
        if self.finish_reason is None:
            self.finish_reason = "abort"

    def advance(self) -> None:
        """Do one step's work."""
        if self.prefill:
            self.prefill -= 1
            return
        letter = self.whole[len(self.text)]
        self.text += letter
        self.tokens.append(ord(letter))
        self.sampled.append(SimpleNamespace(token=ord(letter), logprob=None, top_logprobs=None))
        if self.text == self.whole:
            self.finish_reason = "length"


class FakeRequest:
    """A request with several answers."""

    def __init__(self, *texts: str):
        self.sequences = [FakeAnswer(text) for text in texts]

    def abort(self) -> None:
        for answer in self.sequences:
            answer.abort()


class FakeEngine:
    """An engine that answers as many requests at a time as it has blocks, one block each.

    Args:
        blocks: how many blocks there are, so how many answers run at a time.
        during: called with each step's number, from 0, while it runs.
        fails: errors to raise, by step number; the running answers end with that error.
    """

    def __init__(
        self,
        blocks: int = 4,
        during: Callable[[int], object] = lambda number: None,
        fails: Mapping[int, BaseException] | None = None,
    ):
        self.blocks, self.during, self.fails = blocks, during, fails or {}
        self.waiting: list[FakeAnswer] = []
        self.running: list[FakeAnswer] = []
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.steps = 0
        self.is_in_step = self.is_closed = False

    def note(self, call: str, answer: FakeAnswer | None = None) -> None:
        """Record a call, and assert that no step is running."""
        self.calls.append(call if answer is None else f"{call} {answer.whole}")
        self.threads.add(threading.get_ident())
        assert not self.is_in_step, f"{self.calls[-1]!r} while a step runs: hand over, and wait for its end"

    def add(self, request: FakeAnswer | FakeRequest) -> None:
        for answer in request.sequences:
            self.note("add", answer)
            answer.engine = self
            if answer.finish_reason is None:
                self.waiting.append(answer)

    def step(self) -> None:
        self.note("step")
        number, self.steps = self.steps, self.steps + 1
        assert self.steps < 1000, "1000 steps: the loop does not end"
        self._admit()
        self.is_in_step = True
        try:
            self.during(number)
        finally:
            self.is_in_step = False
        if number in self.fails:
            self._fail(self.fails[number])
        for answer in self.running:
            if answer.finish_reason is None:
                answer.advance()

    def _admit(self) -> None:
        self.running = [answer for answer in self.running if answer.finish_reason is None]
        self.waiting = [answer for answer in self.waiting if answer.finish_reason is None]
        while self.waiting and len(self.running) < self.blocks:
            self.running.append(self.waiting.pop(0))

    def _fail(self, error: BaseException) -> None:
        for answer in self.running:
            answer.finish_reason, answer.error = "error", str(error)
        raise error

    def collect_results(self) -> None:
        self.note("collect")

    def close(self) -> None:
        self.note("close")
        self.is_closed = True
