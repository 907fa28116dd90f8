"""`bench-serve`: the same loads through one server or several in turns, and the capacity of each."""

import asyncio
from argparse import BooleanOptionalAction
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tiny_llm_kit.engine.arguments import DTYPES, positive_number, whole_number
from tiny_llm_kit.model.tokenizer import load_tokenizer
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.shapes import SHAPES, check_layers

from ..contest import OURS
from ..datasets import BY_STEPS, DATASETS
from ..options import COUNT, option
from ..throughput import ENGINE, VARIANTS, policies
from .capacity import capacity
from .client import ENDPOINTS, Client, api_url
from .load import Load, Texts, figures, goodput_of, send
from .processes import Place, our_server, running, transformers_server

TRANSFORMERS = "transformers serve"
WARM_UP = 8  # requests, at most, that are sent before anything counts
# Fields of a plan that are options of our server.
OPTIONS = (*ENGINE, "enforce_eager", "dtype", "latency_target", "config", "random_weights", "layers")
NEVER_KEPT = ("api_key", "base_url")  # of a plan in a result


@dataclass(frozen=True)
class ServingPlan:
    """What to measure. Names are those of vLLM's `bench serve` where they mean the same."""

    base_url: str | None = option(None, "a server that runs already; default: starts ours")
    model: str | None = option(None, "default: tiny-qwen3, or the one that --base-url lists")
    tokenizer: str = option("tiny-qwen3", "whose words prompts are made of", metavar="MODEL")
    api_key: str | None = option(None, "default: the variable OPENAI_API_KEY")
    endpoint: str = option(ENDPOINTS[0], choices=ENDPOINTS)
    ignore_eos: bool = option(True, "answers of exactly --output-len tokens", action=BooleanOptionalAction)
    request_rate: tuple[float, ...] = option(
        (4.0,), "requests per second; inf sends all at once", type=float, nargs="+"
    )
    burstiness: float = option(1.0, "1: Poisson arrivals; below 1: bursts", type=float)
    max_concurrency: int | None = option(None, "open requests, at most", **COUNT)
    num_prompts: int = option(64, "requests of a run", **COUNT)
    input_len: int = option(128, "tokens of a prompt", **COUNT)
    output_len: int = option(32, "tokens of an answer", **COUNT)
    dataset: str = option(
        "random", f"{', '.join(name for name in DATASETS if name not in BY_STEPS)}, or a file", metavar="NAME"
    )
    goodput: tuple[str, ...] = option(
        (), "most milliseconds of ttft, tbt (every gap), tpot or e2el", nargs="+", metavar="NAME:MS"
    )
    capacity: bool = option(False, "search the highest rate that meets --goodput", action="store_true")
    attainment: float = option(0.9, "share of the requests that must meet it", type=float)
    rounds: int = option(1, "runs of each server at each rate, in turns", **COUNT)
    seed: int = option(0, "of prompts and arrivals", type=whole_number(0))
    compare: tuple[str, ...] = option(
        (), "beside our server, in turns", choices=[*VARIANTS, "transformers"], nargs="+", metavar="WHAT"
    )
    max_num_batched_tokens: int | None = option(None, "tokens of a step of our server", **COUNT)
    max_num_seqs: int = option(16, "requests that our server runs at a time", **COUNT)
    enable_chunked_prefill: bool = option(True, "else whole prompts first", action=BooleanOptionalAction)
    policy: str = option("hybrid", "one forward per step, or two; or of Day 3.5", choices=policies())
    latency_target: float | None = option(None, "of the policy slack, in seconds", type=positive_number)
    config: str | None = option(None, "our server: a shape with random weights", choices=sorted(SHAPES))
    random_weights: bool | None = option(None, "our server: of --model the shape alone", action="store_true")
    layers: int | None = option(None, "with random weights: fewer than the shape has", **COUNT)
    block_size: int = option(128, "tokens of a KV block", **COUNT)
    num_blocks: int | None = option(None, "KV blocks; default: what fits", **COUNT)
    enforce_eager: bool | None = option(
        None, "default: compile on an HPU and on CUDA", action=BooleanOptionalAction
    )
    bucketing_strategy: str | None = option(None, "pads steps, so that shapes repeat", metavar="NAME")
    dtype: str = option("float32", choices=DTYPES)

    def __post_init__(self):
        goodput_of(self.goodput)
        if self.dataset in BY_STEPS:
            raise ValueError(
                f"--dataset {self.dataset}: its prompts arrive among our engine's steps; use bench-throughput"
            )
        if self.base_url and self.compare:
            raise ValueError("--compare starts servers of its own: leave --base-url out")
        is_random = check_layers(self.config, bool(self.random_weights), self.layers)
        if is_random and (self.base_url or "transformers" in self.compare):
            raise ValueError(
                "random weights are our server's alone: no --base-url, no --compare transformers"
            )
        if self.capacity and not self.goodput:
            raise ValueError("--capacity needs a target: add --goodput, for example ttft:1000 tbt:100")
        if not 0 < self.attainment <= 1:
            raise ValueError(f"--attainment {self.attainment}: give a share above 0 and at most 1")


def measure(plan: ServingPlan, place: Place, progress: Callable) -> dict[str, Any]:
    """Every run of every server, and the capacities if they are asked for.

    Args:
        place: of our server.
        progress: told what runs now.

    Raises:
        ValueError: the plan contradicts itself, or a server cannot be started or reached.
    """
    before = provenance(place.device)
    texts, targets = Texts(load_tokenizer(plan.tokenizer)), goodput_of(plan.goodput)
    with ExitStack() as stack:
        cast = contestants(plan, place, stack)
        bench = Bench(plan, texts, targets, cast, progress)
        bench.warm_up()
        runs = bench.runs()
        found = bench.capacities() if plan.capacity else {}
    kept = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in NEVER_KEPT}
    return {
        "kind": "serve",
        "backend": place.backend,
        "plan": {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items()},
        "provenance": before,
        "dataset": bench.says,
        "runs": runs,
        "capacity": found,
    }


