"""The screen of Day 2.5: what the device's kernel lets a query see, and its time beside the other two paths."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.solutions.port import Port

VISIBLE, HIDDEN, NO_NUMBER = "██", " ·", " ?"
ROUNDS = {128: 31, 512: 15, 2048: 7}  # by length; short runs are cheap, and noisy
H, HKV, D = 2, 1, 32
# Times depend on the machine. The book shows torch: it has a fused kernel on CPUs, and MLX only on Apple's GPUs.
SHOWN_ON = "torch"
MEASURED = (r"(mlx|torch) on \w+", r" *\d+\.\d+ (ms|×)")


def show(b: Port, console: Console) -> None:
    """Draw which keys each query saw through the kernel, then measure the three paths at three lengths."""
    meaning = f"Row: a query. Column: a key. {VISIBLE} it was seen, {HIDDEN} not."
    console.print(f"flash_attention_device. {meaning}\n")
    _seen(b, console, 'mask="causal", L = 8, S = 8', 8, "causal")
    _seen(b, console, 'mask="causal", L = 3, S = 8', 3, "causal")
    _seen(b, console, 'mask="causal", L = 1, S = 8', 1, "causal")
    tail = np.where(np.arange(8) < 5, 0.0, -np.inf) * np.ones((3, 1))
    tail[0] = -np.inf
    _seen(b, console, "an array: five of eight places filled, query 0 idle", 3, b.array(tail))
    console.print(f"{H} query heads over {HKV}, {D} numbers each, causal, float32, {b.name} on {b.device}.")
    console.print("Medians of interleaved runs; two paths as multiples of the device's own:\n")
    _times(b, console)


def _seen(b: Port, console: Console, title: str, L: int, mask) -> None:
    """The keys that each query sees.

    Queries of 0 give all visible keys the same weight; key j has the value 1 at index j, which shows it.
    """
    query, key, value = (b.array(x[None, None]) for x in (np.zeros((L, 8)), np.zeros((8, 8)), np.eye(8)))
    weights = b.numpy(b.flash_attention_device(query, key, value, mask=mask))[0, 0]
    console.print(title, style="bold")
    for query_number, row in enumerate(weights):
        console.print(f"  query {query_number}" + "".join(f" {_cell(weight)}" for weight in row))
    console.print()


def _cell(weight: float) -> str:
    if np.isnan(weight):
        return NO_NUMBER
    return VISIBLE if weight > 0 else HIDDEN


def _times(b: Port, console: Console) -> None:
    console.print(f"{'tokens':>8}{'device':>14}{'tiled':>12}{'simple':>12}", style="bold")
    for L, rounds in ROUNDS.items():
        device, tiled, simple = _seconds(b, L, rounds)
        ratios = "".join(f"{seconds / device:10.1f} ×" for seconds in (tiled, simple))
        console.print(f"{L:>8}{1000 * device:11.2f} ms{ratios}")


def _seconds(b: Port, L: int, rounds: int) -> list[float]:
    """Seconds of the three paths."""
    shapes = [(1, heads, L, D) for heads in (H, HKV, HKV)]
    arrays = [b.array(np.random.default_rng(0).normal(size=shape)) for shape in shapes]
    paths = (b.flash_attention_device, b.flash_attention_tiled, b.scaled_dot_product_attention_grouped)
    runs = [lambda path=path: b.numpy(path(*arrays, mask="causal")) for path in paths]
    return list(medians(dict(enumerate(runs)), rounds).values())
