"""A device with a queue and a host beside it, in virtual time: when each of the two works, and when it waits (Day 4.4).

The host takes the same time for every step: it commits the results that it has, plans, and packs. Then the step waits
in the queue until the device has computed the steps before it. The schedulers are those of a solution.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_engine.solutions.solution_types import PackedBatch, Sampled, ServingPackage
from tiny_llm_extensions.make_loop import make_loop

from ..serve import endless_sequence
from .simulated_model import SimulatedClock


@dataclass(frozen=True)
class WorkSpan:
    """When a host, a device or a stage worked on a step, in seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


class VirtualDevice:
    """A `PipelinedModel` of two steps in flight; `run` makes it a `PackedModel` that waits for each step.

    Args:
        sampled: `Sampled` of a solution. Every draw is token 0.
        host_seconds: of the host's work on a step.
        step_seconds: of the device's.

    Attributes:
        host, device: what each did, a span for each step.
        reads: how often the host waited for tokens.
    """

    num_hidden_layers = vocab_size = 1
    num_stages = 2
    max_model_len = 2**20

    def __init__(self, sampled: Callable[[int], Sampled], host_seconds: float, step_seconds: float):
        self.clock = SimulatedClock()
        self.host_seconds, self.step_seconds = host_seconds, step_seconds
        self.host: list[WorkSpan] = []
        self.device: list[WorkSpan] = []
        self.reads = 0
        self._chosen = sampled(0)
        self._queue: deque[tuple[WorkSpan, int]] = deque()

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`."""
        begin = self.clock.now
        self.clock.now += self.host_seconds
        self.host.append(WorkSpan(begin, self.clock.now))
        free = self.device[-1].end if self.device else 0.0
        start = max(self.clock.now, free)
        self.device.append(WorkSpan(start, start + self.step_seconds))
        self._queue.append((self.device[-1], len(batch.sample_rows)))

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`."""
        span, rows = self._queue.popleft()
        self.clock.wait_until(span.end)
        self.reads += 1
        return [self._chosen] * rows

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        self.submit(batch)
        return self.collect()

    def abandon(self) -> None:
        """See `PipelinedModel.abandon`."""
        while self._queue:
            self.clock.wait_until(self._queue.popleft()[0].end)

    @property
    def idle_share(self) -> float:
        """The part of the time from its first step to the end of its last in which the device waited."""
        busy = sum(span.seconds for span in self.device)
        return 1 - busy / (self.device[-1].end - self.device[0].start)


def steps_of(is_ahead: bool) -> dict[str, Any]:
    """Options of `make_loop` for a model of two stages: steps that are planned ahead, or one after the other."""
    return {"async_scheduling": True} if is_ahead else {"num_stages": 1}


def served_on_device(
    names: ServingPackage, is_ahead: bool, host_seconds: float, step_seconds: float, answers: Sequence[int]
) -> VirtualDevice:
    """Serve one request for each length of an answer; return the device, which has recorded the run.

    Args:
        names: the module `serving` of a solution.
        is_ahead: whether a step is planned while the one before it computes.
        host_seconds, step_seconds: see `VirtualDevice`.
        answers: tokens of each answer.
    """
    device = VirtualDevice(names.Sampled, host_seconds, step_seconds)
    allocator = names.BlockAllocator(len(answers) * 16, 16)
    served = make_loop(names, "hybrid", device, allocator, clock=device.clock, **steps_of(is_ahead))
    for number, answer in enumerate(answers):
        served.add(endless_sequence(names, [number] * 8, answer, 256, number))
    while served.has_work_remaining():
        served.step()
    return device
