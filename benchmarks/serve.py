"""`pdm run bench-serve`: latencies of a load that arrives over time, at our server or any OpenAI-compatible one.

Several servers get the same loads in turns; `--capacity` searches the highest rate at which each meets its target.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_engine.backends.samples import in_turns, turned
from tiny_llm_engine.machine.repo import BACKENDS
from tiny_llm_engine.machine.terminal import command, write_file
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_extensions.arguments import DTYPES, json_object, positive_number

from .command import RunProgress, carry_out, port_of
from .datasets import BY_STEPS, DATASETS
from .engine_plan import VARIANTS, EnginePlan
from .options import bench_parser, count, flag, option, plain, plan_of, switch
from .report import OURS
from .serving.capacity import capacity
from .serving.client import ENDPOINTS, WHOLE_ANSWERS, Client, served_model
from .serving.load import PERCENTILES, Load, Texts, figures, goodput_of, send
from .serving.processes import Place, Server, our_server, running, transformers_server
from .serving.vllm_options import check_one_run, file_name, flat, metric_names, pair, percentiles, share

WARM_UP = 8  # requests, at most, that are sent before anything counts
NEVER_KEPT = ("api_key", "base_url", "header")  # of a plan in a result
CHAT = "openai-chat"  # vLLM's names of clients: this one has the second endpoint
APIS = "openai", "vllm", CHAT


@dataclass(frozen=True)
class ServingPlan(EnginePlan):
    """Options of the command. Names are those of vLLM's `bench serve` where they mean the same."""

    base_url: str | None = option(None, "a server that runs already; default: starts ours")
    model: str | None = option(None, "default: tiny-qwen3, or the one that --base-url lists")
    tokenizer: str = option("tiny-qwen3", "whose words prompts are made of", metavar="MODEL")
    api_key: str | None = option(None, "default: the variable OPENAI_API_KEY")
    endpoint: str = option(ENDPOINTS[0], choices=ENDPOINTS)
    header: tuple[tuple[str, str], ...] = option(
        (), "headers of every request", type=pair, nargs="*", metavar="NAME=VALUE"
    )
    extra_body: Mapping[str, Any] | None = option(
        None, "further fields of every request", type=json_object, metavar="JSON"
    )
    ignore_eos: bool = switch(True, "answers of exactly --output-len tokens")
    request_rate: tuple[float, ...] = option(
        (4.0,), "requests per second; inf sends all at once", type=float, nargs="+"
    )
    burstiness: float = option(1.0, "1: Poisson arrivals; below 1: bursts", type=float)
    max_concurrency: int | None = count(None, "open requests, at most")
    num_prompts: int = count(64, "requests of a run")
    num_warmups: int | None = count(None, "requests before anything counts; default: 8, or fewer", least=0)
    dataset: str = option(
        "random",
        f"{', '.join(name for name in DATASETS if name not in BY_STEPS)}, or a file",
        metavar="NAME",
        also=("--dataset-name",),
    )
    random_prefix_len: int = count(
        0, "tokens that all random prompts begin with, before --input-len", least=0
    )
    random_range_ratio: float = option(
        0.0, "random lengths are uniform within this share, up and down", type=share, metavar="R"
    )
    percentile_metrics: tuple[str, ...] | None = option(
        None, "latencies to print: ttft,tpot,itl,e2el", type=metric_names, metavar="NAMES"
    )
    metric_percentiles: tuple[float, ...] | None = option(
        None, "percentiles to print, as in 50,99", type=percentiles, metavar="P"
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
        if self.dataset != "random" and (self.random_prefix_len or self.random_range_ratio):
            raise ValueError("--random-prefix-len and --random-range-ratio are for --dataset random")
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
    before, found = provenance(place.device), plain(plan)
    texts, targets = Texts(load_tokenizer(plan.tokenizer)), goodput_of(plan.goodput)
    with ExitStack() as stack:
        bench = Bench(plan, texts, targets, clients(plan, place, stack), report)
        if plan.base_url:  # our options do not describe that server
            found |= {"model": bench.cast["server"].model, "dtype": None}
        bench.warm_up()
        runs = bench.runs()
        capacities = bench.capacities() if plan.capacity else {}
    return {
        "kind": "serve",
        "backend": place.backend,
        "plan": {name: value for name, value in found.items() if name not in NEVER_KEPT},
        "provenance": before,
        "dataset": bench.says,
        "runs": runs,
        "capacity": capacities,
    }


def clients(plan: ServingPlan, place: Place, stack: ExitStack) -> dict[str, Client]:
    """A client for each server; those that have to be started end with `stack`."""
    headers = dict(plan.header)  # of the same name the last one counts
    if plan.base_url:
        extra = {**(WHOLE_ANSWERS if plan.ignore_eos else {}), **(plan.extra_body or {})}
        model = served_model(plan.model, plan.base_url, plan.api_key, headers)
        return {"server": Client(plan.base_url, model, plan.api_key, plan.endpoint, extra, headers)}
    found = {}
    for name, each in servers(plan, place).items():
        extra = {**(each.extra_body if plan.ignore_eos else {}), **(plan.extra_body or {})}
        url = stack.enter_context(running(each))
        found[name] = Client(url, each.model, None, plan.endpoint, extra, headers)
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
        shape = {"prefix_len": plan.random_prefix_len, "range_ratio": plan.random_range_ratio}
        made = self.texts.load(plan.dataset, size, rate, plan.burstiness, plan.seed + self.loads, **shape)
        self.loads += 1
        return made

    def run(self, name: str, load: Load, rate: float) -> dict[str, Any]:
        """Send a load to one server: its figures."""
        self.report(f"{name} at {rate:g} requests/s")
        seen = asyncio.run(send(self.cast[name], load, self.plan.max_concurrency))
        wanted = sorted({*PERCENTILES, *(self.plan.metric_percentiles or ())})
        return {"rate": rate, **figures(seen, self.targets, wanted)}

    def warm_up(self) -> None:
        """Send a few requests to each server.

        Raises:
            ValueError: a server answers none.
        """
        requests = self.plan.num_warmups
        if requests is None:
            requests = min(WARM_UP, self.plan.num_prompts)
        if not requests:
            return
        load = self.load(float("inf"), requests)
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


def parser() -> argparse.ArgumentParser:
    """The options: those of the plan, and how vLLM's `bench serve` names the API and the file of a result."""
    top = bench_parser("serve", __doc__, ServingPlan, backend_option="--engine-backend")
    add = top.add_argument
    apis = [*APIS, *BACKENDS]
    add("--backend", dest="api", default="openai", choices=apis, help="an API, as in vLLM; or our port")
    add("--save-result", action="store_true", help="write the figures of one run, with vLLM's names")
    add("--result-dir", type=Path, metavar="DIR", help="write them there")
    add("--result-filename", metavar="FILE", help="write them into this file")
    return top


def parsed(argv: list[str] | None) -> argparse.Namespace:
    """The options that were typed; `--backend` may be our port, as in the other benchmarks."""
    options = parser().parse_args(argv)
    if options.api in BACKENDS:
        options.backend, options.api = options.api, "openai"
    if options.api == CHAT:
        options.endpoint = ENDPOINTS[1]
    options.api_key = options.api_key or os.environ.get("OPENAI_API_KEY")
    return options


@command
def main(argv: list[str] | None = None) -> None:
    options = parsed(argv)
    authors_tools.require("openai")  # its client sends the load
    is_kept = options.save_result or options.result_dir or options.result_filename

    def run(report: RunProgress) -> dict[str, Any]:
        plan = plan_of(ServingPlan, options)
        if is_kept:
            check_one_run(plan)
        result = measure(plan, place_of(plan, options), report)
        if is_kept:
            found = flat(result, options.api)
            file = (options.result_dir or Path()) / (options.result_filename or file_name(found))
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, json.dumps(found) + "\n")
        return result

    carry_out("serve", options, argv, run)


if __name__ == "__main__":
    main()
