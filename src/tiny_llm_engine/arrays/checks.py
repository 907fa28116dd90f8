"""What functions of Week 2 and Week 3 refuse before they compute anything: the same in both ports."""

from collections.abc import Sequence
from typing import Any

from .layers import Array


def check_attention(query: Array, key: Array, mask: Array | str | None) -> None:
    """Raises ValueError for arguments that no path of attention takes."""
    H, Hkv = query.shape[-3], key.shape[-3]
    if H % Hkv:
        raise ValueError(f"{H} query heads cannot share {Hkv} K/V heads: H must be a multiple of Hkv")
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'mask {mask!r} is unknown: give "causal", an array or None')


def check_pages(key_pages: Array, page_size: int, L: int, mask: str | None, window: int | None) -> None:
    """Raises ValueError for arguments that `paged_attention` does not take."""
    if page_size != key_pages.shape[1]:
        raise ValueError(f"page_size is {page_size}, but a page of this pool has {key_pages.shape[1]} slots")
    if mask not in (None, "causal"):
        raise ValueError(f'mask {mask!r} is unknown: give "causal" or None')
    if window is not None and mask is None and L > 1:
        raise ValueError(
            f'a window of {window} tokens needs mask="causal": without it all queries see the end'
        )


def check_chunk(chunk_start: int | Array, chunk_size: int, total_length: int | None) -> None:
    """Raises ValueError for a chunk that has no mask."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: a chunk has at least 1 token")
    if not isinstance(chunk_start, int):
        if total_length is None:
            raise ValueError("chunk_start is an array, which is not read here: give total_length as well")
        return
    if chunk_start < 0:
        raise ValueError(f"chunk_start is {chunk_start}: a prompt begins at 0")
    if total_length is not None and total_length < chunk_start + chunk_size:
        raise ValueError(
            f"total_length is {total_length}, but the chunk ends at {chunk_start} + {chunk_size}: "
            "its own keys are among them"
        )


def check_caches(cache: Sequence[Any], num_layers: int, B: int, offset: int | Sequence[int] | Array) -> None:
    """Raises ValueError for caches of another model, or an offset that is not the number of tokens held."""
    if len(cache) != num_layers:
        raise ValueError(
            f"{len(cache)} caches for {num_layers} layers: give one per layer, as create_kv_cache does"
        )
    if hasattr(offset, "shape"):
        return  # to read an array, the host would wait for the device
    given, held = [offset] * B if isinstance(offset, int) else list(offset), cache[0].next_positions(B)
    if given != held:
        raise ValueError(f"offset {given}, but the rows of the caches hold {held} tokens: give this number")


def check_slot(batch: Any, slot: int, prefilled: Any) -> None:
    """Raises ValueError if a slot of a `BatchingKvCache` cannot take this request's cache."""
    if not 0 <= slot < batch.max_active_requests:
        raise ValueError(f"slot {slot} is not one of 0 to {batch.max_active_requests - 1}")
    if batch.active[slot]:
        raise ValueError(f"slot {slot} is taken: remove its request first")
    if prefilled.offset == 0:
        raise ValueError("the request's cache is empty: prefill the request before it takes a slot")
    length = batch.max_seq_len or prefilled.max_seq_len
    if length is None:
        raise ValueError(
            "neither this cache nor the request's has a max_seq_len: give one of them its length"
        )
    if prefilled.offset > length:
        raise ValueError(f"{prefilled.offset} tokens do not fit a slot of {length}")


def check_rows(batch: Any, B: int, L: int) -> None:
    """Raises ValueError if a `BatchingKvCache` cannot take L more tokens in each of B rows."""
    rows = [slot for slot, used in enumerate(batch.active) if used]
    if not rows or rows[-1] >= B:
        raise ValueError(f"{B} rows for requests in slots {rows}: every slot in use needs its row")
    if batch.max_seq_len is not None and max(batch.offsets) + L > batch.max_seq_len:
        raise ValueError(f"{max(batch.offsets)} + {L} tokens do not fit a slot of {batch.max_seq_len}")


def check_groups(columns: int, group_size: int, bits: int) -> None:
    """Raises ValueError if rows of `columns` numbers cannot be quantised in this way."""
    if bits not in (4, 8):
        raise ValueError(f"bits is {bits} and must be 4 or 8")
    if group_size not in (32, 64, 128):
        raise ValueError(f"group_size is {group_size} and must be 32, 64 or 128")
    if columns % group_size:
        raise ValueError(f"rows of {columns} numbers cannot be cut into groups of {group_size}")


def check_quantized(weight: Array, scales: Array, biases: Array, group_size: int, bits: int) -> None:
    """Raises ValueError if the three parts of a quantised matrix do not fit together."""
    columns = scales.shape[-1] * group_size
    check_groups(columns, group_size, bits)
    if scales.shape != biases.shape or weight.shape != (*scales.shape[:-1], columns * bits // 32):
        shapes = ", ".join(str(tuple(part.shape)) for part in (weight, scales, biases))
        raise ValueError(f"words, scales and biases {shapes} do not fit group_size {group_size}, bits {bits}")


def check_product(
    scales: Array, biases: Array, group_size: int, bits: int, a: Array, b: Array, transpose_b: bool
) -> None:
    """Raises ValueError if `b` is not a quantised matrix, or `a` cannot be multiplied by it."""
    check_quantized(b, scales, biases, group_size, bits)
    outputs, inputs = scales.shape[0], scales.shape[1] * group_size
    wanted = inputs if transpose_b else outputs
    if a.shape[-1] != wanted:
        raise ValueError(
            f"a has {a.shape[-1]} columns, and W ({outputs}, {inputs}) needs {wanted} with "
            f"transpose_b={transpose_b}"
        )
