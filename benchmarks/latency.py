"""`pdm run bench-latency`: seconds of single calls of a model, compared with baselines on the same weights.

Three phases are timed. `decode` computes one token for each row of a batch, `prefill` a whole prompt and its next
token. `chunk` computes tokens of a prompt without the head, and is compared with the two limits of the machine: what
memory delivers, and what the fastest large product computes (the roofline of Williams, Waterman and Patterson, 2009).
`--hpu-day` measures ten decisions on a Gaudi instead; `--hpu-day --help` has its options.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.workload import prompt_of
from tiny_llm_engine.backends.samples import interleave
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.models.quantization import QUANTIZATIONS, WeightQuantizer
from tiny_llm_engine.models.weights.random_weights import SHAPES, QuantizedCheckpoint, RandomCheckpoint, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DTYPES
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.profiling.kv_budget import kv_bytes_per_token
from tiny_llm_extensions.profiling.quantized_choice import activation_choice

from . import hpu_day
from .baselines import module_of
from .command import RunProgress, carry_out, port_of
from .model_calls import Week2Calls, Week3Calls
from .options import bench_parser, check_context, count, counts, option, plain, plan_of, switch
from .report import OURS

PHASES = ("decode", "prefill", "chunk")


@dataclass(frozen=True)
class LatencyPlan:
    """Options of the command. Names are those of vLLM's `bench latency` where they mean the same."""

    config: str = option("qwen3-0.6b", "a shape; its weights are random", choices=sorted(SHAPES))
    layers: int | None = count(None, "fewer layers than the shape has, for slow machines")
    dtype: str = option("auto", choices=DTYPES)
    phase: tuple[str, ...] = option(
        ("decode", "prefill"), "decode steps, prompts, or chunks without the head", choices=PHASES, nargs="+"
    )
    batch_size: tuple[int, ...] = counts((1, 4, 16), "rows of a decode step")
    input_len: tuple[int, ...] = counts(
        (128, 1024), "tokens of a prompt, or in the cache before decode steps"
    )
    output_len: int = count(4, "decode steps of one sample")
    attention: str = option("device", "of our model: simple, tiled or device")
    quantization: str | None = option(
        None, "adds our engine with quantised weights", choices=sorted(QUANTIZATIONS)
    )
    activations: str = option(
        "float", "of products with quantised weights, on a CPU", choices=["int8", "float"]
    )
    enforce_eager: bool | None = switch(None, "adds Week 3's engine, as it is written or compiled")
    compare: tuple[str, ...] = option(
        (), "baselines on the same weights", choices=["transformers", "mlx-lm"], nargs="+", metavar="WHAT"
    )
    threads: tuple[int, ...] = counts(
        tuple(sorted({1, os.cpu_count() or 1})), "each is measured; the best is shown"
    )
    rounds: int = count(7, "samples of each engine, taken in turns")

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(self.input_len) + (self.output_len if "decode" in self.phase else 0)

    @property
    def needs(self) -> Day:
        """The last day whose code is measured."""
        if self.enforce_eager is not None:
            return Day(3, 4)
        return Day(2, 6) if "decode" in self.phase else Day(2, 5)


class Caller(Protocol):
    """An engine whose calls are timed. Every call returns when the host has read its tokens."""

    def prefill(self, tokens: list[int]) -> None: ...

    def fill(self, rows: int, context: int, steps: int) -> None: ...

    def decode(self) -> None: ...


@dataclass(frozen=True)
class Case:
    """A call that is timed: `rows` rows after `context` tokens, or a prompt or chunk of `context` tokens."""

    phase: str
    rows: int
    context: int


def engines(plan: LatencyPlan, port: Port) -> dict[str, Caller]:
    """Our engine and what it is compared with, on one set of weights.

    Raises:
        ValueError: a baseline cannot run here.
    """
    checkpoint = RandomCheckpoint(
        shape(plan.config, plan.layers), port.backend_module, port.float_dtype, port.device
    )
    found: dict[str, Caller] = {OURS: _week2(plan, port, checkpoint)}
    if plan.quantization:
        rounded = activation_choice(port, plan.activations)
        quantizer = WeightQuantizer(port, QUANTIZATIONS[plan.quantization], rounded)
        found[f"{OURS} {plan.quantization}"] = _week2(plan, port, QuantizedCheckpoint(checkpoint, quantizer))
    if plan.enforce_eager is not None:
        name = f"{OURS} packed" if plan.enforce_eager else f"{OURS} compiled"
        network = port.Qwen3ModelWeek3(checkpoint, attention="device")
        given_of(port).use_packed_kernels(network)
        found[name] = Week3Calls(port, network, plan.enforce_eager, max(plan.batch_size), plan.longest + 1)
    for name in plan.compare:
        found |= module_of(name, port).callers(checkpoint)
    return found


def _week2(plan: LatencyPlan, port: Port, checkpoint: Any) -> Week2Calls:
    model = port.Qwen3ModelWeek2(checkpoint, attention=plan.attention)
    given_of(port).use_products(model, "plain")
    return Week2Calls(port, model)


