"""Attention of packed batches on a CPU by kernels of our own. Given; MLX's engine does not use them yet."""

from typing import Any


def chunk_ways() -> dict[str, Any]:
    """The ways to compute the attention of a chunk on a CPU that an engine may choose from, by name."""
    return {}
