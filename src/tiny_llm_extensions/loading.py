"""Loads a model with the kernels of this machine put on it, which the engine's own loading leaves out."""

from dataclasses import replace
from os import PathLike
from typing import Any

from tiny_llm_engine.chunked_prefill.model_runner import ModelRunner
from tiny_llm_engine.loading import AS_STORED, ENGINES, Loading, read_network
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.models.weights.random_weights import QuantizedCheckpoint, RandomCheckpoint
from tiny_llm_engine.solutions.port import Port

from .given import given_of


def load(
    model: str | PathLike[str] = "tiny-qwen3",
    *,
    solution: str = "ref",
    backend: str,
    device: str = "auto",
    dtype: str = "auto",
    loader: str = "auto",
    quantize: str | None = None,
    keep_quantized: bool = True,
    attention: str = "device",
    chunk_mask: bool = True,
    max_model_len: int | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[ModelRunner, Tokenizer]:
    """Load a runner and a tokenizer, which schedulers, `Request` and `batch_generate` take.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id; see `hub.find_model`.
        solution: the code that runs: "ref" or "tiny_llm".
        backend: "mlx" or "torch".
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        loader: "week2"; "auto" takes the newest one.
        quantize, keep_quantized, attention, max_model_len: see `Loading`.
        chunk_mask: whether the solution's own function makes the mask of a prompt's chunks; otherwise the cache does.
        seed: seed of the random draws.
        options: options of `ModelRunner`.

    Raises:
        CheckpointError: the model's files are missing or unusable.
        ValueError: this machine does not have the device, or the engine of that week has no cache.
    """
    fitting = [name for name, engine in ENGINES.items() if engine.has_caches and not engine.is_packed]
    loader = fitting[-1] if loader == "auto" else loader
    if loader not in fitting:
        with_caches = ", ".join(fitting)
        raise ValueError(f"loader {loader!r}: a runner needs an engine with caches: {with_caches}")
    port = Port(solution, backend, device, dtype)
    port.seed(seed)
    plan = Loading(quantize, keep_quantized=keep_quantized, attention=attention, max_model_len=max_model_len)
    network, tokenizer = load_network(port, model, loader, plan)
    given_of(port).use_products(network, "plain")
    if chunk_mask:
        options = {"chunk_mask": port.chunked_attention_mask, **options}
    return port.runner(network, **options), tokenizer


def load_network(
    port: Port, model: str | PathLike[str], loader: str, plan: Loading = AS_STORED
) -> tuple[Any, Tokenizer]:
    """`read_network`, with the kernels of packed batches."""
    network, tokenizer = read_network(port, model, loader, plan)
    return _with_kernels(port, network, plan) if ENGINES[loader].is_packed else network, tokenizer


def random_network(
    port: Port, config: ModelConfig, plan: Loading = AS_STORED
) -> tuple[Any, RandomCheckpoint]:
    """Week 3's network of this shape with random weights, and where they come from."""
    part, config = plan.part(port), replace(config, max_model_len=plan.max_model_len)
    checkpoint = RandomCheckpoint(
        config if part is None else part.config(config), port.backend_module, port.float_dtype, port.device
    )
    weights = (
        QuantizedCheckpoint(checkpoint, plan.quantizer(port, plan.quantize)) if plan.quantize else checkpoint
    )
    return _with_kernels(port, plan.network(port, "week3", weights), plan), checkpoint


def _with_kernels(port: Port, network: Any, plan: Loading) -> Any:
    if plan.attention == "device":
        given_of(port).use_packed_kernels(network)
    return network
