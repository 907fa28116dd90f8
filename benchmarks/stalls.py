"""`pdm run bench-stalls`: what streams notice while long prompts arrive, over HTTP and with a real model.

Requests that decode all the time are the streams. The preset `default` sends one prompt among them to each port, with
the default budget of tokens per step and with 512, and to llama.cpp's server. `disaggregated` sends prompts at several
rates to one server on all cores, which computes chunks, and to a pair of engines with half of the cores and half of the
KV blocks each, one for prompts and one that decodes. `smoke` is the same with the shipped model, in a minute.
"""

import argparse
import asyncio
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Any, NamedTuple

from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.trace import percentile
from tiny_llm_engine.backends.samples import turned
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DTYPES, model_argument, positive_number, whole_number

from .baselines import BASELINES, file_of, is_installed
from .command import RunProgress, carry_out, port_of
from .options import bench_parser, count, counts, option, plain, plan_of
from .serving.client import Client, ServedRequest
from .serving.load import PERCENTILES, Load, Texts, figures, send
from .serving.processes import Place, Server, fetched, our_server, running

BUDGETS = {"default": None, "512": 512}  # tokens of a step of ours
LLAMA_BATCHES = (512, 128)  # tokens of a call of llama.cpp
ANSWER = 8  # tokens of the answer to a prompt that arrives
STREAM = (32, 1000)  # tokens of a stream's prompt and answer; another request follows
STREAM_PROMPTS = 64  # before they repeat
WARM_UP = (1, 16, 8)  # a request that is not counted, its prompt and its answer
BEFORE = 20  # tokens of each stream before a prompt arrives
LOOK_SECONDS = 0.02  # between two looks at the streams
SETTLE_SECONDS = 1.5  # a proxy asks its engines for their metrics twice in a second
TOTAL = "tiny_llm:kv_transfer_{}_total"
COUNTERS = {  # of /metrics: sums over a server's engines
    "moved_bytes": (TOTAL.format("received_bytes"), None),
    "given_up": (TOTAL.format("given_up"), None),
    "awaited_seconds": (TOTAL.format("waiting_seconds"), None),
    "computed_seconds": ("vllm:time_to_first_token_seconds_sum", "prefill"),  # of this role alone
}
PRESETS: dict[str, dict[str, Any]] = {  # defaults of the options
    "default": {},
    "disaggregated": {"input_len": (500, 2000), "alone": 6000},
    "smoke": {
        "model": "tiny-qwen3",
        "streams": 2,
        "input_len": (300,),
        "load": (0.5,),
        "alone": 400,
        "num_prompts": 2,
        "max_model_len": 2048,
        "num_blocks": 32,
        "rounds": 1,
    },
}


@dataclass(frozen=True)
class StallsPlan:
    """Options of the command."""

    model: str = option("smollm2", "a shipped name, a folder, a GGUF file or a hub id", type=model_argument)
    dtype: str = option("auto", choices=DTYPES)
    streams: int = count(4, "requests that decode all the time")
    input_len: tuple[int, ...] = counts((), "tokens of prompts that arrive at each rate")
    load: tuple[float, ...] = option(
        (0.25, 0.5, 0.8), "rates, as shares of --prompt-speed", type=positive_number, nargs="+"
    )
    prompt_speed: float | None = option(
        None, "prompt tokens/s; default: what the first server computes", type=positive_number
    )
    num_prompts: int = count(10, "prompts at each rate")
    alone: int = count(3000, "tokens of a prompt that arrives alone")
    max_num_seqs: int = count(16, "requests that run at a time")
    max_model_len: int = count(8192, "tokens of our longest request")
    num_blocks: int = count(96, "KV blocks of each engine of a pair, half of those of the server beside it")
    seed: int = option(0, "of prompts and arrivals", type=whole_number(0))
    rounds: int = count(3, "runs of each server in each case, in turns")

    @property
    def room(self) -> int:
        """Tokens of the longest request."""
        return max(*self.input_len, self.alone, STREAM[0] + STREAM[1] - ANSWER) + ANSWER


class Arrivals(NamedTuple):
    """Prompts that arrive: their number, the tokens of each, and how many come per second."""

    name: str
    prompts: int
    tokens: int
    rate: float = math.inf


def cases_of(plan: StallsPlan, speeds: Mapping[int, float]) -> Iterator[Arrivals]:
    """What is measured.

    Args:
        speeds: prompt tokens per second that are a load of 1, by the tokens of a prompt.
    """
    for tokens, speed in speeds.items():
        for share in plan.load:
            yield Arrivals(f"{tokens:,} at {share:g}", plan.num_prompts, tokens, share * speed / tokens)
    yield Arrivals(f"{plan.alone:,} alone", 1, plan.alone)


