"""The screen of Day 2.4: one query's statistics from tile to tile, and the memory that tiles save."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

from .chunk_costs import show_peaks

SCORES = (1.0, 3.0, 2.0, 0.0, 1.0, 2.0, 6.0, 1.0, 2.0, 5.0, 4.0, 0.0)
TILE = 3
LENGTHS = (512, 2048, 8192)
D, MEASURED_TILE = 16, 256
WIDTH = 40  # of the longest bar
# Memory differs between ports. The book shows torch: it computes eagerly, so its numbers are reproducible.
SHOWN_ON = "torch"
MEASURED = (r"(mlx|torch) on \w+", r" *\d+\.\d MiB *█*▏?")


def show(b: Port, console: Console) -> None:
    """Merge the tiles of one query one by one, then measure plain and tiled attention at three lengths."""
    scores = " ".join(f"{score:g}" for score in SCORES)
    console.print(f"One query, {len(SCORES)} keys in tiles of {TILE}. The scores: {scores}")
    console.print("Key j has the value j. After each tile:\n")
    _walk(b, console)
    console.print("\nOne head of 16 numbers, causal, float32. What each function held at its peak,")
    console.print(f"beside its inputs (measured, {b.name} on {b.device}; tiles of {MEASURED_TILE}):\n")
    show_peaks(console, "tokens", {L: _peaks(b, L) for L in LENGTHS}, WIDTH)


def _walk(b: Port, console: Console) -> None:
    console.print(f"{'keys':>10}{'m':>8}{'l':>9}{'o':>10}{'o / l':>10}", style="bold")
    merged, columns = None, np.arange(0)
    for start in range(0, len(SCORES), TILE):
        columns = np.arange(start, start + TILE)
        tile = _statistics(b, columns)
        merged = tile if merged is None else b.merge_attention(merged, tile)
        _row(b, console, f"0 … {columns[-1]}", merged)
    whole = _statistics(b, np.arange(len(SCORES)))
    console.print()
    _row(b, console, "at once", whole)
    _row(b, console, "hidden", _statistics(b, columns, hidden=True))


def _statistics(b: Port, columns, hidden: bool = False):
    """Statistics of a query of 1 over keys of one number, so that each key is its own score."""
    key, value = np.array(SCORES)[columns], columns.astype(float)
    mask = np.full((1, len(columns)), -np.inf if hidden else 0.0)
    arrays = (b.array(array.reshape(1, 1, -1, 1)) for array in (np.ones(1), key, value))
    return b.attention_statistics(*arrays, scale=1.0, mask=b.array(mask))


def _row(b: Port, console: Console, keys: str, statistics) -> None:
    o, m, l = (b.numpy(array).item() for array in statistics)
    out = b.numpy(b.finish_attention(statistics, b.dtype("float32"))).item()
    console.print(f"{keys:>10}{m:8.1f}{l:9.3f}{o:10.3f}{out:10.3f}")


def _peaks(b: Port, L: int) -> dict[str, int]:
    query, key, value = (b.array(x) for x in np.random.default_rng(0).normal(size=(3, 1, 1, L, D)))

    def plain():
        return b.scaled_dot_product_attention_grouped(query, key, value, mask="causal")

    def tiled():
        return b.flash_attention_tiled(query, key, value, mask="causal", tile_size=MEASURED_TILE)

    return {"plain": b.peak_bytes(plain), "tiled": b.peak_bytes(tiled)}
