"""The models that `eval-tiny-model` scores, as functions from ids to logits."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np

from tiny_llm_engine.loading import load_checkpoint, mlp_options
from tiny_llm_engine.models.hub import find_model, model_path
from tiny_llm_engine.models.quantization import QUANTIZATIONS, WeightQuantizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import SOLUTIONS
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.profiling.quantized_choice import activation_choice

from .evaluation import Logits

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ORACLE = "transformers"


def make_logits(
    solution: str,
    backend: str,
    dtype: str,
    model: str,
    quantize: str | None = None,
    activations: str = "float",
) -> Logits:
    """The ids-to-logits function of one run; the backend may be `ORACLE`."""
    if backend == ORACLE:
        return oracle_logits(dtype, model)
    if quantize or has_experts(model):
        return week_2_logits(solution, backend, dtype, model, QUANTIZATIONS.get(quantize or ""), activations)
    return solution_logits(solution, backend, dtype, model)


def has_experts(model: str) -> bool:
    """Whether a model is a mixture of experts, which the Week 1 model does not compute."""
    return find_model(model).config().mixture is not None


def solution_logits(solution: str, backend: str, dtype: str, model: str) -> Logits:
    """The Week 1 model of a solution as a function from ids (B, L) to logits (B, L, V) in NumPy."""
    port = Port(solution, backend, dtype=DTYPES[dtype])
    checkpoint = load_checkpoint(model, backend=backend, device=port.device, dtype=port.float_dtype)
    network = port.Qwen3ModelWeek1(checkpoint)
    return lambda ids: port.numpy(network(port.array(ids)))


def week_2_logits(
    solution: str, backend: str, dtype: str, model: str, bits: int | None, activations: str = "float"
) -> Logits:
    """The same function from the Week 2 model; `bits` quantise its layers' weights at load."""
    port = Port(solution, backend, dtype=DTYPES[dtype])
    quantizer = WeightQuantizer(port, bits, activation_choice(port, activations))
    checkpoint = load_checkpoint(model, backend, port.device, port.float_dtype, quantizer)
    network = port.Qwen3ModelWeek2(checkpoint, **mlp_options(port, checkpoint.config))
    given_of(port).use_products(network, "plain")

    def logits(ids: list[list[int]]) -> np.ndarray:
        return port.numpy(network(port.array(ids), 0, network.create_kv_cache(len(ids[0]))))

    return logits


def oracle_logits(dtype: str, model: str) -> Logits:
    """The same function from Hugging Face transformers."""
    from transformers import AutoModelForCausalLM

    from tiny_llm_engine.backends import backend_torch

    network = AutoModelForCausalLM.from_pretrained(
        model_path(model), dtype=backend_torch.DTYPES[DTYPES[dtype]]
    )
    network.eval().requires_grad_(False)
    return lambda ids: backend_torch.to_numpy(network(backend_torch.to_array(ids), use_cache=False).logits)


@contextmanager
def broken_mask(solution: str, backend: str) -> Iterator[None]:
    """Replace `causal_mask` in every module of a solution's port by one that forgets the first half of the text."""
    package = f"{SOLUTIONS[solution]}.{backend}_backend"
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    modules = [module for module in modules if hasattr(module, "causal_mask")]
    right = modules[0].causal_mask

    def wrong(L: int, S: int, *args, **kwargs):
        mask = right(L, S, *args, **kwargs)
        mask[L // 2 :, : S // 2] = -float("inf")
        return mask

    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, "causal_mask", wrong))
        yield