def servers_of(preset: str, plan: StallsPlan, places: Sequence[Place]) -> dict[str, Server]:
    """The servers that a preset compares."""
    shared = {name: getattr(plan, name) for name in ("dtype", "max_num_seqs", "max_model_len")}
    options: dict[str, dict[str, Any]]
    if preset == "default":
        options = {name: {"max_num_batched_tokens": budget} for name, budget in BUDGETS.items()}
    else:
        pair = {"num_blocks": plan.num_blocks, "disaggregated": "1:1"}
        options = {"chunks": {"num_blocks": 2 * plan.num_blocks}, "1:1": pair}
    found = {
        f"{place.backend}, {name}": our_server(place, plan.model, shared | others)
        for place in places
        for name, others in options.items()
    }
    return found | (llama_servers(plan) if preset == "default" and is_installed("xllamacpp") else {})


def llama_servers(plan: StallsPlan) -> dict[str, Server]:
    """llama.cpp's server on the same file, with as many slots and threads, for each number of tokens per call."""
    sizes = f"--rows {plan.max_num_seqs} --room {plan.room} --threads {os.cpu_count() or 1}".split()
    start = (sys.executable, "-m", "benchmarks.xllamacpp_baseline", str(file_of(plan.model)), *sizes)
    fields = {"ignore_eos": True, "cache_prompt": False}
    batches = {n: ("--n_batch", str(n), "--n_ubatch", str(n)) for n in LLAMA_BATCHES}
    return {f"llama.cpp, {n}": Server((*start, *batches[n]), "m", "/health", fields) for n in batches}


# Among streams.


async def decode(client: Client, connection: Any, prompts: Iterator[str], seen: list[ServedRequest]) -> None:
    """Stream one answer after the other into `seen`.

    Raises:
        ValueError: one of them failed.
    """
    while True:
        now = time.perf_counter()
        seen.append(ServedRequest(now, due=now))
        await client.ask(connection, next(prompts), STREAM[1], now, seen[-1])
        if seen[-1].error:
            raise ValueError(f"a stream failed: {seen[-1].error}")


async def until(is_so: Callable[[], bool], tasks: Sequence[asyncio.Task]) -> None:
    """Wait; an error of one of the tasks is raised here."""
    while not is_so():
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(LOOK_SECONDS)


