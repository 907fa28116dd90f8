"""`pdm run bench-serve`: latencies of a load that arrives over time, at our server or any OpenAI-compatible one.

Several servers get the same loads in turns; `--capacity` searches the highest rate at which each meets its target.
"""

import argparse
import asyncio
import os
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiny_llm_kit.engine.arguments import DTYPES, positive_number
from tiny_llm_kit.model.tokenizer import load_tokenizer
from tiny_llm_kit.terminal import command
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.samples import in_turns, turned

from .command import RunProgress, carry_out, port_of
from .datasets import BY_STEPS, DATASETS
from .engine_plan import VARIANTS, EnginePlan
from .options import bench_parser, count, flag, option, plain, plan_of, switch
from .report import OURS
from .serving.capacity import capacity
from .serving.client import ENDPOINTS, Client, served_model
from .serving.load import Load, Texts, figures, goodput_of, send
from .serving.processes import Place, Server, our_server, running, transformers_server

WARM_UP = 8  # requests, at most, that are sent before anything counts
NEVER_KEPT = ("api_key", "base_url")  # of a plan in a result


@dataclass(frozen=True)
class ServingPlan(EnginePlan):
    """Options of the command. Names are those of vLLM's `bench serve` where they mean the same."""

    base_url: str | None = option(None, "a server that runs already; default: starts ours")
    model: str | None = option(None, "default: tiny-qwen3, or the one that --base-url lists")
    tokenizer: str = option("tiny-qwen3", "whose words prompts are made of", metavar="MODEL")
    api_key: str | None = option(None, "default: the variable OPENAI_API_KEY")
    endpoint: str = option(ENDPOINTS[0], choices=ENDPOINTS)
    ignore_eos: bool = switch(True, "answers of exactly --output-len tokens")
    request_rate: tuple[float, ...] = option(
        (4.0,), "requests per second; inf sends all at once", type=float, nargs="+"
    )
    burstiness: float = option(1.0, "1: Poisson arrivals; below 1: bursts", type=float)
    max_concurrency: int | None = count(None, "open requests, at most")
    num_prompts: int = count(64, "requests of a run")
    dataset: str = option(
        "random", f"{', '.join(name for name in DATASETS if name not in BY_STEPS)}, or a file", metavar="NAME"
    )
    goodput: tuple[str, ...] = option(
        (), "most milliseconds of ttft, tbt (every gap), tpot or e2el", nargs="+", metavar="NAME:MS"
    )
    capacity: bool = flag("search the highest rate that meets --goodput")
    attainment: float = option(0.9, "share of the requests that must meet it", type=float)
    rounds: int = count(1, "runs of each server at each rate, in turns")
    compare: tuple[str, ...] = option(
        (), "beside our server, in turns", choices=[*VARIANTS, "transformers"], nargs="+", metavar="WHAT"
    )
    latency_target: float | None = option(None, "of the policy slack, in seconds", type=positive_number)
    dtype: str = option("float32", choices=DTYPES)

    def __post_init__(self):
        goodput_of(self.goodput)
        if self.dataset in BY_STEPS:
            raise ValueError(
                f"--dataset {self.dataset}: its prompts arrive among our engine's steps; use bench-throughput"
            )
        if self.base_url and self.compare:
            raise ValueError("--compare starts servers of its own: leave --base-url out")
        if self.has_random_weights and (self.base_url or "transformers" in self.compare):
            raise ValueError(
                "random weights are our server's alone: no --base-url, no --compare transformers"
            )
        if self.capacity and not self.goodput:
            raise ValueError("--capacity needs a target: add --goodput, for example ttft:1000 tbt:100")
        if not 0 < self.attainment <= 1:
            raise ValueError(f"--attainment {self.attainment}: give a share above 0 and at most 1")

    def server_options(self) -> dict[str, Any]:
        """The options of our server; None for its defaults."""
        model = {"config": self.config, "random_weights": self.random_weights or None, "layers": self.layers}
        return {**self.engine_options(), "dtype": self.dtype, **model}


def measure(plan: ServingPlan, place: Place, report: RunProgress) -> dict[str, Any]:
    """Run every load on every server, and search the capacities if they are asked for.

    Raises:
        ValueError: the plan contradicts itself, or a server cannot be started or reached.
    """
    before = provenance(place.device)
    texts, targets = Texts(load_tokenizer(plan.tokenizer)), goodput_of(plan.goodput)
    with ExitStack() as stack:
        bench = Bench(plan, texts, targets, clients(plan, place, stack), report)
        bench.warm_up()
        runs = bench.runs()
        found = bench.capacities() if plan.capacity else {}
    return {
        "kind": "serve",
        "backend": place.backend,
        "plan": {name: value for name, value in plain(plan).items() if name not in NEVER_KEPT},
        "provenance": before,
        "dataset": bench.says,
        "runs": runs,
        "capacity": found,
    }


