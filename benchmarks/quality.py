"""`pdm run bench-quality`: what rounded weights and activations change in the next-token probabilities of a model.

Every way to run the model reads the same English text, and is compared with float32 at every token: perplexity, the
most probable token, and the log-probabilities of float32's five most probable ones.
"""

import hashlib
import io
import math
import os
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.loading import Loading, load_checkpoint, mlp_options
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import command
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.models.weights.random_weights import QuantizedCheckpoint
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import model_argument
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.profiling.quantized_choice import activation_choice

from .baselines import file_of, module_of
from .command import RunProgress, carry_out, port_of
from .options import bench_parser, count, option, plain, plan_of

# Prose that changes only with the shipped model, which learned from it.
TEXTS = tuple(map(str, sorted((ROOT / "models" / "train" / "corpus").glob("*.md"))))
BEST = 5  # tokens whose log-probabilities are compared
BLOCK = 128  # tokens of a KV block
REFERENCE = "float32"


class Way(NamedTuple):
    """A way to run the model: type of activations, bits of the layers' weights (None: plain), rounding, pages."""

    dtype: str
    bits: int | None = None
    activations: str | None = None
    kv_cache_dtype: str = "auto"


WAYS = {
    REFERENCE: Way("float32"),
    "bf16": Way("bfloat16"),
    "kv-int8": Way("float32", kv_cache_dtype="int8"),
    "kv-fp8": Way("float32", kv_cache_dtype="fp8_e4m3"),
    "4bit": Way("float32", 4, "float"),
    "4bit-auto": Way("auto", 4, "float"),
    "4bit-int16": Way("float32", 4, "int16"),
    "4bit-int8": Way("float32", 4, "int8"),
    "4bit-bf16": Way("bfloat16", 4, "float"),
    "4bit-bf16-int16": Way("bfloat16", 4, "int16"),
    "4bit-bf16-int8": Way("bfloat16", 4, "int8"),
    "8bit": Way("float32", 8, "float"),
    "8bit-int16": Way("float32", 8, "int16"),
    "8bit-int8": Way("float32", 8, "int8"),
    "8bit-bf16-int8": Way("bfloat16", 8, "int8"),
}


@dataclass(frozen=True)
class QualityPlan:
    """Options of the command."""

    model: str = option("smollm2", "a shipped name, a folder or a file", type=model_argument)
    text: tuple[str, ...] = option(
        TEXTS, "text files; default: what the shipped model learned from", nargs="+"
    )
    tokens: int = count(4000, "of the text")
    window: int = count(500, "tokens that are read as one text, and in one step")
    ways: tuple[str, ...] = option(
        tuple(WAYS), "beside float32", choices=list(WAYS), nargs="+", metavar="WAY"
    )
    compare: tuple[str, ...] = option((), "a baseline on the same file", choices=["xllamacpp"], nargs="+")
    every: int = count(20, "tokens from one position to the next at which a baseline is asked")
    threads: int = count(os.cpu_count() or 1)


class Reading(NamedTuple):
    """What one way says about N tokens, each after those before it in its window."""

    tokens: np.ndarray  # (N,) log-probability of the token that the text has
    top: np.ndarray  # (N, BEST) log-probabilities of the reference's most probable tokens
    best: np.ndarray  # (N,) the most probable token

    def at(self, rows: Any) -> "Reading":
        """The same of some of the tokens."""
        return Reading(*(each[rows] for each in self))


def joined(parts: Iterable[Reading]) -> Reading:
    """One reading after the other."""
    return Reading(*map(np.concatenate, zip(*parts, strict=True)))


def reading_of(logits: np.ndarray, following: Sequence[int], top: np.ndarray) -> Reading:
    """Read N rows of logits (N, V); `following` are the text's next tokens, `top` (N, BEST) the reference's best."""
    exact = logits.astype(np.float64)
    exact -= exact.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    return Reading(
        exact[range(len(following)), following], np.take_along_axis(exact, top, -1), exact.argmax(-1)
    )


def best_of(logits: np.ndarray) -> np.ndarray:
    """The `BEST` most probable tokens of each row, in any order: (N, BEST)."""
    return np.argpartition(-logits, BEST, -1)[:, :BEST]


def figures(reading: Reading, reference: Reading) -> dict[str, float]:
    """Perplexity, its change in per cent, agreement of the best token in per cent, and |Δ log p| of the best five."""
    apart = np.abs(reading.top - reference.top)
    change = math.exp((reference.tokens - reading.tokens).mean()) - 1
    return {
        "tokens": len(reading.tokens),
        "perplexity": math.exp(-reading.tokens.mean()),
        "perplexity_change": 100 * change,
        "same_best": 100 * float((reading.best == reference.best).mean()),
        "mean_difference": float(apart.mean()),
        "largest_difference": float(apart.max()),
    }


def network_of(port: Port, model: str, way: Way) -> Any:
    """The network of a way. Weights that are stored with its bits are taken as they are; others are rounded here."""
    rounded = activation_choice(port, way.activations)
    weights: Any = load_checkpoint(model, port.name, port.device, port.float_dtype)
    if way.bits is not None:
        stored = weights.config.quantization
        if stored is not None and stored.bits == way.bits:
            return load_network(port, model, "week3", Loading(rounded=rounded))[0]
        weights = QuantizedCheckpoint(weights, WeightQuantizer(port, way.bits, rounded))
    return port.Qwen3ModelWeek3(weights, attention="device", **mlp_options(port, weights.config))


