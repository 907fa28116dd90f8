"""The screen of Day 2.2: a ruler and its marks, and what each format costs."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

from .shared import shipped

MATRIX = "model.layers.0.mlp.down_proj.weight"
FORMATS = ((128, 8), (64, 8), (32, 8), (128, 4), (64, 4), (32, 4))
GROUP_SIZE, BITS = 32, 4
SHOWN = 8  # numbers of a group


def show(b: Port, console: Console) -> None:
    """Quantise a matrix of the shipped model."""
    w = shipped(b, "bfloat16").weight(MATRIX, 192, 512)
    console.print(f"{MATRIX}: {SHOWN} of a group of {GROUP_SIZE}, in {BITS} bits\n")
    _group(b, w, console)
    console.print("\nThe whole matrix, 192 × 512, with scales and biases in bf16:\n")
    _formats(b, w, console)


def _group(b: Port, w, console: Console) -> None:
    words, scales, biases = b.quantize_weights(w, GROUP_SIZE, BITS)
    scale, bias = float(b.numpy(scales)[0, 0]), float(b.numpy(biases)[0, 0])
    q = b.numpy(b.words_to_numbers(words, BITS))[0, :SHOWN]
    back = b.numpy(b.dequantize_weights(words, scales, biases, GROUP_SIZE, BITS))[0, :SHOWN]
    exact = b.numpy(w)[0, :SHOWN]
    word = b.numpy(words)[0, 0]
    zero = f"0 is mark {-bias / scale:.0f}"
    console.print(f"  scale {scale:.5f}, bias {bias:.5f}: {zero}. Their word is {word:08x}.\n")
    _row(console, "w", exact, ".4f")
    _row(console, "q", q, "d")
    _row(console, "q · scale + bias", back, ".4f")
    _row(console, "error / scale", np.abs(exact - back) / abs(scale), ".2f")


def _row(console: Console, name: str, values, form: str) -> None:
    console.print(f"{name:>16}" + "".join(f"{value + 0:>8{form}}" for value in values))


def _formats(b: Port, w, console: Console) -> None:
    header = f"{'bits':>6}{'group':>8}{'bits per weight':>18}{'worst error':>15}{'mean error':>14}"
    console.print(header + f"{'share of |w|':>16}", style="bold")
    exact = b.numpy(w).astype(np.float64)
    for group_size, bits in FORMATS:
        parts = b.quantize_weights(w, group_size, bits)
        error = np.abs(b.numpy(b.dequantize_weights(*parts, group_size, bits)) - exact)
        stored = bits + 2 * 16 / group_size
        share = error.mean() / np.abs(exact).mean()
        errors = f"{error.max():>15.5f}{error.mean():>14.6f}{100 * share:>14.2f} %"
        console.print(f"{bits:>6}{group_size:>8}{stored:>18.2f}{errors}")
