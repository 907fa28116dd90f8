"""Discrete-event simulation around a scheduler: requests arrive in seconds, and only the model takes time.

The scheduler is that of the solution, with its own plan, pack and commit. With a simulated model a run is the same on
every machine. A real model and a clock of its work make the same loop send requests to an engine.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import count
from typing import Any

from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, ServingPackage
from tiny_llm_extensions.make_loop import make_loop

from ..serve import endless_sequence
from ..text import counted
from ..workload import RequestSpec
from .decode_stretch import skip_decodes
from .simulated_model import SimulatedPackedModel
from .step_cost import INCIDENTS, StepCost

COLLECT = 256  # requests that have ended are forgotten in groups of this size


class StuckScheduler(RuntimeError):
    """Raised when the scheduler has work but plans none, and no further request will arrive."""

    def __init__(self, now: float, waiting: int, running: int):
        super().__init__(
            f"{now:.3f} s: {counted(waiting, 'request')} waiting and {running} running, and the plan is empty: admit "
            "the next request when nothing runs, or refuse what can never fit"
        )


class Simulation:
    """One loop in virtual time.

    Args:
        names: the module `serving` of a solution.
        cost: seconds of a step, for a simulated model.
        model: runs the steps instead of a simulated model.
        clock: of that model, as `EngineClock` for a real one; its own when None.
        policy: see `make_loop`.
        loop: makes the loop, instead of `make_loop`.
        recorder: called with each event, and as recorder.arrive(sequence, time) when a request arrives. One that has
            `stretch`, as `LatencyRecorder` has, lets stretches of decode steps be skipped.
        on_event: called with each event after it was recorded; then nothing is skipped.
        jump: whether stretches may be skipped; not for a scheduler that counts its steps.
        num_blocks, block_size, watermark: see `BlockAllocator`.
        max_model_len: tokens of a prompt and its answer, at most.
        enable_prefix_caching: whether requests with a `prompt` share KV blocks; without one all prompts are zeros.
        options: passed on to `make_loop`.
    """

    def __init__(
        self,
        names: ServingPackage,
        cost: StepCost = INCIDENTS,
        *,
        model: Any = None,
        clock: Any = None,
        policy: Any = "hybrid",
        loop: Callable[..., Any] | None = None,
        recorder: Any = None,
        on_event: Callable[[Event], object] | None = None,
        jump: bool = True,
        num_blocks: int = 2**16,
        block_size: int = 16,
        watermark: float = 0.01,
        max_model_len: int = 2**20,
        enable_prefix_caching: bool = False,
        **options: Any,
    ):
        self.names, self.recorder = names, recorder
        self.model = model or SimulatedPackedModel(names.Sampled, cost, max_model_len)
        self.clock = clock or self.model.clock
        self.allocator = names.BlockAllocator(
            num_blocks, block_size, watermark=watermark, enable_prefix_caching=enable_prefix_caching
        )
        make = partial(make_loop, names, policy) if loop is None else loop
        self.loop = make(self.model, self.allocator, clock=self.clock, on_event=self._emit, **options)
        self.steps = self.skipped = 0  # steps of the scheduler, and those of them that were skipped
        self._on_event = on_event
        self._jumps = jump and on_event is None and hasattr(recorder, "stretch")
        self._order = count()  # breaks ties: actions at the same time run in the order of their calls
        self._happenings: list[tuple[float, int, Callable[[], object]]] = []
        self._ended = 0
        self._decoded_last = False  # whether the last step that was not skipped had decodes alone

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Call `action` at a time, between two steps, for example to add or abort a request."""
        heapq.heappush(self._happenings, (time, next(self._order), action))

    def send(self, spec: RequestSpec, number: int) -> AnswerSequence:
        """Send a request at its time; return its `Sequence`, to inspect or abort."""
        sequence = self._sequence(spec, number)
        self.at(spec.time, lambda: self._arrive(sequence, spec.time))
        return sequence

    def send_all(self, specs: Iterable[RequestSpec]) -> None:
        """Send requests in the order of their times; each is made only when it arrives."""
        self._send_next(enumerate(specs))

    def _send_next(self, specs: Iterator[tuple[int, RequestSpec]]) -> None:
        number, spec = next(specs, (0, None))
        if spec is not None:
            self.at(spec.time, lambda: self._arrive_and_go_on(spec, number, specs))

    def _arrive_and_go_on(self, spec: RequestSpec, number: int, specs: Iterator) -> None:
        self._arrive(self._sequence(spec, number), spec.time)
        self._send_next(specs)

    def _sequence(self, spec: RequestSpec, number: int) -> AnswerSequence:
        prompt, longest = list(spec.prompt) or [0] * spec.tokens, self.model.max_model_len
        return endless_sequence(self.names, prompt, spec.answer, longest, number, priority=spec.priority)

    def _arrive(self, sequence: AnswerSequence, time: float) -> None:
        if self.recorder is not None:
            self.recorder.arrive(sequence, time)
        self.loop.add(sequence)

    def run(self, until: float = math.inf) -> "Simulation":
        """Serve every request that was sent.

        Args:
            until: seconds after which no further step begins.

        Raises:
            StuckScheduler: work remains, and none of it is ever planned.
        """
        while self.clock() < until and self.advance(until):
            pass
        self.loop.collect_results()
        return self

    def advance(self, until: float = math.inf) -> bool:
        """Run a step, or jump to the next arrival; return whether there was anything to do."""
        self._happen()
        if self.loop.has_work_remaining():
            self._step(until)
        elif self._happenings:
            self.clock.wait_until(self._happenings[0][0])
        else:
            return False
        return True

    def _happen(self) -> None:
        """Run all due actions; a request that arrives during a step is added after it."""
        while self._happenings and self._happenings[0][0] <= self.clock():
            heapq.heappop(self._happenings)[2]()

    def _step(self, until: float) -> None:
        next_time = self._happenings[0][0] if self._happenings else math.inf
        may_skip = self._jumps and self._decoded_last
        skipped = skip_decodes(self.loop, self.recorder, min(next_time, until)) if may_skip else 0
        self.steps += skipped
        self.skipped += skipped
        if skipped:
            return
        if self.loop.step():
            self.steps += 1
        elif self.loop.has_work_remaining():
            if not self._happenings:
                raise StuckScheduler(self.clock(), len(self.loop.waiting), len(self.loop.running))
            self.clock.wait_until(self._happenings[0][0])

    def _emit(self, event: Event) -> None:
        if self.recorder is not None:
            self.recorder(event)
        if self._on_event is not None:
            self._on_event(event)
        if event.kind == "step":
            self._decoded_last = all(part.kind == "decode" for part in event.parts)
        elif event.kind == "finish":
            self._ended += 1
            if self._ended % COLLECT == 0:
                self.at(self.clock(), self.loop.collect_results)
