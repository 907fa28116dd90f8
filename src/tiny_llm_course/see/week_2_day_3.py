"""The screen of Day 2.3: your quantised product against the plain one, and the shipped model in few bits.

Seconds are medians of interleaved runs on this machine, over several matrices, so that none stays in a CPU cache.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from rich.console import Console

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.models.quantization import GROUP_SIZES, WeightQuantizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port

from ..trace.prompts import rendered
from .shared import MODEL
from .week_1_day_5 import QUESTION

MEASURED = (r" *[\d.]+(?= (?:ms|GB/s|×|%))",)
SHAPE = (2048, 1024)
MATRICES = 12
ROUNDS = 15


def show(b: Port, console: Console) -> None:
    """Quantise the shipped model, and let it answer."""
    console.print("The shipped model in bf16, the matrices of its layers quantised:\n")
    _model(b, console)


def show_mlx(b: Port, console: Console) -> None:
    """Time products of 1 and 16 rows."""
    O, I = SHAPE
    console.print(f"x @ W.T, {MATRICES} matrices W of {O} × {I} in turns, {b.name}, {b.float_dtype}\n")
    _products(b, console)
    console.print("× is the speed of the plain product of as many rows.")
    console.print(f"NumPy adds up an array of 256 MiB at {_read_speed():.1f} GB/s here, on one thread.")


show_torch = show_mlx  # each port has its own kernel, and so its own figures


def _products(b: Port, console: Console) -> None:
    rng = np.random.default_rng(0)
    plain = [b.array(rng.normal(size=SHAPE), b.float_dtype) for _ in range(MATRICES)]
    kinds: dict[str, tuple[list, Callable]] = {"plain": (plain, b.linear)}
    for bits in (8, 4):
        quantized = [b.prepare_weights(b.quantize_matrix(w, GROUP_SIZES[bits], bits)) for w in plain]
        kinds[f"{bits} bits"] = (quantized, b.quantized_linear)
    console.print(f"{'':>8}{'weights':>12}{'1 row':>12}{'read at':>16}{'':>8}{'16 rows':>14}", style="bold")
    few, many = (_times(b, kinds, rows) for rows in (1, 16))
    for name, (weights, _) in kinds.items():
        size = sum(w.nbytes for w in weights)
        console.print(
            f"{name:>8}{size / 1e6:>9.1f} MB{1e3 * few[name]:>9.2f} ms{size / few[name] / 1e9:>11.1f} GB/s"
            f"{few['plain'] / few[name]:>7.2f} ×{1e3 * many[name]:>10.2f} ms{many['plain'] / many[name]:>7.2f} ×"
        )
    console.print()


def _read_speed() -> float:
    """GB/s of a plain sum, an upper limit for a decode step of one thread."""
    array = np.ones(2**26, np.float32)
    return array.nbytes / medians({"sum": array.sum}, ROUNDS)["sum"] / 1e9


def _times(b: Port, kinds: dict[str, tuple[list, Callable]], rows: int) -> dict[str, float]:
    """Seconds of one pass over all matrices."""
    x = b.array(np.random.default_rng(1).normal(size=(rows, SHAPE[1])), b.float_dtype)

    def one_pass(weights: list, multiply: Callable) -> None:
        for w in weights:
            b.backend_module.evaluate(multiply(x, w))
        b.backend_module.synchronize(b.device)

    return medians({name: partial(one_pass, *kind) for name, kind in kinds.items()}, ROUNDS)


def _model(b: Port, console: Console) -> None:
    tokenizer = load_tokenizer(MODEL)
    ids = tokenizer.encode(rendered(tokenizer, QUESTION))
    heads = f"{'layers':>14}{'bits per weight':>18}{'all weights':>16}{'logits moved by':>18}"
    console.print(f"{'':>8}{heads}", style="bold")
    plain = None
    for bits in (None, 8, 4):
        checkpoint = load_checkpoint(MODEL, b.name, b.device, "bfloat16", WeightQuantizer(b, bits))
        model = b.Qwen3ModelWeek2(checkpoint)
        logits = b.numpy(model(b.array([ids]), 0, model.create_kv_cache()))[0, -1]
        plain = logits if plain is None else plain
        layers = [w for name, w in checkpoint.weights.items() if ".layers." in name and len(w.shape) == 2]
        size, numbers = sum(w.nbytes for w in layers), sum(w.shape[0] * w.shape[1] for w in layers)
        total = sum(w.nbytes for w in checkpoint.weights.values())
        moved = np.abs(logits - plain).mean() / np.abs(plain).mean()
        name, change = ("bf16", "") if bits is None else (f"{bits} bits", f"{100 * moved:.0f} %")
        console.print(f"{name:>8}{size:>14,}{8 * size / numbers:>18.2f}{total:>16,}{change:>18}")
