"""`pdm run bench-scheduler`: the cost of a step without its model, by the number of requests that wait."""

import gc
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer, Serving
from tiny_llm_course.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_course.trace.trace import percentile
from tiny_llm_course.trace.workload import RUNNING, RequestSpec
from tiny_llm_engine.backends.samples import in_turns
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .command import RunProgress, carry_out
from .options import bench_parser, count, counts, plain, plan_of

# Shown name -> (the queue's class in `serving`, options of `Turns`).
SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "FifoQueue": ("FifoQueue", {}),
    "FifoQueue, pausing": ("FifoQueue", {"pause_prefill": True}),
    "PriorityScheduler": ("PriorityScheduler", {}),
    "PriorityScheduler, pausing": ("PriorityScheduler", {"pause_prefill": True}),
}
# Prompts of one to six chunks in turns, so that many of them are shorter than what is left of another.
PROMPTS, ANSWER, CHUNK, SLOTS, MAX_SEQ_LEN = (40, 700, 150, 300, 90), 12, 128, 8, 4096


@dataclass(frozen=True)
class SchedulerPlan:
    """Options of the command."""

    waiting: tuple[int, ...] = counts((10, 100, 1_000, 10_000), "requests that wait")
    steps: int = count(200, "steps of one sample")
    rounds: int = count(7, "samples of each, taken in turns")


@dataclass
class Filled:
    """A scheduler with a constant number of waiting requests."""

    names: ServingPackage  # the module `serving` of a solution
    queue: str  # with its options, as `SCHEDULERS` has them
    options: dict[str, Any]
    waiting: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _left: list[Any] = field(default_factory=list)

    def __post_init__(self):
        self._serving = Serving(self.names, SimulatedModel(), EndlessTokenizer())
        queue = getattr(self.names, self.queue)()
        self.scheduler = self.names.ChunkedPrefillScheduler(
            self._serving.model,
            SLOTS,
            CHUNK,
            MAX_SEQ_LEN,
            turns=self.names.Turns(queue, **self.options),
            metrics=self.names.ChunkedPrefillMetrics(prefill_step=CHUNK),
            on_event=self._on_event,
        )
        for number in range(self.waiting):
            self._add(PROMPTS[number % len(PROMPTS)], "batch" if number % 3 == 0 else "interactive")

    def _on_event(self, event: Any) -> None:
        if event.kind == "prefill":
            self._left.append(event.request)

    def refill(self) -> None:
        """Add a request like each that has left the queue: the work of a step is the same, however many wait."""
        while self._left:
            left = self._left.pop()
            self._add(len(left.prompt_tokens), left.priority)

    def _add(self, tokens: int, priority: str) -> None:
        spec = RequestSpec(RUNNING, tokens, ANSWER, priority=priority)
        self.scheduler.add(self._serving.request(spec, next(self._numbers)))

    def sample(self, steps: int) -> list[float]:
        """Time this many steps, one by one, in seconds. What ends is replaced between two of them, and not timed."""
        seconds = []
        for _ in range(steps):
            # A step waits for nothing, so it is the processor's time that counts, whatever else the machine does.
            start = time.process_time()
            self.scheduler.step()
            seconds.append(time.process_time() - start)
            self.refill()
        self.scheduler.collect_results()
        return seconds


def measure(plan: SchedulerPlan, names: ServingPackage, report: RunProgress) -> dict[str, Any]:
    """Measure the steps of every scheduler with every number of waiting requests: mean and p99 of every round."""
    before = provenance("cpu")
    filled = {
        (name, waiting): Filled(names, queue, turns, waiting)
        for name, (queue, turns) in SCHEDULERS.items()
        for waiting in plan.waiting
    }
    for one in filled.values():
        one.sample(plan.steps)  # until all slots are taken

    def sample(one: Filled, number: int) -> list[float]:
        report(f"{one.queue}, {one.waiting:,} wait, round {number + 1}", plan.rounds * len(filled))
        gc.collect()  # the garbage of one sample is not the cost of the next
        return one.sample(plan.steps)

    rounds = in_turns({key: partial(sample, one) for key, one in filled.items()}, range(plan.rounds))
    cases = [
        {
            "scheduler": name,
            "waiting": waiting,
            "mean": [sum(seconds) / len(seconds) for seconds in samples],
            "p99": [percentile(seconds, 99) for seconds in samples],
        }
        for (name, waiting), samples in rounds.items()
    ]
    return {
        "kind": "scheduler",
        "backend": "no model",
        "plan": {**plain(plan), "slots": SLOTS, "chunk": CHUNK, "prompts": list(PROMPTS), "answer": ANSWER},
        "provenance": before,
        "cases": cases,
    }


@command
def main(argv: list[str] | None = None) -> None:
    options = bench_parser("scheduler", __doc__, SchedulerPlan, has_model=False).parse_args(argv)
    plan = plan_of(SchedulerPlan, options, waiting=tuple(sorted(set(options.waiting))))
    with ends_at_a_blank(needs=Day(2, 7)):
        names = resolve_serving(options.solution)
        carry_out("scheduler", options, argv, lambda report: measure(plan, names, report))


if __name__ == "__main__":
    main()
