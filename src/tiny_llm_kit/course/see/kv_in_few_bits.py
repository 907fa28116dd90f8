"""What keeping idle keys and values in few bits costs: bytes per token, and the error of the next logits."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from ...engine.loading import load_network
from ...trace.prompts import QUESTIONS, rendered

# Bits of a number, and the type of the scale and the bias of a group.
WAYS = ((16, None), (8, "float32"), (8, "bfloat16"), (4, "float32"))
SCALE_BITS = {None: 0, "bfloat16": 16, "float32": 32}
MODEL, GROUP = "tiny-qwen3", 64  # the group is a head of one token: 64 numbers share a scale and a bias


@dataclass(frozen=True)
class Kept:
    """One format for keys and values.

    Args:
        bits: of a number.
        scale_bits: of the scale of a group, and of its bias; 0 where there is none.
        token_bytes: of one token, keys and values of all layers.
        error: the largest difference of a score, over all prompts and all tokens of the vocabulary.
        same: prompts after which the best token stayed the same.
        prompts: how many there were.
    """

    bits: int
    scale_bits: int
    token_bytes: int
    error: float
    same: int
    prompts: int


def keep_in_few_bits(b) -> list[Kept]:
    """Computes the questions of `batch-main`, rounds their caches, and lets the shipped model decode one token more."""
    model, tokenizer = load_network(b, MODEL, "week2")
    numbers = 2 * model.config.num_hidden_layers * model.config.num_key_value_heads * model.config.head_dim
    prompts = [tokenizer.encode(rendered(tokenizer, question)) for question in QUESTIONS]
    scores = np.stack([_scores_of_each(b, model, prompt) for prompt in prompts])  # (prompts, 1 + ways, V)
    exact, found = scores[:, 0], []
    for (bits, scale), rounded in zip(WAYS, scores[:, 1:].swapaxes(0, 1), strict=True):
        scale_bits = SCALE_BITS[scale]
        token_bytes = (numbers * bits + 2 * numbers // GROUP * scale_bits) // 8
        same = int((rounded.argmax(-1) == exact.argmax(-1)).sum())
        found.append(
            Kept(bits, scale_bits, token_bytes, float(abs(rounded - exact).max()), same, len(prompts))
        )
    return found


def _scores_of_each(b, model, prompt: list[int]) -> np.ndarray:
    """(1 + ways, V) logits of the last token of a prompt: the tokens before it in a cache as it is, and in each way."""
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


def _rounded(b, bits: int, scale: str | None, kept):
    """What comes back of bf16 pages that were kept as they are, or in whole numbers as Day 2.2 makes them."""
    pages = b.array(b.numpy(kept), "bfloat16")
    if scale:
        rows = b.array(b.numpy(pages).reshape(-1, GROUP), scale)  # a scale has the type of what is quantised
        numbers = b.dequantize_weights(*b.quantize_weights(rows, GROUP, bits), GROUP, bits)
        pages = b.array(b.numpy(numbers).reshape(pages.shape), "bfloat16")
    return b.array(b.numpy(pages))