def contestants(plan: ServingPlan, place: Place, stack: ExitStack) -> dict[str, Client]:
    """A client for each server; those that have to be started end with `stack`."""
    if plan.base_url:
        extra = {"ignore_eos": True} if plan.ignore_eos else {}
        model = served_model(plan.model, plan.base_url, plan.api_key)
        return {"server": Client(plan.base_url, model, plan.api_key, plan.endpoint, extra)}
    model = plan.model or "tiny-qwen3"
    options = {name: getattr(plan, name) for name in OPTIONS}
    servers = {OURS: our_server(place, model, options)}
    for name in plan.compare:
        if name in VARIANTS:
            changed = {**options, **VARIANTS[name]}
            servers[f"{OURS} {name}"] = our_server(place, model, changed)
        else:
            room = 2 * (plan.input_len + plan.output_len)
            servers[TRANSFORMERS] = transformers_server(
                model, plan.dtype, plan.max_num_seqs, room, plan.block_size
            )
    started = {name: stack.enter_context(running(server)) for name, server in servers.items()}
    return {
        name: Client(
            started[name], server.model, None, plan.endpoint, server.extra_body if plan.ignore_eos else {}
        )
        for name, server in servers.items()
    }


def served_model(wanted: str | None, base_url: str, api_key: str | None) -> str:
    """What a server calls the model that was asked for.

    Args:
        wanted: its name, or a path whose last part is its name, as our server has it; None for a server of one model.

    Raises:
        ValueError: the server lists models, and not this one or several; or none was asked for, and it lists none.
    """
    names = listed_models(base_url, api_key)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise ValueError(f"--base-url {base_url}: lists {', '.join(names) or 'no models'}; give --model")
    if not names or wanted in names:
        return wanted
    if (name := Path(wanted).resolve().name) in names:
        return name
    raise ValueError(f"--model {wanted}: the server has {', '.join(names)}")


def listed_models(base_url: str, api_key: str | None) -> list[str]:
    """The names of a server's models; empty where it does not say.

    Raises:
        ValueError: it cannot be reached, is not ready, or refuses the key.
    """
    from openai import APIConnectionError, AuthenticationError, NotFoundError, OpenAI, OpenAIError

    url = api_url(base_url)
    try:
        with OpenAI(base_url=url, api_key=api_key or "none", max_retries=0) as client:
            return [model.id for model in client.models.list().data]
    except NotFoundError:
        return []
    except APIConnectionError:
        raise ValueError(f"--base-url {base_url}: no server answers at {url}; is it running?") from None
    except AuthenticationError:
        raise ValueError(f"--base-url {base_url}: give its key, as --api-key or OPENAI_API_KEY") from None
    except OpenAIError as error:
        raise ValueError(f"--base-url {base_url}: {error}") from None


@dataclass
class Bench:
    """The runs of one command.

    Args:
        plan: what to measure.
        texts: makes the loads.
        targets: of goodput, in milliseconds.
        cast: a client per server.
        progress: told what runs now.
    """

    plan: ServingPlan
    texts: Texts
    targets: dict[str, float]
    cast: dict[str, Client]
    progress: Callable[[str], object]
    says: str = ""
    loads: int = 0  # number made so far: each has new prompts, so that no prefix of an earlier one is cached

    def load(self, rate: float, num_prompts: int | None = None) -> Load:
        """A new load."""
        plan = self.plan
        size = (num_prompts or plan.num_prompts, plan.input_len, plan.output_len)
        made = self.texts.load(plan.dataset, size, rate, plan.burstiness, plan.seed + self.loads)
        self.loads += 1
        return made

    def run(self, name: str, load: Load, rate: float) -> dict[str, Any]:
        """One run of one server."""
        self.progress(f"{name} at {rate:g} requests/s")
        seen = asyncio.run(send(self.cast[name], load, self.plan.max_concurrency))
        return {"rate": rate, **figures(seen, self.targets)}

    def warm_up(self) -> None:
        """A few requests to each server.

        Raises:
            ValueError: a server answers none.
        """
        load = self.load(float("inf"), min(WARM_UP, self.plan.num_prompts))
        for name in self.cast:
            found = self.run(name, load, float("inf"))
            if not found["completed"]:
                raise ValueError(f"{name}: no request was answered: {next(iter(found['errors']))}")

    def runs(self) -> dict[str, list[dict[str, Any]]]:
        """Every rate in every round; in a round the servers take turns with the same load."""
        found: dict[str, list[dict]] = {name: [] for name in self.cast}
        for number in range(self.plan.rounds):
            for rate in self.plan.request_rate:
                load = self.load(rate)
                self.says = load.says
                for name in self.turned(number):
                    found[name].append(self.run(name, load, rate))
        return found

    def capacities(self) -> dict[str, list[float]]:
        """The capacity of each server in every round."""
        found: dict[str, list[float]] = {name: [] for name in self.cast}
        for number in range(self.plan.rounds):
            for name in self.turned(number):

                def attained(rate: float, name: str = name) -> float:
                    return self.run(name, self.load(rate), rate)["attainment"]

                found[name].append(capacity(attained, self.plan.attainment, self.plan.request_rate[0]))
        return found

    def turned(self, number: int) -> Iterator[str]:
        """The names of the servers; each round begins with another one."""
        names = list(self.cast)
        start = number % len(names)
        yield from names[start:] + names[:start]
