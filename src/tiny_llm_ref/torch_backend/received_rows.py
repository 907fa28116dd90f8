"""Keys and values that another engine has computed, from the bytes that it sent (Day 4.6)."""

from collections.abc import Sequence

import torch

from tiny_llm_engine.arrays.torch.kv_pools import TinyKvPagedPool


def adopt_row(
    pools: Sequence[TinyKvPagedPool],
    row: memoryview,
    kind: str,
    part: slice,
    slots: torch.Tensor,
    dtype: torch.dtype,
) -> None:
    """Writes tokens of another engine's block into the pools, wherever this engine's blocks have room for them.

    Args:
        pools: one for each layer.
        row: the bytes of a block: for each layer its keys, then its values, each (B, Hkv, D). B is the block size of
            the *other* engine.
        kind: of these numbers: "float32", "bfloat16" or "float16".
        part: which of the B tokens are wanted, N of them.
        slots: (N,) where each of them goes.
        dtype: what the pools' `write` takes.
    """
    # TASK 4.6.5: the bytes as numbers, (layers, 2, B, Hkv, D); of these the wanted tokens, in `dtype`, to their slots.
    # They may be another engine's memory, which is read-only: `torch.frombuffer` wants a copy, such as a bytearray.
    heads, size = pools[0].keys.shape[1:]
    numbers = torch.frombuffer(bytearray(row), dtype=getattr(torch, kind))
    layers = numbers.reshape(len(pools), 2, -1, heads, size)[:, :, part].to(slots.device, dtype)
    for pool, (keys, values) in zip(pools, layers, strict=True):
        pool.write(slots, keys, values)
