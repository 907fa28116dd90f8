"""Compares the simulator with the engine: the same requests, at the same times.

The engine is the shipped model in real time. Its steps are profiled on other requests of the same kind, and the
simulator charges what that profile says.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ...runtime.loading import load_network
from ...runtime.port import Port, resolve_serving
from ..latency_recorder import Latencies, LatencyRecorder
from ..packed_profile import StepSamples, WallClock, fitted
from ..simulator import Simulation
from ..text import counted
from ..traffic import traffic
from ..workload import RequestSpec
from .study import Study

MODEL, TRACE = "tiny-qwen3", "azure-conversation"
SHRINK = 4  # the model reads 4,096 tokens: prompts and answers have a quarter of the trace's
LOAD = 0.5  # share of the rate that the engine reaches when all requests are there at the start
OPTIONS = {"max_num_batched_tokens": 256, "max_num_seqs": 16}
BLOCKS, BLOCK = 1024, 32
FIGURES = {  # name -> what it is of a run, and how far the simulator may be off
    "TTFT p50": (lambda run: run.ttft(50), 0.15),
    "TTFT p99": (lambda run: run.ttft(99), 0.30),
    "TBT p50": (lambda run: run.tbt(50), 0.15),
    "TBT p99": (lambda run: run.tbt(99), 0.30),
}
COLUMNS = ("figure", "engine ms", "simulator ms", "off by, %", "allowed, %", "from, %", "to, %")


@dataclass(frozen=True)
class AgreementPlan:
    """What to compare.

    Args:
        solution: whose engine.
        port: on which it runs.
        requests: of a run.
        rounds: of which the medians count; each has new requests and a new profile.
    """

    solution: str
    port: Port
    requests: int = 100
    rounds: int = 5


class RealEngine:
    """The shipped model, ready to serve in real time.

    Args:
        plan: see `AgreementPlan`.
    """

    def __init__(self, plan: AgreementPlan):
        self.names = resolve_serving(plan.solution)
        network, _ = load_network(plan.port, MODEL, "week3")
        self.runner = plan.port.packed_runner(network, BLOCKS, BLOCK)

    def serve(self, specs: Iterator[RequestSpec]) -> tuple[Latencies, StepSamples]:
        """Serves requests at their times."""
        clock, recorder = WallClock(), LatencyRecorder()
        samples = StepSamples(clock)
        blocks = {"num_blocks": BLOCKS, "block_size": BLOCK}
        run = Simulation(
            self.names,
            model=self.runner,
            clock=clock,
            recorder=recorder,
            on_event=samples,
            **blocks,
            **OPTIONS,
        )
        run.send_all(specs)
        run.run()
        return recorder.latencies(), samples


def simulated(names: Any, cost: Any, specs: Iterator[RequestSpec]) -> Latencies:
    """The same in virtual time."""
    blocks = {"num_blocks": BLOCKS, "block_size": BLOCK}
    run = Simulation(names, cost, recorder=LatencyRecorder(), **blocks, **OPTIONS)
    run.send_all(specs)
    return run.run().recorder.latencies()


def requests(count: int, rate: float, seed: int) -> Iterator[RequestSpec]:
    """A trace for a small model."""
    for spec in traffic(TRACE, rate, count, seed):
        shrunk = {name: -(-getattr(spec, name) // SHRINK) for name in ("tokens", "answer")}
        yield replace(spec, **shrunk)


def compare(
    plan: AgreementPlan, progress: Callable[[str], object] = lambda now: None
) -> list[tuple[Latencies, Latencies]]:
    """Engine and simulator of each round."""
    engine = RealEngine(plan)
    progress("how many requests per second the engine serves")
    at_once = (replace(spec, time=0.0) for spec in requests(plan.requests, 1.0, seed=plan.rounds))
    rate = LOAD * plan.requests / engine.serve(at_once)[0].end
    found = []
    for number in range(plan.rounds):
        progress(f"round {number + 1} of {plan.rounds}, {rate:.1f} requests per second")
        _, samples = engine.serve(requests(plan.requests, rate, seed=plan.rounds + 1 + number))
        measured, _ = engine.serve(requests(plan.requests, rate, seed=number))
        told = simulated(engine.names, fitted(samples.samples), requests(plan.requests, rate, seed=number))
        found.append((measured, told))
    return found


def study_of(plan: AgreementPlan, rounds: list[tuple[Latencies, Latencies]]) -> Study:
    """Each figure: the medians of the rounds, and how far the simulator is off in the median, best and worst round."""
    rows = []
    for name, (figure, allowed) in FIGURES.items():
        pairs = [(figure(measured), figure(told)) for measured, told in rounds]
        offs = [100 * (told / measured - 1) for measured, told in pairs]
        engine, simulator = (1000 * median(side) for side in zip(*pairs, strict=True))
        rows.append([name, engine, simulator, median(offs), 100 * allowed, min(offs), max(offs)])
    title = (
        f"Engine and simulator\n{MODEL} on {plan.port.name}, {plan.port.device}; "
        f"{counted(plan.requests, 'request')}, {counted(plan.rounds, 'round')}"
    )
    says = (
        f"Lengths of {TRACE}, divided by {SHRINK}; at {LOAD:.0%} of the rate that the engine reaches.",
        "The profile is a sum of five terms, fitted in each round to the steps of other requests.",
    )
    return Study("agreement", title, COLUMNS, rows, says)
