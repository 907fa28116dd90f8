"""Whether chunks of prompts attend by a kernel of our own on a CPU: measured once on each machine.

What is measured is kept as that of `product_choice` is. Decodes are not measured: their kernel reads each key once, and
the others copy it first.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.solutions.port import Port

from ..given import given_of
from .product_choice import ROUNDS, USUAL, Seconds, kept_seconds, wanted_here

NATIVE = "native"
HEADS, KV_HEADS, SIZE = 16, 8, 128
ROWS, TEXTS = 128, (128, 1024)  # tokens of the chunk, and of the text with which it ends
PAGE = 128
SCALE = 0.09


def has_chunk_kernel(port: Port, wanted: str | None = None) -> bool:
    """Whether chunks attend by our own kernel, in a network whose products are kernels.

    Args:
        wanted: "measured"; "usual" does not measure; None reads TINY_LLM_PRODUCTS, and is "measured".
    """
    ways = given_of(port).chunk_ways() if port.device == "cpu" else {}
    if NATIVE not in ways or (wanted or wanted_here()) == USUAL:
        return True
    seconds = measured_seconds(port)
    return min(seconds, key=lambda name: sum(seconds[name].values())) == NATIVE


def measured_seconds(port: Port) -> Seconds:
    """The seconds of each way by the length of the text, from the file or measured now."""
    what = {"attention": [HEADS, KV_HEADS, SIZE], "dtype": port.float_dtype}
    return kept_seconds(port, what, set(given_of(port).chunk_ways()), lambda: measure(port))


def measure(port: Port) -> Seconds:
    """Time every way, in turns: medians, in seconds per call."""
    by_text = {tokens: _of_text(port, tokens) for tokens in TEXTS}
    return {
        name: {tokens: each[name] for tokens, each in by_text.items()} for name in given_of(port).chunk_ways()
    }


def _of_text(port: Port, tokens: int) -> dict[str, float]:
    def random(*shape: int) -> Any:
        return port.backend_module.random_normal(shape, 1.0, 0.0, port.float_dtype, port.device)

    pages = [random(tokens // PAGE, PAGE, KV_HEADS, SIZE) for _ in range(2)]
    chunk = [random(ROWS, KV_HEADS, SIZE) for _ in range(2)]
    arguments = random(ROWS, HEADS, SIZE), *chunk, *pages, port.array(list(range(tokens))), SCALE

    def attend(way: Callable[..., Any]) -> None:
        port.backend_module.evaluate(way(*arguments))

    return medians({name: partial(attend, way) for name, way in given_of(port).chunk_ways().items()}, ROUNDS)
