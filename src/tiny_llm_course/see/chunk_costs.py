"""Memory of chunks, for the screen of Day 2.7: activations by chunk size, and what a missing `materialize` costs.

Activations are what a chunk holds while it runs, beside the weights and the cache.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

from .shared import MODEL, shipped

CONTEXT = 1024
SIZES = (32, 64, 128, 256, 512, CONTEXT)
LAZY_CHUNK, LAZY_LENGTHS = 32, (128, 256, 512)
WIDTH = 30  # of the longest bar
# What differs from run to run, and from port to port: for `MEASURED` of the screen.
MEASURED = (r" *\d+\.\d MiB *█*▏?", r" *\d+\.\d ×")


class Chunks:
    """A prompt of random tokens, and the chunks of it that a model runs.

    Args:
        attention: which one the model has.
        layers: how many of its layers run; what one has held is free when the next one runs.
        tokens: the prompt's length.
    """

    def __init__(self, b: Port, checkpoint, attention: str, tokens: int, layers: int | None = None):
        self.b, self.model = b, b.Qwen3ModelWeek2(checkpoint, attention=attention)
        self.model.layers = self.model.layers[:layers]
        self.ids = np.random.default_rng(0).integers(0, checkpoint.config.vocab_size, size=tokens)
        self.caches = self.model.create_kv_cache(tokens)

    def run(self, start: int, size: int, keep: int = 0):
        """Run one chunk; return logits of the last `keep` tokens."""
        piece, places = self.ids[None, start : start + size], np.arange(start, start + size)
        return self.model(self.b.array(piece), self.b.array(places), self.caches, logits_to_keep=keep)

    def prefill(self, size: int, materialize: bool = True):
        """Run the whole prompt in chunks of `size` into fresh caches; return logits of its last token."""
        last = len(self.ids) - size
        self.caches = self.model.create_kv_cache(len(self.ids))
        for start in range(0, last, size):
            self.run(start, size)
            if materialize:
                self.materialize()
        return self.run(last, size, keep=1)

    def materialize(self) -> None:
        for cache in self.caches:
            cache.materialize()


def activation_bytes(b: Port, attention: str, sizes: Iterable[int], context: int) -> dict[int, int]:
    """Peak bytes of the last chunk of a prompt of `context` tokens, by chunk size."""
    checkpoint = shipped(b)
    chunks = Chunks(b, checkpoint, attention, context, layers=1)
    chunks.prefill(64)
    chunks.materialize()

    def last(size: int):
        for cache in chunks.caches:
            cache.rewind(size)
        return chunks.run(context - size, size, keep=1)

    return {size: b.peak_bytes(lambda size=size: last(size)) for size in sizes}


def lazy_bytes(b: Port, size: int, tokens: int) -> tuple[int, int]:
    """Peak bytes of a chunked prefill, with `materialize()` between two chunks and without.

    The cache is counted here, because the run creates it.
    """
    checkpoint = shipped(b)
    chunks = Chunks(b, checkpoint, "device", tokens)

    def prefill(materialize: bool):
        logits = chunks.prefill(size, materialize)
        b.backend_module.evaluate(logits)
        chunks.caches = []
        return logits

    return b.peak_bytes(lambda: prefill(True)), b.peak_bytes(lambda: prefill(False))


def show_activation_memory(b: Port, console: Console) -> None:
    """Show the peak memory of a prompt's last chunk, for every chunk size and two kinds of attention."""
    console.print(f"A prompt of {CONTEXT:,} tokens: what its last chunk held at its peak in a layer of")
    console.print(f"{MODEL}, beside the weights and the cache, with simple attention and with the")
    console.print("device's:\n")
    held = {name: activation_bytes(b, name, SIZES, CONTEXT) for name in ("simple", "device")}
    labels = {size: "none" if size == CONTEXT else size for size in SIZES}
    peaks = {labels[size]: {name: sizes[size] for name, sizes in held.items()} for size in SIZES}
    show_peaks(console, "chunk", peaks, WIDTH)


def show_peaks(console: Console, head: str, peaks: Mapping[Any, Mapping[str, int]], width: int) -> None:
    """Print a bar per label and name, in bytes; the longest is `width` cells."""
    console.print(f"{head:>8}{'':10}{'peak':>13}", style="bold")
    longest = max(max(sizes.values()) for sizes in peaks.values())
    for label, sizes in peaks.items():
        for name, size in sizes.items():
            bar = "█" * round(width * size / longest) or "▏"
            console.print(f"{label:>8}  {name:<8}{_mebibytes(size)}  {bar}")
            label = ""


def show_lazy_chunks(b: Port, console: Console) -> None:
    """Show the peak memory of a prefill whose caches are not evaluated between two chunks. MLX only."""
    console.print(f"{MODEL}, chunks of {LAZY_CHUNK} tokens: peak memory of a prefill, with its cache.")
    console.print("With materialize() after every chunk; without, all wait for the last one.\n")
    console.print(f"{'prompt':>8}{'with':>13}{'without':>13}", style="bold")
    for tokens in LAZY_LENGTHS:
        computed, lazy = lazy_bytes(b, LAZY_CHUNK, tokens)
        console.print(f"{tokens:>8}{_mebibytes(computed)}{_mebibytes(lazy)}{lazy / computed:>8.1f} ×")


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:9.1f} MiB"
