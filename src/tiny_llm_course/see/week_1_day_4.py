"""The screen of Day 1.4: where float32 inside a norm matters, silu at its limits, and a gate that opens and closes."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

SIZES = (64, 512, 4096, 16384)
VECTORS = 100
SILU_AT = (-10000.0, -20.0, -1.278, 0.0, 1.0, 20.0, 10000.0)
GATES = (-6.0, -2.0, -1.0, 0.0, 1.0, 2.0, 6.0)


def show(b: Port, console: Console) -> None:
    """Measure the norm in bf16 and float16, tabulate silu, and open a gate step by step."""
    console.print(f"{VECTORS} vectors of E numbers, in bf16, through RMSNorm. Their RMS should be 1.")
    console.print("How far it is from 1, in the worst of them:\n")
    _sizes(b, console)
    console.print("\nOne vector of size 300, in float16. Its size after the norm:\n")
    _overflow(b, console)
    console.print("\nsilu(x), and what x·e^x / (1 + e^x) makes of it in float32:\n")
    _silu(b, console)
    console.print("\nQwen3MLP whose w_down is the identity: what comes out is what passed the gate.\n")
    _gate(b, console)


def _sizes(b: Port, console: Console) -> None:
    """The learner's norm, and two in NumPy: every step rounded to bf16, and the sum in bf16 as well."""
    heads = f"{'mean and root in bf16':>26}{'running sum in bf16':>24}"
    console.print(f"{'E':>8}{'yours':>12}{heads}", style="bold")
    rng = np.random.default_rng(0)
    for E in SIZES:
        x = _bf16(rng.normal(size=(VECTORS, E)))
        weight = b.array(np.ones(E), "bfloat16")
        yours = b.numpy(b.RMSNorm(E, weight)(b.array(x, "bfloat16")))
        means = np.mean(_bf16(x * x), axis=-1, keepdims=True), _running_sum(x) / E
        cells = [_worst(yours), *(_worst(_bf16(x * _bf16(1 / np.sqrt(_bf16(mean))))) for mean in means)]
        console.print(f"{E:>8}{cells[0]:>12}{cells[1]:>26}{cells[2]:>24}")


def _worst(normed: np.ndarray) -> str:
    sizes = np.sqrt(np.mean(normed.astype(np.float64) ** 2, axis=-1))
    return f"{100 * np.max(np.abs(sizes - 1)):.1f} %"


def _running_sum(x: np.ndarray) -> np.ndarray:
    """Σ x², term by term: from 256 on bf16 counts in twos, from 512 on in fours, so a term of 1 adds nothing."""
    total = np.zeros(len(x), np.float32)
    for column in x.T:
        total = _bf16(total + _bf16(column * column))
    return total[:, None]


def _bf16(x: np.ndarray) -> np.ndarray:
    """The nearest bf16 of each number, as float32: the upper half of its bits, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def _overflow(b: Port, console: Console) -> None:
    x = (300 * np.random.default_rng(1).normal(size=64)).astype(np.float16)
    yours = b.numpy(b.RMSNorm(64, b.array(np.ones(64), "float16"))(b.array(x, "float16"))).astype(float)
    with np.errstate(over="ignore"):
        squared_in_float16 = np.float16(np.inf) if np.isinf(x * x).any() else np.mean(x * x)
    theirs = x / np.sqrt(squared_in_float16)
    sizes = [np.sqrt(np.mean(np.square(normed.astype(float)))) for normed in (yours, theirs)]
    console.print(f"{'yours':>20} {sizes[0]:.2f}")
    limit = "the largest float16 is 65504, and 300² = 90000"
    console.print(f"{'squares in float16':>20} {sizes[1]:.2f}   {limit}")


def _silu(b: Port, console: Console) -> None:
    x = np.array(SILU_AT, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        naive = x * np.exp(x) / (1 + np.exp(x))
    rows = {
        "x": x,
        "yours, float32": b.numpy(b.silu(b.array(x))),
        "yours, bf16": b.numpy(b.silu(b.array(x, "bfloat16"))),
        "by hand": naive,
    }
    for name, values in rows.items():
        rounded = [round(float(value), 3) + 0.0 for value in values]  # + 0.0: no "-0.000"
        cells = "".join(f"{value:9.3f}" if abs(value) < 100 else f"{value:9.0f}" for value in rounded)
        console.print(f"{name:>16}{cells}", style="bold" if name == "x" else "")


def _gate(b: Port, console: Console) -> None:
    size = len(GATES)
    one = np.eye(size)
    mlp = b.Qwen3MLP(size, size, b.array(np.diag(GATES)), b.array(10 * one), b.array(one))
    rows = {"gate": GATES, "up": np.full(size, 10.0), "comes out": b.numpy(mlp(b.array(np.ones(size))))}
    for name, values in rows.items():
        console.print(f"{name:>16}" + "".join(f"{value:9.2f}" for value in values))
