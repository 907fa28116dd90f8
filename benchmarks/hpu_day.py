"""`pdm run bench-latency --hpu-day`: the ten measurements that this course wants from a Gaudi, in an hour.

Each one takes a few ways to do the same thing, in turns. It runs on any device of the torch port, and beside the
imitation of a Gaudi; only a card's times say something about a card. Nothing of it was run on one.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any

from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.workload import prompt_of
from tiny_llm_engine.backends.samples import interleave
from tiny_llm_engine.models.weights.random_weights import SHAPES, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DTYPES
from tiny_llm_extensions.loading import random_network

from .command import RunProgress
from .model_calls import BLOCK, Week3Calls
from .options import check_context, count, counts, option, plain, switch

Samples = dict[str, list[float]]  # seconds of each way
Ways = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class HpuDayPlan:
    """Options of the command."""

    config: str = option("qwen3-0.6b", "a shape; its weights are random", choices=sorted(SHAPES))
    layers: int | None = count(4, "fewer layers than the shape has")
    dtype: str = option("auto", choices=DTYPES)
    input_len: int = count(2048, "tokens of the prompt", least=16)
    chunk_size: tuple[int, ...] = counts((128, 256, 512, 1024, 2048), "tokens of a chunk")
    batch_size: tuple[int, ...] = counts((1, 2, 5, 9, 16), "rows of a decode step")
    output_len: int = count(8, "decode steps of one sample")
    enforce_eager: bool | None = switch(None, "compile nothing, or compile on a CPU too")
    rounds: int = count(5, "samples of each way, taken in turns")


@dataclass
class HpuDay:
    """The ten measurements, by name; each gives the seconds of its ways."""

    plan: HpuDayPlan
    port: Port

    def __post_init__(self):
        self.shapes: dict[str, int] = {}  # compiled ones, by kind of ladder
        self.network = random_network(self.port, shape(self.plan.config, self.plan.layers))[0]
        self.prompt = prompt_of(self.plan.input_len, self.network.config.vocab_size)

    @property
    def parts(self) -> dict[str, Callable[[], Samples]]:
        """In the order in which they are measured and shown."""
        return {
            "ladders": self.ladders,
            "chunks": self.chunks,
            "causality": lambda: self.timed(self.causality()),
            "tiles": lambda: self.timed(self.tiles()),
            "packing": lambda: self.timed(self.packing()),
            "buckets": self.buckets,
            "fp8 pages": self.pages,
            "host gap": self.host_gap,
            "fused": lambda: self.timed(self.fused()),
            "copies": lambda: self.timed(self.copies()),
        }

    def timed(self, ways: Ways, steps: int = 1) -> Samples:
        """Seconds of each way, with all that the device does for it."""

        def finished(run: Callable[[], object]) -> None:
            run()
            self.port.backend_module.synchronize(self.port.device)

        taken = interleave({name: partial(finished, run) for name, run in ways.items()}, self.plan.rounds)
        return {name: [each / steps for each in seconds] for name, seconds in taken.items()}

    def calls(self, **options: Any) -> Week3Calls:
        """An engine for the whole load, warmed up."""
        plan = self.plan
        tokens, rows = plan.input_len + plan.output_len, max(plan.batch_size)
        options = {"enable_prefix_caching": False, **options}
        return Week3Calls(self.port, self.network, plan.enforce_eager, rows, tokens, **options)

    @cached_property
    def engine(self) -> Week3Calls:
        return self.calls()

    # Engines

    def ladders(self) -> Samples:
        """One opening each, with what is compiled: for cold ones PT_HPU_RECIPE_CACHE_CONFIG names an empty folder."""
        found = {}
        for strategy in ("exponential", "linear", "padding-aware"):
            start = perf_counter()
            made = self.calls(bucketing_strategy=strategy)
            found[strategy] = [perf_counter() - start]
            self.shapes[strategy] = made.engine.extensions["shapes"].num_shapes
        return found

    def chunks(self) -> Samples:
        sizes = [size for size in self.plan.chunk_size if size < self.plan.input_len]
        ways: Ways = {f"chunks of {size}": partial(self._in_chunks, size) for size in sizes}
        return self.timed({"whole": partial(self._in_chunks, self.plan.input_len), **ways})

    def _in_chunks(self, size: int) -> None:
        for start in range(0, len(self.prompt), size):
            self.engine._run([self.prompt[start : start + size]], start)

    def buckets(self) -> Samples:
        return {name: times for rows in self.plan.batch_size for name, times in self._decodes(rows).items()}

    def _decodes(self, rows: int) -> Samples:
        self.engine.fill(rows, self.plan.input_len, self.plan.output_len)
        return self.timed({f"{rows} rows": self.engine.decode}, self.plan.output_len)

    def pages(self) -> Samples:
        kinds = {"auto": self.engine, "fp8_e4m3": self.calls(kv_cache_dtype="fp8_e4m3")}
        for each in kinds.values():
            each.fill(max(self.plan.batch_size), self.plan.input_len, self.plan.output_len)
        return self.timed({kind: each.decode for kind, each in kinds.items()}, self.plan.output_len)

    def host_gap(self) -> Samples:
        kinds = {"waits": self.engine, "one step ahead": self.calls(async_scheduling=True)}
        ways: Ways = {name: partial(self._answers, each) for name, each in kinds.items()}
        return self.timed(ways, self.plan.output_len)

    def _answers(self, calls: Week3Calls) -> None:
        """One short prompt per row, and its answer."""
        engine = calls.engine
        params = engine.names.SamplingParams(0.0, max_tokens=self.plan.output_len, ignore_eos=True)
        engine.run([engine.request(None, self.prompt[:8], params) for _ in range(max(self.plan.batch_size))])

    # Attention alone

    @property
    def scale(self) -> float:
        return self.network.config.head_dim**-0.5

    def random(self, *sizes: int) -> Any:
        make = self.port.backend_module.random_normal
        return make(sizes, 1.0, 0.0, self.port.float_dtype, self.port.device)

    def heads(self, tokens: int, rows: int = 1) -> tuple[Any, Any, Any]:
        """Queries, keys and values of prompts."""
        config = self.network.config
        kinds = config.num_attention_heads, *[config.num_key_value_heads] * 2
        query, key, value = (self.random(rows, count, tokens, config.head_dim) for count in kinds)
        return query, key, value

    def causal_bias(self, *lengths: int) -> Any:
        """Of prompts that follow each other in one row."""
        import torch

        T = sum(lengths)
        bias = torch.full(
            (T, T), -math.inf, dtype=self.port.dtype(self.port.float_dtype), device=self.port.device
        )
        start = 0
        for length in lengths:
            own = slice(start, start + length)
            bias[own, own] = bias[own, own].triu(1)
            start += length
        return bias

    def attend(self, parts: tuple[Any, Any, Any], bias: Any = None, **options: Any) -> Callable[[], object]:
        from tiny_llm_engine.arrays.torch import fused

        return partial(fused.fused_attention, *parts, self.scale, bias, bias is None, **options)

    def lengths(self, *lengths: int) -> Any:
        import torch

        return torch.tensor(lengths, dtype=torch.int32, device=self.port.device)

    def causality(self) -> Ways:
        L = self.plan.input_len
        parts = self.heads(L)
        return {
            "bias": self.attend(parts, self.causal_bias(L)),
            "is_causal": self.attend(parts, lengths=self.lengths(L)),
        }

    def tiles(self) -> Ways:
        L = self.plan.input_len
        parts, bias = self.heads(L), self.causal_bias(L)
        size = L * L * bias.element_size()
        return {
            f"{n} {'call' if n == 1 else 'calls'}": self.attend(parts, bias, limit=size // n + 1)
            for n in (1, 2, 4)
        }

    def packing(self) -> Ways:
        L, short = self.plan.input_len, self.plan.input_len // 4
        return {
            "one row": self.attend(self.heads(L + short), self.causal_bias(L, short)),
            "padded": self.attend(self.heads(L, 2), lengths=self.lengths(L, short)),
        }

    def fused(self) -> Ways:
        L = self.plan.input_len
        parts, bias = self.heads(L), self.causal_bias(L)
        return {
            "fused": self.attend(parts, bias),
            "eager": partial(eager_attention, *parts, self.scale, bias),
        }

    def copies(self) -> Ways:
        """The keys and values of all blocks of a prompt, in one layer."""
        config, blocks = self.network.config, -(-self.plan.input_len // BLOCK)
        pages = self.random(2 * blocks, BLOCK, config.num_key_value_heads, config.head_dim)
        host = pages.cpu()
        return {"to the host": pages.cpu, "back": partial(host.to, self.port.device)}


def eager_attention(query: Any, key: Any, value: Any, scale: float, bias: Any) -> Any:
    """Operator by operator, with every score in memory."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    return (query @ key.transpose(-1, -2) * scale + bias).float().softmax(-1).to(value.dtype) @ value


def measure(plan: HpuDayPlan, port: Port, report: RunProgress) -> dict[str, Any]:
    """All ten measurements.

    Raises:
        ValueError: not the torch port, or the prompt is longer than what the model reads.
    """
    if port.name != "torch":
        raise ValueError("--hpu-day measures the torch port: give --backend torch")
    check_context(plan.input_len + plan.output_len, shape(plan.config).max_position_embeddings)
    before, day = provenance(port.device), HpuDay(plan, port)
    samples = dict(_measured(day, report))
    return {
        "kind": "hpu-day",
        "backend": port.name,
        "plan": plain(plan) | {"dtype": port.float_dtype},
        "provenance": before,
        "shapes": day.shapes,
        "samples": samples,
    }


def _measured(day: HpuDay, report: RunProgress) -> Iterator[tuple[str, Samples]]:
    for name, take in day.parts.items():
        report(name, len(day.parts))
        yield name, take()