def clients(plan: ServingPlan, place: Place, stack: ExitStack) -> dict[str, Client]:
    """A client for each server; those that have to be started end with `stack`."""
    if plan.base_url:
        extra = {"ignore_eos": True} if plan.ignore_eos else {}
        model = served_model(plan.model, plan.base_url, plan.api_key)
        return {"server": Client(plan.base_url, model, plan.api_key, plan.endpoint, extra)}
    found = {}
    for name, each in servers(plan, place).items():
        extra = each.extra_body if plan.ignore_eos else {}
        found[name] = Client(stack.enter_context(running(each)), each.model, None, plan.endpoint, extra)
    return found


def servers(plan: ServingPlan, place: Place) -> dict[str, Server]:
    """Our server and those that it is compared with, all on the same model."""
    model, options = plan.model or "tiny-qwen3", plan.server_options()
    found = {OURS: our_server(place, model, options)}
    for name in plan.compare:
        if name in VARIANTS:
            found[f"{OURS} {name}"] = our_server(place, model, options | VARIANTS[name])
        else:
            room = 2 * (plan.input_len + plan.output_len)
            sizes = plan.max_num_seqs, room, plan.block_size
            found["transformers serve"] = transformers_server(model, plan.dtype, *sizes)
    return found


@dataclass
class Bench:
    """The runs of one command."""

    plan: ServingPlan  # what to measure
    texts: Texts  # makes the loads
    targets: dict[str, float]  # of goodput, in milliseconds
    cast: dict[str, Client]  # a client per server
    report: RunProgress
    says: str = ""
    loads: int = 0  # number made so far: each has new prompts, so that no prefix of an earlier one is cached

    def load(self, rate: float, num_prompts: int | None = None) -> Load:
        """Make a new load."""
        plan = self.plan
        size = (num_prompts or plan.num_prompts, plan.input_len, plan.output_len)
        made = self.texts.load(plan.dataset, size, rate, plan.burstiness, plan.seed + self.loads)
        self.loads += 1
        return made

    def run(self, name: str, load: Load, rate: float) -> dict[str, Any]:
        """Send a load to one server: its figures."""
        self.report(f"{name} at {rate:g} requests/s")
        seen = asyncio.run(send(self.cast[name], load, self.plan.max_concurrency))
        return {"rate": rate, **figures(seen, self.targets)}

    def warm_up(self) -> None:
        """Send a few requests to each server.

        Raises:
            ValueError: a server answers none.
        """
        load = self.load(float("inf"), min(WARM_UP, self.plan.num_prompts))
        for name in self.cast:
            found = self.run(name, load, float("inf"))
            if not found["completed"]:
                raise ValueError(f"{name}: no request was answered: {next(iter(found['errors']))}")

    def runs(self) -> dict[str, list[dict[str, Any]]]:
        """Send every rate in every round; in a round the servers take turns with the same load."""
        found: dict[str, list[dict]] = {name: [] for name in self.cast}
        for number in range(self.plan.rounds):
            for rate in self.plan.request_rate:
                load = self.load(rate)
                self.says = load.says
                for name in turned(self.cast, number):
                    found[name].append(self.run(name, load, rate))
        return found

    def capacities(self) -> dict[str, list[float]]:
        """Search the capacity of each server in every round."""
        share, start = self.plan.attainment, self.plan.request_rate[0]

        def of_one(name: str, number: int) -> float:
            return capacity(lambda rate: self.run(name, self.load(rate), rate)["attainment"], share, start)

        return in_turns({name: partial(of_one, name) for name in self.cast}, range(self.plan.rounds))


def place_of(plan: ServingPlan, options: argparse.Namespace) -> Place:
    """The place of the server that is measured; little is known of one that runs already."""
    if plan.base_url:
        return Place(options.solution, "an OpenAI-compatible server", "the server's")
    port = port_of(options)
    return Place(options.solution, port.name, port.device)


@command
def main(argv: list[str] | None = None) -> None:
    options = bench_parser("serve", __doc__, ServingPlan).parse_args(argv)
    key = options.api_key or os.environ.get("OPENAI_API_KEY")

    def run(report: RunProgress) -> dict[str, Any]:
        plan = plan_of(ServingPlan, options, api_key=key)
        return measure(plan, place_of(plan, options), report)

    carry_out("serve", options, argv, run)


if __name__ == "__main__":
    main()
