"""The screen of Day 1.1: attention weights as a heat map.

The trick: with the identity matrix as values, the weighted mean of the values *is* the row of weights. So the
learner's own function draws its own heat map.
"""

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.solutions.port import Port

WORDS = ["a", "cat", "saw", "its", "tail"]
# What each word is: one row a word, one column a kind (article, animal, verb, owner, thing).
KEYS = np.eye(5)
# What each word looks for, in the same kinds. "saw" looks for an animal and a thing; "its" for the animal.
LOOKS_FOR = np.array(
    [[3, 0, 0, 0, 0], [3, 1, 0, 0, 0], [0, 6, 0, 0, 6], [0, 8, 0, 0, 0], [0, 0, 0, 5, 2]], dtype=float
)


def show(b: Port, console: Console) -> None:
    """Draw the weights three times: as they are, with a scale of 0, and with the future hidden."""
    causal = np.where(np.tri(len(WORDS)) > 0, 0.0, -np.inf)
    console.print("Row: the word that looks. Column: the word it looks at. Each row sums to 1.\n")
    _heat_map(console, "softmax(q·k / √D)", _weights(b))
    title = "the same with scale = 0: every score is 0, so every word counts the same"
    _heat_map(console, title, _weights(b, scale=0.0))
    title = "the same with a mask: -inf hides every word that comes later"
    _heat_map(console, title, _weights(b, mask=causal))


def _weights(b: Port, scale: float | None = None, mask: np.ndarray | None = None) -> np.ndarray:
    """(5, 5) attention weights, computed by the solution."""
    query, key, value = (b.array(x) for x in (LOOKS_FOR, KEYS, np.eye(len(WORDS))))
    of_port = None if mask is None else b.array(mask)
    return b.numpy(b.scaled_dot_product_attention_simple(query, key, value, scale=scale, mask=of_port))


def _heat_map(console: Console, title: str, weights: np.ndarray) -> None:
    console.print(title, style="bold")
    console.print("        " + "".join(f"{word:>7}" for word in WORDS))
    for word, row in zip(WORDS, weights, strict=True):
        line = Text(f"{word:>7} ")
        for weight in row:
            line.append(f"{weight:7.2f}", style=_shade(float(weight)))
        console.print(line)
    console.print()


def _shade(weight: float) -> str:
    """Background of a weight: dark blue for 0, bright for 1; the text is readable on both."""
    level = round(weight, 2)
    red, green, blue = (round(low + (high - low) * level) for low, high in ((16, 255), (24, 190), (48, 60)))
    return f"{'black' if level > 0.6 else 'white'} on rgb({red},{green},{blue})"
