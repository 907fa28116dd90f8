"""A group that notes when a stage has what it needs, so that waiting for it is not counted as work."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tiny_llm_engine.solutions.backend import Backend
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array

KEPT = 4096  # micro-batches


class TimedGroup:
    """A `Group` of stages with a clock, the same in all processes of a machine.

    Attributes:
        spans: for each of the last micro-batches the seconds at which this stage began and ended its work.
    """

    def __init__(self, group: Any, backend_module: Backend):
        self.group, self.backend_module = group, backend_module
        self.spans: deque[tuple[float, float]] = deque(maxlen=KEPT)
        self._start = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    def take_spans(self) -> list[tuple[float, float]]:
        """The spans since the last call."""
        spans = list(self.spans)
        self.spans.clear()
        return spans

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The body computes a micro-batch."""
        self.begin()
        yield
        self.spans.append((self._start, time.perf_counter()))

    def end_planning(self) -> None:
        """What this process has done since the last micro-batch was work as well: it took the tokens and planned."""
        if self.spans:
            start, _ = self.spans.pop()
            self.spans.append((start, time.perf_counter()))

    def begin(self) -> None:
        """A micro-batch begins, unless it has to be received first."""
        self._start = time.perf_counter()

    def send(self, x: Array, rank: int) -> None:
        self.backend_module.evaluate(x)
        self.group.send(x, rank)

    def receive(self, shape: tuple[int, ...], like: Array, rank: int) -> Array:
        x = self.group.receive(shape, like, rank)
        self.backend_module.evaluate(x)
        self.begin()
        return x


def timed(port: Port, group: Any, stages: bool) -> Any:
    """A group of stages with a clock; any other group as it is."""
    return TimedGroup(group, port.backend_module) if stages else group


def take_spans(ranks: Any) -> list[list[tuple[float, float]]]:
    """For each stage, in order, the seconds at which it began and ended each micro-batch since the last call.

    Only while no micro-batch is in flight. Seconds are those of `time.perf_counter`, which is one clock for all
    processes of a machine on Linux and macOS.

    Args:
        ranks: the `Ranks` of an engine; rank 0 is the last stage.

    Raises:
        RankError: a rank is gone.
    """
    others = ranks.ask({"spans": True})
    return [*(others[rank] for rank in sorted(others)), ranks.group.take_spans()]
