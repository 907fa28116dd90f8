"""One benchmark: which contestants, which cases, how many threads; and the figures that come out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from tiny_llm_kit.engine.kv_budget import kv_bytes_per_token
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.model.quantization import QUANTIZATIONS, WeightQuantizer
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.samples import interleave
from tiny_llm_kit.trace.shapes import SHAPES, QuantizedCheckpoint, RandomCheckpoint, shape

from .options import COUNT, check_context, option, threads_option
from .ours import Ours

OURS = "tiny-llm"


@dataclass(frozen=True)
class Peer:
    """What a peer needs.

    Args:
        port: whose weights it reads.
        modules: what it imports.
        installing: how they are installed.
        device: the only one that it runs on; None is any.
    """

    port: str
    modules: tuple[str, ...]
    installing: str
    device: str | None = None


PIP = "run `python -m pip install {}` in this project's environment"
MLX_LM = Peer("mlx", ("mlx_lm",), PIP.format("--no-deps mlx-lm"))
PEERS = {
    "transformers": Peer("torch", ("transformers",), "run `pdm install`"),
    "llama.cpp": Peer("torch", ("llama_cpp", "gguf"), PIP.format("llama-cpp-python gguf"), "cpu"),
    "mlx-lm": MLX_LM,
    "mlx-lm-own-blas": MLX_LM,
}


class Contestant(Protocol):
    """What is timed. Every call returns when the host has read its tokens."""

    def prefill(self, tokens: list[int]) -> None: ...

    def fill(self, rows: int, context: int, steps: int) -> None: ...

    def decode(self) -> None: ...


@dataclass(frozen=True)
class ContestPlan:
    """What to measure; `rows` and `steps` of decode only."""

    config: str = option("qwen3-0.6b", "a shape; its weights are random", choices=sorted(SHAPES))
    layers: int | None = option(None, "fewer layers than the shape has, for slow machines", **COUNT)
    dtype: str = option("bfloat16", choices=["float32", "bfloat16", "float16"])
    attention: str = option("device", "of our model: simple, tiled or device")
    quantize: str | None = option(
        None, "adds our engine with quantised weights", choices=sorted(QUANTIZATIONS)
    )
    compare: str | None = option(None, "a peer on the same weights", choices=["transformers", "mlx-lm"])
    threads: tuple[int, ...] = threads_option()
    rounds: int = option(7, "samples of each contestant, taken in turns", **COUNT)
    steps: int = 1  # tokens of a sample


def contestants(plan: ContestPlan, port: Port) -> dict[str, Contestant]:
    """Our engine and its peers, on one set of weights."""
    checkpoint = RandomCheckpoint(
        shape(plan.config, plan.layers), port.backend_module, plan.dtype, port.device
    )
    cast: dict[str, Contestant] = {
        OURS: Ours(port, port.Qwen3ModelWeek2(checkpoint, attention=plan.attention))
    }
    if plan.quantize:
        quantized = QuantizedCheckpoint(checkpoint, WeightQuantizer(port, QUANTIZATIONS[plan.quantize]))
        model = port.Qwen3ModelWeek2(quantized, attention=plan.attention)
        cast[f"{OURS} {plan.quantize}"] = Ours(port, model)
    return {**cast, **_peers(plan.compare, port, checkpoint)}


def check_peer(name: str, port: Port) -> None:
    """Whether a peer can run here.

    Raises:
        ValueError: it runs on the other port or another device, or is not installed; the message says what to do.
    """
    peer = PEERS[name]
    if peer.port != port.name:
        raise ValueError(f"--compare {name} needs the {peer.port} port: choose --backend {peer.port}")
    if peer.device and peer.device != port.device:
        raise ValueError(f"--compare {name} runs on one device alone: add --device {peer.device}")
    if None in map(find_spec, peer.modules):
        raise ValueError(f"--compare {name}: not installed; {peer.installing}")


def _peers(compare: str | None, port: Port, checkpoint: RandomCheckpoint) -> dict[str, Contestant]:
    if compare:
        check_peer(compare, port)
    if compare == "transformers":
        from .transformers_peer import Transformers

        static = Transformers(checkpoint, "static")
        dynamic = Transformers(checkpoint, "dynamic", static.model)
        return {"transformers static": static, "transformers dynamic": dynamic}
    if compare == "mlx-lm":
        from .mlx_lm_peer import MlxLm

        return {"mlx-lm": MlxLm(checkpoint)}
    return {}


def measure_decode(
    plan: ContestPlan, port: Port, rows: Sequence[int], contexts: Sequence[int], progress: Callable
) -> dict[str, Any]:
    """Seconds a step of every contestant, for every number of rows, context and threads.

    Raises:
        ValueError: a context is longer than what the model reads, or a peer is not installed.
    """
    check_context(max(contexts) + plan.steps, shape(plan.config).max_position_embeddings)
    before, cast = provenance(port.device), contestants(plan, port)
    cases = [(r, c) for r in rows for c in contexts]

    def prepare(case: tuple[int, int]) -> dict[str, Callable]:
        for contestant in cast.values():
            contestant.fill(*case, plan.steps)
        return {name: contestant.decode for name, contestant in cast.items()}

    measured = [
        {"rows": case[0], "context": case[1], "threads": threads, "seconds": _per(plan.steps, seconds)}
        for case, threads, seconds in _measure(plan, port, cases, prepare, progress)
    ]
    return _result("decode", plan, port, cast, measured, before)


def measure_prefill(
    plan: ContestPlan, port: Port, lengths: Sequence[int], progress: Callable
) -> dict[str, Any]:
    """Seconds of a prompt of every length, for every contestant and number of threads.

    Raises:
        ValueError: a prompt is longer than what the model reads, or a peer is not installed.
    """
    check_context(max(lengths), shape(plan.config).max_position_embeddings)
    before, cast = provenance(port.device), contestants(plan, port)
    vocabulary = shape(plan.config).vocab_size

    def prepare(length: int) -> dict[str, Callable]:
        prompt = [7919 * position % vocabulary for position in range(length)]
        return {name: lambda c=contestant: c.prefill(prompt) for name, contestant in cast.items()}

    measured = [
        {"rows": 1, "context": length, "threads": threads, "seconds": seconds}
        for length, threads, seconds in _measure(plan, port, list(lengths), prepare, progress)
    ]
    return _result("prefill", plan, port, cast, measured, before)


def _measure(plan: ContestPlan, port: Port, cases: list, prepare: Callable, progress: Callable):
    """(case, threads, seconds by contestant); a case is prepared once for all numbers of threads."""
    for case in progress(cases):
        candidates = prepare(case)
        for threads in plan.threads:
            port.backend_module.set_threads(threads)
            yield case, threads, interleave(candidates, plan.rounds, progress=iter)


def _per(steps: int, seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [sample / steps for sample in samples] for name, samples in seconds.items()}


def _result(
    kind: str, plan: ContestPlan, port: Port, cast: dict, cases: list[dict], before: dict
) -> dict[str, Any]:
    bandwidth = {}
    for threads in plan.threads:
        port.backend_module.set_threads(threads)
        bandwidth[str(threads)] = port.backend_module.read_bandwidth(port.device)
    return {
        "kind": kind,
        "backend": port.name,
        "plan": {**plan.__dict__, "threads": list(plan.threads)},
        "provenance": before,
        "read_bandwidth_bytes_per_second": bandwidth,
        "weight_bytes": {name: weight_bytes(c.model) for name, c in cast.items() if isinstance(c, Ours)},
        "kv_bytes_per_token": kv_bytes_per_token(cast[OURS].model.config, plan.dtype),
        "cases": cases,
    }


def weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads; of an untied embedding table only one row, which is neglected."""
    table = model.embedding.weight
    head = table if model.w_lm_head is None else model.w_lm_head
    names = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
    return head.nbytes + sum(getattr(layer, name).nbytes for layer in model.layers for name in names)