async def among_streams(client: Client, prompts: Iterator[str], streams: int, load: Load) -> dict[str, Any]:
    """Send a load while streams decode: the figures of both.

    Every gap that begins before the last first token counts, so each stream is read until it has ended.
    """
    seen: list[list[ServedRequest]] = [[] for _ in range(streams)]
    async with client.connect() as connection:
        tasks = [asyncio.create_task(decode(client, connection, prompts, each)) for each in seen]
        try:
            await until(lambda: all(each and len(each[-1].token_times) > BEFORE for each in seen), tasks)
            answers = await send(client, load)
            start = min(one.arrival_time for one in answers)
            stop = max(one.first_token_time or start for one in answers)
            await until(lambda: all((each[-1].last_token_time or 0.0) > stop for each in seen), tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    found = figures(answers, {}, PERCENTILES)
    return {
        **{name: found[name] for name in ("completed", "failed", "errors", "ttft_p50_ms", "ttft_p90_ms")},
        "prompt_throughput": found["total_input_tokens"] / max(stop - start, 1e-9),
        **of_streams([one for each in seen for one in each], start, stop),
    }


def of_streams(seen: Sequence[ServedRequest], start: float, stop: float) -> dict[str, float]:
    """Gaps in milliseconds and tokens per second of streams between two times."""
    pairs = [pair for one in seen for pair in pairwise(one.token_times)]
    gaps = [1000 * (later - sooner) for sooner, later in pairs if later > start and sooner < stop]
    tokens = sum(start < at <= stop for one in seen for at in one.token_times)
    return {
        "gap_ms": max(gaps),
        "tbt_p99_ms": percentile(gaps, 99),
        "stream_throughput": tokens / max(stop - start, 1e-9),
    }


# Of a server.


def resident_bytes() -> int | None:
    """Memory of the processes that this one has started, in RAM; pages that they share count in each of them."""
    import psutil

    return sum(each.memory_info().rss for each in psutil.Process().children(recursive=True)) or None


def counters(url: str) -> dict[str, float]:
    """`COUNTERS` of a server, without those that it does not have."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(fetched(f"{url}/metrics") or "")
    samples = [sample for family in families for sample in family.samples]
    found = {
        name: [one.value for one in samples if one.name == metric and role in (None, one.labels.get("role"))]
        for name, (metric, role) in COUNTERS.items()
    }
    return {name: sum(values) for name, values in found.items() if values}


@dataclass
class StallsBench:
    """The runs of one command; each has a server of its own, which has answered nothing else."""

    plan: StallsPlan
    texts: Texts
    servers: Mapping[str, Server]
    report: RunProgress
    total: int | None = None  # runs, once that is known

    def run(self, name: str, case: Arrivals, number: int) -> dict[str, Any]:
        """The figures of a server in one case of a round.

        Raises:
            ValueError: it cannot be started, or a stream failed.
        """
        self.report(f"{name}: {case.name}", self.total)
        server, plan, seed = self.servers[name], self.plan, self.plan.seed + number
        load = self.load((case.prompts, case.tokens, ANSWER), seed, case.rate)
        prompts = cycle(self.load((STREAM_PROMPTS, *STREAM), seed).prompts)
        with running(server) as url:
            client = Client(url, server.model, extra_body=server.extra_body)
            asyncio.run(send(client, self.load(WARM_UP, seed)))
            rest, before = resident_bytes(), counters(url)
            found = asyncio.run(among_streams(client, prompts, plan.streams, load))
            time.sleep(SETTLE_SECONDS)
            counted = {key: value - before.get(key, 0.0) for key, value in counters(url).items()}
            return {**found, "rest_bytes": rest, "after_bytes": resident_bytes(), "counters": counted}

    def load(self, size: tuple[int, int, int], seed: int, rate: float = math.inf) -> Load:
        """Random prompts; `size` is their number, and the tokens of each and of its answer."""
        return self.texts.load("random", size, rate, 1.0, seed)

    def prompt_speeds(self) -> dict[int, float]:
        """Prompt tokens per second that the first server computes beside the streams, by the tokens of a prompt."""
        first, plan = next(iter(self.servers)), self.plan

        def speed(tokens: int) -> float:
            case = Arrivals(f"{tokens:,} at once", plan.num_prompts, tokens)
            return plan.prompt_speed or self.run(first, case, 0)["prompt_throughput"]

        return {tokens: speed(tokens) for tokens in plan.input_len}


def measure(
    preset: str, plan: StallsPlan, solution: str, ports: Sequence[Port], report: RunProgress
) -> dict[str, Any]:
    """Run every server in every case, in turns.

    Raises:
        ValueError: a server cannot be started, or a stream failed.
    """
    before = provenance(ports[0].device)
    places = [Place(solution, port.name, port.device) for port in ports]
    bench = StallsBench(plan, Texts(load_tokenizer(plan.model)), servers_of(preset, plan, places), report)
    speeds = bench.prompt_speeds()
    cases = list(cases_of(plan, speeds))
    bench.total = len(bench.servers) * len(cases) * plan.rounds
    runs = {case.name: {name: [] for name in bench.servers} for case in cases}
    for number in range(plan.rounds):
        for case in cases:
            for name in turned(bench.servers, number):
                runs[case.name][name].append(bench.run(name, case, number))
    is_missing = preset == "default" and not is_installed("xllamacpp")
    return {
        "kind": "stalls",
        "preset": preset,
        "backend": " and ".join(port.name for port in ports),
        "plan": plain(plan) | {"dtype": ports[0].float_dtype, "threads": os.cpu_count() or 1},
        "provenance": before,
        "notes": [f"llama.cpp: not installed; {BASELINES['xllamacpp'].installing}"] * is_missing,
        "prompt_speeds": speeds,
        "runs": runs,
    }


def ports_of(options: argparse.Namespace) -> list[Port]:
    """The ports that are measured: of the preset `default` all that are installed, unless one is asked for."""
    is_each = (options.preset, options.backend) == ("default", "auto")
    names = installed_backends() if is_each else [options.backend]
    return [port_of(argparse.Namespace(**{**vars(options), "backend": name})) for name in names]


def parser(argv: list[str] | None) -> argparse.ArgumentParser:
    """The options of the command, with the defaults of the preset that is asked for."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--preset", choices=PRESETS, default="default", help="what is measured")
    preset = chooser.parse_known_args(argv)[0].preset
    found = bench_parser("stalls", __doc__, StallsPlan, chooser)
    found.set_defaults(**PRESETS[preset])
    return found


@command
def main(argv: list[str] | None = None) -> None:
    options = parser(argv).parse_args(argv)
    authors_tools.require("openai", "psutil")  # they send the load, and find the servers' processes

    def run(report: RunProgress) -> dict[str, Any]:
        return measure(
            options.preset, plan_of(StallsPlan, options), options.solution, ports_of(options), report
        )

    carry_out("stalls", options, argv, run)


if __name__ == "__main__":
    main()
