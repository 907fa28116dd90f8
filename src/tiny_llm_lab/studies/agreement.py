"""Compares the simulator with the engine: the same requests, at the same times.

The engine is the shipped model on one thread. Its steps are profiled on other requests of the same kind, and the
simulator charges what that profile says. The engine that is profiled and the one that is compared take their steps in
turns: what slows the machine down for a while slows both down.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tiny_llm_course.trace.simulation.cost_fit import fit_steps
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.text import counted
from tiny_llm_course.trace.workload import RequestSpec
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_extensions.loading import load_network

from ..latency_recorder import Latencies, LatencyRecorder
from ..step_samples import EngineClock, StepSamples
from ..traffic import traffic
from .study import Study

MODEL, TRACE = "tiny-qwen3", "azure-conversation"
SHRINK = 4  # the model reads 4,096 tokens: prompts and answers have a quarter of the trace's
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
LOAD = 0.5  # share of the rate that the engine reaches when all requests are there at the start
BLOCKS, BLOCK = 1024, 32
OPTIONS: dict[str, Any] = {
    "max_num_batched_tokens": 256,
    "max_num_seqs": 16,
    "num_blocks": BLOCKS,
    "block_size": BLOCK,
}
WARM_UP = 8  # requests
FIGURES = {  # name -> how to read it from a run, and how far the simulator may be off
    "TTFT p50": (lambda run: run.ttft(50), 0.15),
    "TTFT p99": (lambda run: run.ttft(99), 0.30),
    "TBT p50": (lambda run: run.tbt(50), 0.15),
    "TBT p99": (lambda run: run.tbt(99), 0.30),
}
COLUMNS = ("figure", "engine ms", "simulator ms", "off by, %", "allowed, %", "from, %", "to, %")


@dataclass(frozen=True)
class AgreementPlan:
    """The settings of a comparison."""

    solution: str  # whose engine runs, and where
    port: Port  # whose engine runs, and where
    requests: int = 100  # per run
    rounds: int = 5  # whose medians count; each has new requests and a new profile
    clock: str = "processor"  # of the engine's steps, one of `CLOCKS`


class RealEngine:
    """The shipped model, ready to serve on one thread; `network` is `Qwen3ModelWeek3` of its port."""

    def __init__(self, plan: AgreementPlan, network: Any):
        self.names, self._source = resolve_serving(plan.solution), CLOCKS[plan.clock]
        self._runner = plan.port.packed_runner(network, BLOCKS, BLOCK)

    def begin(self, specs: Iterator[RequestSpec]) -> None:
        """Schedule requests at their times."""
        self._clock, self.recorder = EngineClock(self._source), LatencyRecorder()
        self.samples = StepSamples(self._clock)
        self._run = Simulation(
            self.names,
            model=self._runner,
            clock=self._clock,
            recorder=self.recorder,
            on_event=self.samples,
            **OPTIONS,
        )
        self._run.send_all(specs)

    def advance(self) -> bool:
        """Run a step; return whether there was anything to do."""
        with self._clock:
            return self._run.advance()

    def serve(self, specs: Iterator[RequestSpec]) -> Latencies:
        """Serve requests from the first to the last."""
        self.begin(specs)
        while self.advance():
            pass
        return self.recorder.latencies()


def simulated(names: ServingPackage, cost: Any, specs: Iterator[RequestSpec]) -> Latencies:
    """Serve the same requests in virtual time."""
    run = Simulation(names, cost, recorder=LatencyRecorder(), **OPTIONS)
    run.send_all(specs)
    return run.run().recorder.latencies()


def requests(count: int, rate: float, seed: int) -> Iterator[RequestSpec]:
    """A trace for a small model."""
    for spec in traffic(TRACE, rate, count, seed):
        yield replace(spec, tokens=-(-spec.tokens // SHRINK), answer=-(-spec.answer // SHRINK))


def compare(
    plan: AgreementPlan, progress: Callable[[str], object] = lambda now: None
) -> list[tuple[Latencies, Latencies]]:
    """Latencies of engine and simulator in each round."""
    plan.port.backend_module.set_threads(1)
    network, _ = load_network(plan.port, MODEL, "week3")
    engine, profiled = RealEngine(plan, network), RealEngine(plan, network)
    progress("how many requests per second the engine serves")
    engine.serve(requests(WARM_UP, 1.0, seed=plan.rounds))
    at_once = (replace(spec, time=0.0) for spec in requests(plan.requests, 1.0, seed=plan.rounds))
    rate = LOAD * plan.requests / engine.serve(at_once).end
    found = []
    for number in range(plan.rounds):
        progress(f"round {number + 1} of {plan.rounds}, {rate:.1f} requests per second")
        profiled.begin(requests(plan.requests, rate, seed=plan.rounds + 1 + number))
        engine.begin(requests(plan.requests, rate, seed=number))
        while any([profiled.advance(), engine.advance()]):
            pass
        cost = fit_steps(profiled.samples.samples)
        virtual = simulated(engine.names, cost, requests(plan.requests, rate, seed=number))
        found.append((engine.recorder.latencies(), virtual))
    return found


def study_of(plan: AgreementPlan, rounds: list[tuple[Latencies, Latencies]]) -> Study:
    """Each figure: the medians of the rounds, and how far the simulator is off in the median, best and worst round."""
    rows = []
    for name, (figure, allowed) in FIGURES.items():
        pairs = [(figure(measured), figure(virtual)) for measured, virtual in rounds]
        offs = [100 * (virtual / measured - 1) for measured, virtual in pairs]
        engine, simulator = (1000 * median(side) for side in zip(*pairs, strict=True))
        rows.append([name, engine, simulator, median(offs), 100 * allowed, min(offs), max(offs)])
    title = (
        f"Engine and simulator\n{MODEL} on {plan.port.name}, {plan.port.device}; "
        f"{counted(plan.requests, 'request')}, {counted(plan.rounds, 'round')}"
    )
    differs = (
        f"Lengths of {TRACE}, divided by {SHRINK}; at {LOAD:.0%} of the rate that the engine reaches.",
        "The profile is a sum of five terms, fitted in each round to the steps of other requests, taken in turns.",
        f"Times of the engine are {plan.clock} time on one thread; while nothing is left to do, its clock jumps.",
    )
    return Study("agreement", title, COLUMNS, rows, differs)
