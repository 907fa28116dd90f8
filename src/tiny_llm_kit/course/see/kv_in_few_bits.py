"""The cost of keeping idle keys and values in few bits: bytes per token, error of the next logits."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ...engine.loading import load_network
from ...engine.port import Port
from ...trace.prompts import QUESTIONS, rendered
from .shared import MODEL

# Bits of a number, and the type of the scale and the bias of a group.
WAYS = ((16, None), (8, "float32"), (8, "bfloat16"), (4, "float32"))
SCALE_BITS = {None: 0, "bfloat16": 16, "float32": 32}
GROUP = 64  # the group is a head of one token: 64 numbers share a scale and a bias


@dataclass(frozen=True)
class Kept:
    """One format for keys and values."""

    bits: int  # bits per number
    scale_bits: int  # bits of a group's scale, and of its bias; 0 if there is none
    token_bytes: int  # bytes per token, keys and values of all layers
    error: float  # the largest difference of a score, over all prompts and all tokens of the vocabulary
    same: int  # number of prompts after which the best token stayed the same
    prompts: int  # number of prompts


def keep_in_few_bits(b: Port) -> list[Kept]:
    """Measure each format on the questions of `batch-main`: round their caches, then decode one more token."""
    model, tokenizer = load_network(b, MODEL, "week2")
    numbers = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
    prompts = [tokenizer.encode(rendered(tokenizer, question)) for question in QUESTIONS]
    scores = np.stack([_scores_of_each(b, model, prompt) for prompt in prompts])  # (prompts, 1 + ways, V)
    exact, formats = scores[:, 0], []
    for (bits, scale), rounded in zip(WAYS, scores[:, 1:].swapaxes(0, 1), strict=True):
        scale_bits = SCALE_BITS[scale]
        token_bytes = (numbers * bits + 2 * numbers // GROUP * scale_bits) // 8
        same = int((rounded.argmax(-1) == exact.argmax(-1)).sum())
        error = float(abs(rounded - exact).max())
        formats.append(Kept(bits, scale_bits, token_bytes, error, same, len(prompts)))
    return formats


def _scores_of_each(b: Port, model, prompt: list[int]) -> np.ndarray:
    """(1 + ways, V) logits of a prompt's last token, after a plain cache and after each rounded one."""
    cache, scores = model.create_kv_cache(len(prompt)), []
    model(b.array([prompt[:-1]]), 0, cache, 0)
    kept = [(layer.keys, layer.values) for layer in cache]
    for rounding in (lambda x: x, *(partial(_rounded, b, *way) for way in WAYS)):
        for layer, pair in zip(cache, kept, strict=True):
            layer.keys, layer.values = map(rounding, pair)
        scores.append(b.numpy(model(b.array([prompt[-1:]]), len(prompt) - 1, cache))[0, -1])
        for layer in cache:
            layer.rewind(1)
    return np.stack(scores)


def _rounded(b: Port, bits: int, scale: str | None, kept):
    """Keys or values after a round trip through bf16 pages, plain or quantised as in Day 2.2."""
    pages = b.array(b.numpy(kept), "bfloat16")
    if scale:
        rows = b.array(b.numpy(pages).reshape(-1, GROUP), scale)  # a scale has the type of what is quantised
        numbers = b.dequantize_weights(*b.quantize_weights(rows, GROUP, bits), GROUP, bits)
        pages = b.array(b.numpy(numbers).reshape(pages.shape), "bfloat16")
    return b.array(b.numpy(pages))
