"""The screen of Day 1.2: pairs of a head as arrows that turn, and scores that see only distances."""

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

D, POSITIONS = 8, 1024
ARROWS = "→↗↑↖←↙↓↘"  # one for every eighth of a turn, anticlockwise
SHOWN = [*range(8), 50, 100, 500, 1000]
WIDTHS = [4] * 8 + [5] * 4  # of their columns
DISTANCES = [0, 1, 2, 3, 5, 10, 50, 100]


def show(b: Port, console: Console) -> None:
    """Turn the pair (1, 0) to many positions, compare scores along the text, and show both pairings."""
    pairs = f"a head of {D} numbers is {D // 2} pairs, and each pair is an arrow."
    console.print(f"RoPE({D}, {POSITIONS}): {pairs}")
    console.print("Every arrow starts as →. This is where it points at each position:\n")
    _arrows(b, console)
    console.print("\nThe score q·k of one query and one key, at three places in the text:\n")
    _scores(b, console)
    console.print("\nOnly dim 0 is set. After one step, its length has moved into its partner:\n")
    _partners(b, console)


def _arrows(b: Port, console: Console) -> None:
    """Draw one row per pair.

    Halves are the pairs: dims 0 … D/2 - 1 hold the first numbers, the rest their partners.
    """
    start = np.repeat([1.0, 0.0], D // 2)
    turned = _at(b, b.RoPE(D, POSITIONS), start, SHOWN)
    eighths = np.round(np.arctan2(turned[:, D // 2 :], turned[:, : D // 2]) / (np.pi / 4)).astype(int) % 8
    heads = "".join(f"{position:>{width}}" for position, width in zip(SHOWN, WIDTHS, strict=True))
    console.print(f"  position{heads}    a turn takes", style="bold")
    for pair, row in enumerate(eighths.T):
        after = 2 * np.pi * 10000 ** (2 * pair / D)
        cells = "".join(f"{ARROWS[i]:>{width}}" for i, width in zip(row, WIDTHS, strict=True))
        console.print(f"    pair {pair}{cells}{after:9,.0f} tokens")


def _scores(b: Port, console: Console) -> None:
    """Print one row per position of the key, one column per distance; the rows are equal."""
    rope, ones = b.RoPE(D, POSITIONS), np.ones(D)
    console.print("      distance" + "".join(f"{d:>8}" for d in DISTANCES), style="bold")
    for place in (0, 7, 900):
        key = _at(b, rope, ones, [place])
        scores = _at(b, rope, ones, [place + d for d in DISTANCES]) @ key[0]
        console.print(f"  key at {place:5}" + "".join(f"{score:8.2f}" for score in scores))


def _partners(b: Port, console: Console) -> None:
    console.print(" " * 20 + "".join(f"  dim {d}" for d in range(D)), style="bold")
    for traditional in (False, True):
        turned = _at(b, b.RoPE(D, POSITIONS, traditional=traditional), np.eye(D)[0], [1])[0]
        cells = "".join(f"{value:7.2f}" if abs(value) > 1e-6 else "      ·" for value in turned)
        console.print(f"  traditional={traditional!s:<6}" + cells)


def _at(b: Port, rope, head: np.ndarray, positions: list[int]) -> np.ndarray:
    """(positions, D): the same head at each of the positions, turned by the solution."""
    x = np.tile(head, (1, len(positions), 1, 1)).reshape(1, len(positions), 1, D)
    return b.numpy(rope(b.array(x), b.array(positions)))[0, :, 0]