def logits_of(engine: LLMEngine, ids: Sequence[int]) -> np.ndarray:
    """The logits of every token but the last one, (rows, V), computed in one step; block 0 has the first tokens, …"""
    found, rows = [], range(len(ids) - 1)
    engine.runner.on_logits = lambda _, logits: found.append(logits)
    batch = engine.names.PackedBatch(
        token_ids=list(ids[:-1]),
        positions=list(rows),
        slots=list(rows),
        query_start=[0, len(rows)],
        context_lens=[0],
        block_tables=[list(range(engine.allocator.num_blocks))],
        sample_rows=list(rows),
        sampling=[engine.names.SamplingParams()] * len(rows),
    )
    engine.runner.run(batch)
    return found.pop()


def read(
    port: Port, plan: QualityPlan, windows: Sequence[Sequence[int]], way: Way, top: list[np.ndarray]
) -> Reading:
    """Read all windows in one way. `top` has the best tokens of each; if it is empty, this way fills it."""
    is_reference, parts = not top, []
    with redirect_stderr(io.StringIO()):  # what each load says of its memory
        network = network_of(port, plan.model, way)
    options: dict[str, Any] = {
        "max_model_len": plan.window,
        "num_blocks": -(-plan.window // BLOCK),
        "block_size": BLOCK,
        "kv_cache_dtype": way.kv_cache_dtype,
    }
    with LLM.of(port, network, EndlessTokenizer(), max_num_seqs=1, enforce_eager=True, **options) as llm:
        port.backend_module.set_threads(plan.threads)
        for number, ids in enumerate(windows):
            logits = logits_of(llm.engine, ids)
            if is_reference:
                top.append(best_of(logits))
            parts.append(reading_of(logits, ids[1:], top[number]))
    return joined(parts)


def asked(
    model: Any, windows: Sequence[Sequence[int]], every: int, top: Sequence[np.ndarray], reference: Reading
) -> dict[str, float]:
    """The figures of a baseline that answers one prompt at a time: of every `every`-th token, beside ours there."""
    places = [
        (ids, at, best)
        for ids, of_window in zip(windows, top, strict=True)
        for at, best in enumerate(of_window, 1)
    ]
    rows = range(every - 1, len(places), every)
    chosen = [places[row] for row in rows]
    parts = [
        reading_of(model.log_probabilities(ids[:at])[None], [ids[at]], best[None]) for ids, at, best in chosen
    ]
    return figures(joined(parts), reference.at(rows))


def prose(files: Iterable[str]) -> str:
    """The sentences of Markdown files, without headings and lists."""
    lines = [line for file in files for line in Path(file).read_text(encoding="utf-8").splitlines()]
    return "\n\n".join(line for line in lines if line and line[0] not in "#-{")


def measure(plan: QualityPlan, port: Port, report: RunProgress) -> dict[str, Any]:
    """Read the text in every way, float32 first; a way that does not run here is left out, with the reason.

    Raises:
        ValueError: the text is too short, or a baseline cannot run here.
    """
    before, solution = provenance(port.device), port.solution.__name__.partition(".")[0]
    text = prose(plan.text)
    ids = load_tokenizer(plan.model).encode(text)[: plan.tokens]
    if len(ids) < plan.tokens:
        raise ValueError(f"--tokens {plan.tokens}: the text has {len(ids):,}; ask for fewer")
    windows = [ids[start : start + plan.window] for start in range(0, len(ids), plan.window)]
    top: list[np.ndarray] = []
    readings, left_out = {}, []
    for name in dict.fromkeys((REFERENCE, *plan.ways)):
        report(name)
        try:
            of_way = Port(solution, port.name, port.device, WAYS[name].dtype)
            readings[name] = read(of_way, plan, windows, WAYS[name], top)
        except ValueError as error:
            left_out.append(f"{name}: {error}")
    results = {name: figures(reading, readings[REFERENCE]) for name, reading in readings.items()}
    for name in plan.compare:
        report(name)
        model = module_of(name, port).Server(str(file_of(plan.model)), 1, plan.window, plan.threads)
        results[name] = asked(model, windows, plan.every, top, readings[REFERENCE])
    return {
        "kind": "quality",
        "backend": port.name,
        "plan": plain(plan) | {"text": [Path(file).name for file in plan.text]},
        "provenance": before,
        "text_sha256": hashlib.sha256(text.encode()).hexdigest(),
        "left_out": left_out,
        "results": results,
    }


@command
def main(argv: list[str] | None = None) -> None:
    options = bench_parser("quality", __doc__, QualityPlan).parse_args(argv)
    options.dtype = WAYS[REFERENCE].dtype
    with ends_at_a_blank(needs=Day(3, 3)):
        plan = plan_of(QualityPlan, options)
        carry_out("quality", options, argv, lambda report: measure(plan, port_of(options), report))


if __name__ == "__main__":
    main()
