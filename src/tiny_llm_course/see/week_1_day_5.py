"""The screen of Day 1.5: where a model's parameters are, how many bytes they take, and the next token of your model."""

from math import prod

import numpy as np
from rich.console import Console

from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.models.weights.random_weights import QWEN3_06B
from tiny_llm_engine.solutions.port import Port

from ..trace.prompts import rendered
from .shared import MODEL, shipped

QUESTION = "What is chunked prefill?"


def show(b: Port, console: Console) -> None:
    """Count the numbers of the shipped model and of Qwen3-0.6B, then ask the shipped one for the next token."""
    checkpoint = shipped(b, "float32")
    counted = sum(prod(array.shape) for array in checkpoint.weights.values())
    console.print(
        f"{MODEL}, shipped with the course: {len(checkpoint.weights)} arrays, {counted:,} numbers\n"
    )
    _table(console, parameters(checkpoint.config))
    console.print("\nQwen3-0.6B, the same layers, more and wider:\n")
    _table(console, parameters(QWEN3_06B))
    _next_tokens(b, checkpoint, console)


def parameters(config: ModelConfig) -> dict[str, int]:
    """The number of parameters in each part of a model."""
    E, V, L = config.hidden_size, config.vocab_size, config.num_hidden_layers
    heads = config.num_attention_heads + config.num_key_value_heads
    return {
        "embedding": V * E,
        "attention": L * 2 * heads * config.head_dim * E,  # wq and wo have Hq·D·E each, wk and wv Hkv·D·E
        "MLP": L * 3 * config.intermediate_size * E,
        "norms": L * (2 * E + 2 * config.head_dim) + E,
        "head": 0 if config.tie_word_embeddings else V * E,
    }


def _table(console: Console, parts: dict[str, int]) -> None:
    console.print(f"{'part':>12}{'numbers':>16}{'share':>9}{'in bf16':>14}{'in float32':>14}", style="bold")
    total = sum(parts.values())
    for name, count in {**parts, "all": total}.items():
        share = f"{100 * count / total:.1f} %"
        note = "   tied: none" if name == "head" and not count else ""
        console.print(f"{name:>12}{count:>16,}{share:>9}{_mib(2 * count):>14}{_mib(4 * count):>14}{note}")


def _mib(count: int) -> str:
    return f"{count / 2**20:,.2f} MiB"


def _next_tokens(b: Port, checkpoint: Checkpoint, console: Console) -> None:
    tokenizer = load_tokenizer(MODEL)
    ids = tokenizer.encode(rendered(tokenizer, QUESTION))
    logits = b.numpy(b.Qwen3ModelWeek1(checkpoint)(b.array([ids])))
    console.print(f'\n"{QUESTION}" is {len(ids)} tokens with the chat template around it.')
    console.print(f"Your model's logits are {logits.shape}: after each token, a score for every next one.")
    console.print("After the last one, the best are:\n")
    last = logits[0, -1].astype(np.float64)
    weights = np.exp(last - last.max())
    for id in np.argsort(-last)[:3]:
        text, share = repr(tokenizer.decode([int(id)])), weights[id] / weights.sum()
        console.print(f"{text:>16}  logit {last[id]:5.1f}   probability {100 * share:5.1f} %")
