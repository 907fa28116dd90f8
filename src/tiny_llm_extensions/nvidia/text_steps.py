"""Steps whose requests are described by a block table, put on a runner: the inputs of `varlen_attention.py`.

The lists of pages that Day 3.3's attention reads are not made. Only steps of decodes are padded, for graphs of few
shapes; what Inductor compiles takes any number of rows.
"""

from dataclasses import replace
from itertools import accumulate

from tiny_llm_engine.packed_model import Bucket, PackedBatch, PackedInputs, Texts
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Network, ServingPackage

from ..engine_options import NVIDIA_BLOCK, EngineOptions
from ..given import given_of
from ..graphs.padding import pad_to


def why_no_texts(port: Port, network: Network, options: EngineOptions) -> str | None:
    """Why attention of an engine is not the kernel that reads block tables, in words; None if it is."""
    if port.device != "cuda":
        return "the kernel is for CUDA"
    if options.kv_cache_dtype != "auto":
        return f"the kernel reads no keys in {options.kv_cache_dtype}"
    if options.block_size % NVIDIA_BLOCK:
        return (
            f"the kernel needs block_size to be a multiple of {NVIDIA_BLOCK}, and it is {options.block_size}"
        )
    if options.bucketing_strategy is not None:
        return "bucketing_strategy pads the pages of other attention; leave it out"
    return given_of(port).why_no_texts(network)


def attention_in_words(why: str | None) -> str:
    """Which attention an engine on CUDA has, in one line.

    Args:
        why: from `why_no_texts`.
    """
    return "one kernel, by block tables" if why is None else f"many kernels, as the course teaches it: {why}"


def decode_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of rows to which steps of decodes are padded: powers of 2 and `max_num_seqs`, the largest first."""
    powers = [2**power for power in range((max_num_seqs - 1).bit_length())]
    return sorted({*powers, max_num_seqs}, reverse=True)


def texts_of(batch: PackedBatch, rows: int, block_size: int, pages: int, pad_block: int) -> Texts:
    """The texts of a batch, with a text of one token in the pad block for each row of padding.

    Args:
        rows: of the step, with padding.
        pages: P, blocks of the longest possible text.
    """
    padding = rows - len(batch.token_ids)
    lengths = [
        context + stop - start for (start, stop), context in zip(batch.spans, batch.context_lens, strict=True)
    ]
    lengths += [1] * padding
    tables = [*batch.block_tables, *[[]] * padding]
    used = [table[: -(-length // block_size)] for table, length in zip(tables, lengths, strict=True)]
    starts = [*batch.query_start, *range(rows - padding + 1, rows + 1)]
    return Texts(
        starts, [0, *accumulate(lengths)], lengths, [pad_to(table, pages, pad_block) for table in used]
    )


def put_texts_on(runner: PackedRunner, names: ServingPackage, max_num_seqs: int) -> None:
    """Lets a runner describe requests by a block table, and pad steps of decodes to `decode_sizes`.

    Args:
        names: the module `serving` of the solution.
    """
    sizes = decode_sizes(max_num_seqs)

    def bucket_of(batch: PackedBatch) -> Bucket | None:
        rows = len(batch.token_ids)
        if rows > len(batch.context_lens) or rows > max_num_seqs:
            return None
        size = min(size for size in sizes if size >= rows)
        return Bucket(size, size)

    def lists(batch: PackedBatch, bucket: Bucket | None) -> PackedInputs:
        size, pad_block = runner.block_size, runner.num_blocks
        own = batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sample_rows or None
        rows = len(batch.token_ids) if bucket is None else bucket.tokens
        pages = -(-runner.max_model_len // size)
        inputs = PackedInputs(*own, None, None)
        padded = inputs if bucket is None else names.pad_inputs(inputs, bucket, size, pad_block)
        return replace(padded, texts=texts_of(batch, rows, size, pages, pad_block))

    runner.bucket_of, runner.lists = bucket_of, lists