def measure(plan: LatencyPlan, port: Port, report: RunProgress) -> dict[str, Any]:
    """Measure every call of every engine with every number of threads, and the two roofs of each number.

    Raises:
        ValueError: a call is longer than what the model reads, or a baseline cannot run here.
    """
    check_context(plan.longest, shape(plan.config).max_position_embeddings)
    before, cast = provenance(port.device), engines(plan, port)
    groups, cases = [(phase, lengths) for phase in plan.phase for lengths in _groups(plan, phase)], []
    for phase, group in groups:
        calls = dict(_calls(plan, cast, group))  # prepared once for all numbers of threads
        for threads in plan.threads:
            report(f"{phase}, threads: {threads}", len(groups) * len(plan.threads))
            port.backend_module.set_threads(threads)
            cases += _cases(
                interleave(calls, plan.rounds), threads, plan.output_len if phase == "decode" else 1
            )
    ours = {name: each.model for name, each in cast.items() if isinstance(each, Week2Calls)}
    return {
        "kind": "latency",
        "backend": port.name,
        "plan": plain(plan) | {"dtype": port.float_dtype},
        "provenance": before,
        "roofs": {str(threads): roofs(port, threads) for threads in plan.threads},
        "weight_bytes": {name: weight_bytes(model) for name, model in ours.items()},
        "kv_bytes_per_token": kv_bytes_per_token(ours[OURS].config, port.float_dtype),
        "cases": cases,
    }


def _groups(plan: LatencyPlan, phase: str) -> list[list[Case]]:
    """The cases that are timed in turns: engines of one case, or all chunks, which are compared with each other."""
    if phase == "decode":
        return [[Case(phase, rows, context)] for rows in plan.batch_size for context in plan.input_len]
    cases = [Case(phase, 1, length) for length in plan.input_len]
    return [cases] if phase == "chunk" else [[case] for case in cases]


def _calls(
    plan: LatencyPlan, cast: Mapping[str, Caller], group: Iterable[Case]
) -> Iterator[tuple[tuple[Case, str], Callable[[], object]]]:
    """The calls of each case, by case and name of the engine. A baseline has no chunks."""
    for case in group:
        prompt = prompt_of(case.context, shape(plan.config).vocab_size)
        for name, engine in cast.items():
            if case.phase == "decode":
                engine.fill(case.rows, case.context, plan.output_len)
                yield (case, name), engine.decode
            elif case.phase == "prefill":
                yield (case, name), partial(engine.prefill, prompt)
            elif isinstance(engine, Week2Calls) and name == OURS:
                yield (case, name), partial(engine.prefill, prompt, sample=False)


def _cases(seconds: Mapping[tuple[Case, str], list[float]], threads: int, steps: int) -> list[dict[str, Any]]:
    """The samples by case; those of decode per step."""
    found: dict[Case, dict[str, list[float]]] = {}
    for (case, name), samples in seconds.items():
        found.setdefault(case, {})[name] = [sample / steps for sample in samples]
    return [{**vars(case), "threads": threads, "seconds": samples} for case, samples in found.items()]


def roofs(port: Port, threads: int) -> dict[str, float]:
    """The two limits of this machine with a number of threads."""
    port.backend_module.set_threads(threads)
    return {
        "bytes_per_second": port.backend_module.read_bandwidth(port.device),
        "operations_per_second": fastest_product(port, {"float32", port.float_dtype}),
    }


def fastest_product(port: Port, kinds: Iterable[str]) -> float:
    """Operations per second of the fastest type: where one has no fast product, ports compute in float32.

    A type that is hopeless in a small product is not tried in a large one, which would take minutes.
    """
    size = 2048 if port.device == "cpu" else 8192  # what it takes to keep the device busy
    small = {kind: port.backend_module.product_speed(port.device, kind, size // 8) for kind in kinds}
    hopeful = [kind for kind, speed in small.items() if 4 * speed > max(small.values())]
    return max(port.backend_module.product_speed(port.device, kind, size) for kind in hopeful)


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads; of an untied embedding table only one row, which is neglected."""
    total = model.w_lm_head.nbytes
    for layer in model.layers:
        mlp = layer.mlp
        matrices = layer.wq, layer.wk, layer.wv, layer.wo, mlp.w_gate, mlp.w_up, mlp.w_down
        total += sum(each.nbytes for each in matrices)
    return total


def parser(argv: list[str] | None) -> argparse.ArgumentParser:
    """The options of what is measured."""
    chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    chooser.add_argument("--hpu-day", action="store_true", help="ten measurements for a Gaudi")
    plan = hpu_day.HpuDayPlan if chooser.parse_known_args(argv)[0].hpu_day else LatencyPlan
    return bench_parser("latency", hpu_day.__doc__ if plan is not LatencyPlan else __doc__, plan, chooser)


@command
def main(argv: list[str] | None = None) -> None:
    options = parser(argv).parse_args(argv)
    if options.hpu_day:
        day = plan_of(hpu_day.HpuDayPlan, options)
        with ends_at_a_blank(Day(4, 5)):
            carry_out("latency", options, argv, lambda report: hpu_day.measure(day, port_of(options), report))
        return
    plan = plan_of(LatencyPlan, options)
    with ends_at_a_blank(plan.needs):
        carry_out("latency", options, argv, lambda report: measure(plan, port_of(options), report))


if __name__ == "__main__":
    main()
