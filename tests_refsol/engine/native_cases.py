"""Small models of native layers, on either port, and steps of decodes and of chunks of them."""

import gc
from typing import Any
from weakref import ref

import numpy as np

from support.packed import PackedServing
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.profiling.quantized_choice import ActivationChoice

SIZES = {"hidden_size": 192, "intermediate_size": 320, "head_dim": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2}
WINDOWED = {"architecture": "MistralForCausalLM", "sliding_window": 5}
WINDOWED["layer_types"] = ("sliding_attention", "full_attention")
QWEN2 = {"architecture": "Qwen2ForCausalLM", "attention_bias": True}
FAMILIES = {"qwen3": {}, "qwen2": QWEN2, "windowed": WINDOWED}
# The bits of queries, keys, values, gate, up, the table and the others; p is plain.
KINDS = {"plain": "ppppppp", "4": "44444p4", "8": "8888888", "mixed": "4484844", "apart": "484p4pp"}
KERNELS = ("product", "quantized_product", "decode_attention")
NAMES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed")


def native_model(port: Port, kinds: str = KINDS["plain"], rounds: str = "int8", **sizes: Any) -> Any:
    """A model whose matrices have these kinds, with the kernels' layers on it.

    Args:
        kinds: one of `KINDS`.
        rounds: what activations are rounded to for quantised matrices.
        sizes: of the model, instead of `SIZES` and `HEADS`.
    """
    case = small_model(3, **SIZES | HEADS | sizes)
    weights = dict(random_checkpoint(port, case, port.float_dtype).weights)
    for name, array in weights.items():
        place = next((NAMES.index(part) for part in NAMES if part in name), 6)
        if len(array.shape) == 2 and kinds[place] != "p":
            quantizer = WeightQuantizer(port, int(kinds[place]), ActivationChoice(port, rounds))
            weights[name] = quantizer.quantize(name, array, case.config)
    model = port.Qwen3ModelWeek3(Checkpoint(case.config, weights), attention="device")
    given_of(port).use_packed_kernels(model)
    given_of(port).use_products(model, "native")
    given_of(port).use_native_layers(model)
    return model


def steps(port, model, rows, kept="auto"):
    """Logits of three steps, and all keys and values: prompts, one token more of each, and a hybrid step.

    The hybrid step has a decode of each request, of which the second is not sampled, the next chunk of a prompt, and a
    prompt of one token.
    """
    numbers = np.random.default_rng(rows)
    server = PackedServing(port, port.serving, model, num_blocks=150, kv_cache_dtype=kept)
    sizes = [3 + 3 * row % 23 for row in range(rows)] + [40, 1]
    texts = [numbers.integers(0, model.config.vocab_size, size=size).tolist() for size in sizes]
    *made, long, short = (server.sequence(text, number) for number, text in enumerate(texts))
    pasts = [size - 2 - (number == 1) for number, size in enumerate(sizes[:rows])]
    ran = [server.run([*zip(made, [0] * rows, pasts, strict=True), (long, 0, 11)])]
    for tokens, others in ((1, []), (2, [(long, 11, 29), (short, 0, 1)])):
        decodes = [(sequence, past + tokens - 1, 1) for sequence, past in zip(made, pasts, strict=True)]
        ran.append(server.run([*decodes, *others]))
    kept = [port.numpy(part) for pool in server.runner.pools for part in pool.arrays]
    return [*(np.stack(logits) for logits in ran if logits), *kept]


class Counting:
    """A `LayersKernel` that notes its calls."""

    def __init__(self, kernel, counted):
        self.kernel, self.check, self.kernels, self.counted = kernel, kernel.check, kernel.kernels, counted

    def compute_of(self, kept):
        self.counted.append(kept)
        return self.kernel.compute_of(kept)


def counted_calls(model):
    """A list that gets an entry at each call of the model's kernel for whole steps."""
    counted = []
    model.compute.kernel = Counting(model.compute.kernel, counted)
    return counted


def assert_model_keeps_no_pool(port, model):
    """After a step in one call, a model that outlives its engine does not keep the engine's keys and values."""
    server = PackedServing(port, port.serving, model)
    sequence = server.sequence([3, 1, 4])
    server.run([(sequence, 0, 2)])
    server.run([(sequence, 2, 1)])
    pool = ref(server.runner.pools[0])
    del server
    gc.collect()
    assert pool() is None


def assert_blank_kernel_has_no_step(port, make_model, monkeypatch, name):
    """Found when the step would be put on: in mid-layer, pages would have been written already."""
    kernels, problem = given_of(port).kernels, "week 4 day 1 task 2: multiply_tile"
    monkeypatch.delitem(vars(kernels.layers), "problem", raising=False)
    monkeypatch.setitem(vars(getattr(kernels, name)), "problem", problem)
    assert "compute" not in vars(make_model()) and kernels.layers.problem == problem
    monkeypatch.delitem(vars(kernels.layers), "problem")
