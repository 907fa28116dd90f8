"""Measured steps of a running engine: a clock of its work, and samples from its events."""

import time
from collections.abc import Callable

from tiny_llm_course.trace.simulation.step_cost import StepWork
from tiny_llm_engine.solutions.solution_types import Event


class EngineClock:
    """A clock of one engine's working time: it runs only inside `with clock:`, and jumps over waits.

    So a run takes no longer than its work, and engines that work in turns do not count each other's steps.

    Args:
        source: seconds. A thread that only computes needs as much processor time (`time.process_time`) on a busy
            machine as on a quiet one; `time.perf_counter` also counts what other processes take.
    """

    def __init__(self, source: Callable[[], float] = time.process_time):
        self._source, self._start, self._before = source, None, 0.0
        self.woke = 0.0  # when the last wait ended

    def __enter__(self) -> "EngineClock":
        self._start = self._source()
        return self

    def __exit__(self, *exception: object) -> None:
        self._before, self._start = self(), None

    def __call__(self) -> float:
        return self._before + (0.0 if self._start is None else self._source() - self._start)

    def wait_until(self, moment: float) -> None:
        self._before += max(0.0, moment - self())
        self.woke = self()


class StepSamples:
    """A listener that records the work of each step, and how long it took.

    A step counts from the end of the one before it, or from the end of a wait: planning and packing belong to it.
    A clock without `woke` never waits.
    """

    def __init__(self, clock: Callable[[], float]):
        self.samples: list[tuple[StepWork, float]] = []
        self._clock, self._end = clock, 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "step":
            begin = max(self._end, getattr(self._clock, "woke", 0.0))
            self.samples.append((StepWork.of_parts(event.parts), event.time - begin))
            self._end = event.time
