"""Which options of a hybrid scheduler go together. Given."""

from .buckets import Buckets
from .chunk_size import Chunker


def check_options(
    max_num_batched_tokens: int,
    max_num_seqs: int,
    max_model_len: int,
    *,
    enable_chunked_prefill: bool,
    policy: str,
    chunker: Chunker | None,
    buckets: Buckets | None = None,
) -> None:
    """Raises a ValueError that names the fix when a number is out of range, or two options exclude each other."""
    budget = f"max_num_batched_tokens is {max_num_batched_tokens}"
    if max_num_seqs < 1:
        raise ValueError(f"max_num_seqs is {max_num_seqs}: give at least 1, or nothing runs")
    if policy not in ("hybrid", "separate"):
        raise ValueError(f'policy is {policy!r}: give "hybrid" or "separate"')
    if max_num_batched_tokens < max_num_seqs:
        raise ValueError(
            f"{budget} and max_num_seqs {max_num_seqs}: each running request needs a token of the budget, so give at"
            f" least {max_num_seqs} tokens"
        )
    if not enable_chunked_prefill and max_num_batched_tokens < max_model_len:
        raise ValueError(
            f"{budget} and max_model_len {max_model_len}: without chunks the longest prompt is one step, so give at"
            f" least {max_model_len} tokens, or turn enable_chunked_prefill on"
        )
    if chunker is not None and max_num_batched_tokens < chunker.sizes[-1] + max_num_seqs:
        raise ValueError(
            f"{budget}: the chunker's largest size {chunker.sizes[-1]} and {max_num_seqs} decodes have to fit, so give"
            f" at least {chunker.sizes[-1] + max_num_seqs} tokens"
        )
    if buckets is not None:
        check_buckets(max_num_batched_tokens, max_num_seqs, policy, buckets)


def check_buckets(max_num_batched_tokens: int, max_num_seqs: int, policy: str, buckets: Buckets) -> None:
    """Raises a ValueError when the ladders are too short for a step, or leave no room for a chunk."""
    for name, least in (("decode_tokens", max_num_seqs), ("chunk_tokens", max_num_batched_tokens)):
        last = getattr(buckets, name)[-1]
        if last < least:
            raise ValueError(f"{name} of the buckets ends with {last}: let it end with {least}")
    least = least_budget(buckets, policy)
    if max_num_batched_tokens < least:
        raise ValueError(
            f"max_num_batched_tokens is {max_num_batched_tokens}: the smallest padded chunk and {max_num_seqs} decodes"
            f" have to fit, so give at least {least} tokens"
        )


def least_budget(buckets: Buckets, policy: str) -> int:
    """The fewest padded tokens per step with which a chunk fits beside the decodes, whatever their number."""
    return buckets.chunk_tokens[0] + (buckets.decode_tokens[-1] if policy == "separate" else 0)
