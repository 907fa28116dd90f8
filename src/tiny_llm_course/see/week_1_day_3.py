"""The screen of Day 1.3: two causal masks, each query head's K/V head, and the reach of a changed token."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

VISIBLE, HIDDEN = "██", " ·"
E, H, HKV, D = 12, 8, 2, 4


def show(b: Port, console: Console) -> None:
    """Draw the masks for a whole text and for three new tokens, the groups of heads, and the reach of a change."""
    console.print(f"Row: a query. Column: a key. {VISIBLE} it may look, {HIDDEN} it may not.\n")
    _mask(b, console, 8, 8)
    console.print()
    _mask(b, console, 3, 8)
    console.print(f"\n{H} query heads share {HKV} K/V heads, and K/V head j holds the value j.")
    console.print("Each query head read:\n")
    _groups(b, console)
    console.print("\nSix tokens through Qwen3MultiHeadAttention, then again with token 3 changed.")
    console.print("The outputs that changed:\n")
    _reach(b, console)


def _mask(b: Port, console: Console, L: int, S: int) -> None:
    console.print(f"{f'causal_mask({L}, {S})':<21}" + "".join(f" {key:2}" for key in range(S)), style="bold")
    for query, row in enumerate(b.numpy(b.causal_mask(L, S, b.dtype("float32")))):
        cells = "".join(f" {VISIBLE if value == 0 else HIDDEN}" for value in row)
        console.print(f"  query {query}, position {S - L + query}{cells}")


def _groups(b: Port, console: Console) -> None:
    query, key = np.zeros((H, 1, D)), np.zeros((HKV, 1, D))
    value = np.broadcast_to(np.arange(float(HKV))[:, None, None], key.shape)
    read = b.numpy(b.scaled_dot_product_attention_grouped(*map(b.array, (query, key, value))))[:, 0, 0]
    console.print("  query head" + "".join(f"{head:4}" for head in range(H)))
    console.print("  K/V head  " + "".join(f"{value:4.0f}" for value in read), style="bold")


def _reach(b: Port, console: Console) -> None:
    rng = np.random.default_rng(0)
    shapes = [(H * D, E), (HKV * D, E), (HKV * D, E), (E, H * D)]
    weights = [rng.normal(size=shape) for shape in shapes] + [np.ones(D), np.ones(D)]
    layer = b.Qwen3MultiHeadAttention(E, H, HKV, D, *map(b.array, weights), max_seq_len=8)
    text = rng.normal(size=(1, 6, E))
    other = text.copy()
    other[:, 3] += 1
    console.print("  token" + " " * 12 + "".join(f" {token:2}" for token in range(6)))
    for mask in ("causal", None):
        before, after = (b.numpy(layer(b.array(x), mask))[0] for x in (text, other))
        changed = np.abs(after - before).max(axis=-1) > 1e-4
        console.print(f"  mask={mask!r:<12}" + "".join(f" {VISIBLE if c else HIDDEN}" for c in changed))
