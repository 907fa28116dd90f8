"""Measured step costs of a running engine: samples from its events, and the sum fitted to them."""

import time
from collections.abc import Callable, Sequence

from tiny_llm_kit.solution_types import Event, Part
from tiny_llm_kit.trace.simulation.cost_model import nearest_sum, pairs
from tiny_llm_kit.trace.simulation.packed_cost import AdditiveCost, StepWork


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

    Args:
        clock: of the scheduler; one without `woke` never waits.
    """

    def __init__(self, clock: Callable[[], float]):
        self.samples: list[tuple[StepWork, float]] = []
        self._clock, self._end = clock, 0.0

    def __call__(self, event: Event) -> None:
        if event.kind == "step":
            begin = max(self._end, getattr(self._clock, "woke", 0.0))
            self.samples.append((work_of(event.parts), event.time - begin))
            self._end = event.time


def work_of(parts: Sequence[Part]) -> StepWork:
    """The work of a step, from the parts of its event."""
    chunks = [part for part in parts if part.kind == "chunk"]
    decoding = [request for part in parts if part.kind == "decode" for request in part.requests]
    return StepWork(
        sum(part.tokens for part in chunks),
        sum(pairs(part.tokens, part.context) for part in chunks),
        sum(part.context for part in chunks),
        len(decoding),
        sum(request.num_computed for request in decoding),
    )


def fitted(samples: list[tuple[StepWork, float]]) -> AdditiveCost:
    """The sum that is nearest to the samples in relative terms; no term of it is negative."""
    import numpy as np

    terms = [(1, w.chunk_tokens, w.chunk_pairs, w.decodes, w.decode_pairs) for w, _ in samples]
    seconds = np.array([taken for _, taken in samples])
    return AdditiveCost(*nearest_sum(np.array(terms, dtype=np.float64), seconds, passes=3))
