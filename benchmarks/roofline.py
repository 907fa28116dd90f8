"""Where decode and prefill stand under the roofs of this machine: a shape's layers, with 1 token a call and with many.

Two roofs: what memory delivers, and what the fastest large product computes. A call reads every weight once, so it
does more operations per byte the more tokens it has (Williams, Waterman and Patterson, 2009). The head is left out.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiny_llm_kit.engine.arguments import DTYPES
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.model.config import ModelConfig
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.samples import interleave
from tiny_llm_kit.trace.shapes import SHAPES, RandomCheckpoint, shape
from tiny_llm_kit.trace.workload import prompt_of

from .options import COUNT, COUNTS, check_context, option, threads_option

TOKENS = tuple(2**power for power in range(12))  # 1 to 2,048


@dataclass(frozen=True)
class RooflinePlan:
    """What to measure."""

    config: str = option("qwen3-0.6b", "a shape; its weights are random", choices=sorted(SHAPES))
    layers: int | None = option(4, "of the shape", **COUNT)
    dtype: str = option("auto", choices=DTYPES)
    tokens: tuple[int, ...] = option(TOKENS, "of a call", **COUNTS)
    threads: tuple[int, ...] = threads_option()
    rounds: int = option(5, "samples of each, taken in turns", **COUNT)


@dataclass(frozen=True)
class Work:
    """What a call must do at least: operations, and bytes that it reads."""

    operations: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.operations / self.bytes


def work(config: ModelConfig, tokens: int, itemsize: int) -> Work:
    """The work of the layers for a call of this many tokens without a past. A product and a sum are two operations."""
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    weights = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    pairs = tokens * (tokens + 1) // 2  # of a token and one that it sees: a score, and a share of a value
    return Work(
        config.num_hidden_layers * (2 * tokens * weights + 4 * pairs * queries),
        config.num_hidden_layers * (weights + 2 * tokens * keys) * itemsize,
    )


def measure(plan: RooflinePlan, port: Port, progress: Callable[[Iterable], Iterable]) -> dict[str, Any]:
    """Seconds of every call with every number of threads, and the two roofs of each.

    Raises:
        ValueError: a call is longer than what the model reads.
    """
    before, config = provenance(port.device), shape(plan.config, plan.layers)
    check_context(max(plan.tokens), config.max_position_embeddings)
    model = port.Qwen3ModelWeek2(
        RandomCheckpoint(config, port.backend_module, plan.dtype, port.device), attention="device"
    )
    calls = dict(_calls(port, model, plan.tokens))
    cases, roofs = [], {}
    for threads in plan.threads:
        port.backend_module.set_threads(threads)
        roofs[str(threads)] = _roofs(port, plan.dtype)
        seconds = interleave(calls, plan.rounds, progress=progress)
        cases += [{"tokens": n, "threads": threads, "seconds": seconds[n]} for n in plan.tokens]
    return {
        "kind": "roofline",
        "backend": port.name,
        "plan": {**plan.__dict__, "tokens": list(plan.tokens), "threads": list(plan.threads)},
        "provenance": before,
        "roofs": roofs,
        "cases": cases,
    }


def _roofs(port: Port, dtype: str) -> dict[str, float]:
    return {
        "bytes_per_second": port.backend_module.read_bandwidth(port.device),
        "operations_per_second": fastest_product(port, {"float32", dtype}),
    }


def fastest_product(port: Port, kinds: Iterable[str]) -> float:
    """Where a type has no fast product, ports compute in float32: the roof is that of the fastest type.

    A type that is hopeless in a small product is not tried in a large one, which would take minutes.
    """
    size = 2048 if port.device == "cpu" else 8192  # what it takes to keep the device busy
    small = {kind: port.backend_module.product_speed(port.device, kind, size // 8) for kind in kinds}
    hopeful = [kind for kind, speed in small.items() if 4 * speed > max(small.values())]
    return max(port.backend_module.product_speed(port.device, kind, size) for kind in hopeful)


def _calls(port: Port, model: Any, tokens: Iterable[int]):
    """By the number of tokens, what computes that many and forgets them again."""
    runner = port.runner(model)
    cache = runner.create_kv_cache(max(tokens))

    def run(count: int) -> None:
        runner.prefill(prompt_of(count, model.config.vocab_size), 0, cache, sample=False)
        for layer in cache:
            layer.rewind(count)

    for count in tokens:
        yield count, partial(run, count)
