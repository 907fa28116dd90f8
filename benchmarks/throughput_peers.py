"""Other engines that answer the same workload on the same random weights."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from tiny_llm_kit.engine.backends import blas
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.trace.shapes import RandomCheckpoint

from .contest import check_peer
from .own_process import OwnProcess

if TYPE_CHECKING:
    from .throughput import Generates, ThroughputPlan


def peers(
    name: str, plan: ThroughputPlan, port: Port, checkpoint: RandomCheckpoint | None, room: int
) -> dict[str, Generates]:
    """Another engine, in each way to use it that its users would try.

    Args:
        name: one of `contest.PEERS`.
        checkpoint: whose weights are all drawn already; None if the weights are not random.
        room: tokens of the longest request.

    Raises:
        ValueError: the weights are not random, or the peer cannot run here.
    """
    check_peer(name, port)
    if checkpoint is None:
        raise ValueError(f"--compare {name} shares random weights: add --random-weights, or --config NAME")
    return MAKERS[name](plan, port, checkpoint, room)


def _transformers(
    plan: ThroughputPlan, port: Port, checkpoint: RandomCheckpoint, room: int
) -> dict[str, Generates]:
    from .transformers_peer import TransformersBatch, TransformersContinuous, shared_model

    model, rows = shared_model(checkpoint), plan.max_num_seqs
    found = {
        "transformers, dynamic": TransformersBatch(model, rows, "dynamic"),
        "transformers, static": TransformersBatch(model, rows, "static"),
    }
    if can_batch_continuously(port):
        found["transformers, continuous"] = TransformersContinuous(checkpoint, rows, room)
    return found


def _llama_cpp(
    plan: ThroughputPlan, port: Port, checkpoint: RandomCheckpoint, room: int
) -> dict[str, Generates]:
    from .llama_cpp_peer import own_llama_cpp

    return own_llama_cpp(checkpoint, plan.max_num_seqs, room, plan.threads, plan.quantization)


def _mlx_lm(
    plan: ThroughputPlan, port: Port, checkpoint: RandomCheckpoint, room: int
) -> dict[str, Generates]:
    from .mlx_lm_peer import MlxLmBatch

    return {"mlx-lm": MlxLmBatch(checkpoint, plan.max_num_seqs)}


def _own_mlx_lm(
    plan: ThroughputPlan, port: Port, checkpoint: RandomCheckpoint, room: int
) -> dict[str, Generates]:
    from .mlx_lm_peer import own_mlx_lm

    shape = checkpoint.config, checkpoint.dtype, port.device, plan.max_num_seqs
    notes = "as pip installs it: in a process of its own, with the BLAS of MLX's wheel"
    return {"mlx-lm-own-blas": OwnProcess(own_mlx_lm, *shape, environment={blas.SWITCH: "0"}, notes=notes)}


MAKERS = {
    "transformers": _transformers,
    "llama.cpp": _llama_cpp,
    "mlx-lm": _mlx_lm,
    "mlx-lm-own-blas": _own_mlx_lm,
}


def can_batch_continuously(port: Port) -> bool:
    """On a CPU, transformers asks psutil how much memory there is, and has none to use without it."""
    return port.device != "cpu" or find_spec("psutil") is not None


def left_out(plan: ThroughputPlan, port: Port) -> list[str]:
    """What is missing from the comparison, and why."""
    is_missing = "transformers" in plan.compare and not can_batch_continuously(port)
    return [
        "transformers continuous batching: on a CPU it needs psutil; install it beside torch"
    ] * is_missing
