"""Paged attention as a compiler for fixed shapes sees it, on the torch port: one program, however long the texts."""

from functools import partial

import numpy as np

from tiny_llm_course.grading.pages import random_pages
from tiny_llm_course.recorded_operations import record
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_ref.serving import PackedBatch, SamplingParams, flat_blocks

PAGE, COUNT, H, HKV, D = 16, 32, 4, 2, 8
BATCHES = [[1, 1, 1], [17, 0, 5], [200, 31, 16], [15, 16, 17], [300, 100, 48]]


def arrays_of(port, lengths, count=COUNT):
    pages = random_pages(np.random.default_rng(0), lengths, PAGE, HKV, D)
    blocks = flat_blocks(pages.tables, lengths, PAGE, pad_block=pages.pad_block, count=count)
    return [port.array(part) for part in (pages.keys, pages.values, *blocks)]


def decode(port, query, keys, values, block_list, groups, usage, starts, _firsts):
    mask = port.block_mask(usage, PAGE, starts)
    return port.paged_decode_statistics(query, keys, values, block_list, groups, mask)


def prompt(port, query, rows, positions, keys, values, block_list, groups, usage, _starts, firsts):
    past = port.past_mask(groups, usage, firsts, PAGE, rows, positions)
    mask = port.PastMask.of(past, block_list.shape[0])
    return port.paged_prompt_statistics(query, keys, values, block_list, mask)


def largest_array(recording) -> int:
    """Numbers in the largest array that any operation was given, but the pool."""
    found: list[int] = []

    def look(part):
        if isinstance(part, tuple) and part[:1] == ("array",):
            found.append(int(np.prod(part[1])))
        elif isinstance(part, tuple):
            for inner in part:
                look(inner)

    for name, *arguments in recording.signature:
        if name != "aten::index_select":  # the one that reads from the pool
            look(tuple(arguments))
    return max(found)


def test_a_decode_is_one_program_for_a_bucket_of_pages(port):
    query = port.array(np.ones((3, H, D)))
    recordings = [record(partial(decode, port, query, *arrays_of(port, lengths))) for lengths in BATCHES]
    assert len({recording.signature for recording in recordings}) == 1
    assert not any(recording.host_reads for recording in recordings)


def test_a_bucket_more_is_a_program_more(port):
    query = port.array(np.ones((3, H, D)))
    found = {
        record(partial(decode, port, query, *arrays_of(port, BATCHES[0], n))).signature for n in (8, 16, 32)
    }
    assert len(found) == 3


def test_chunks_are_one_program_for_a_bucket_of_pages(port):
    """Whatever the pasts are, and whichever requests the tokens belong to."""
    query, rng, found = port.array(np.ones((9, H, D))), np.random.default_rng(0), []
    for lengths in BATCHES:
        rows = rng.integers(-1, 3, size=9)
        places = port.array(rows.tolist()), port.array([lengths[row] + 2 for row in rows])
        found.append(record(partial(prompt, port, query, *places, *arrays_of(port, lengths))))
    assert len({recording.signature for recording in found}) == 1
    assert not any(recording.host_reads for recording in found)


def test_what_is_gathered_grows_with_the_pages_in_use(port):
    """One request of 640 tokens and fifteen of 16: 55 pages of keys are the largest array, and not 16 · 40."""
    lengths, query = [640, *[16] * 15], port.array(np.ones((16, H, D)))
    arrays = arrays_of(port, lengths[:1], None)[:2]
    tables = [list(range(40)), *([1] for _ in range(15))]
    blocks = flat_blocks(tables, lengths, PAGE, pad_block=40)
    recording = record(partial(decode, port, query, *arrays, *map(port.array, blocks)))
    assert len(blocks.block_list) == 55
    assert largest_array(recording) == 55 * PAGE * HKV * D


def test_the_merge_of_pages_holds_nothing_for_every_page_and_request(port):
    """512 pages, 64 requests and 16 heads would be 2 MiB of float32 a layer; what it needs is a quarter of that."""
    N, B = 512, 64
    o, m, l = (port.array(np.ones(shape)) for shape in ((N, 16, 1), (N, 16), (N, 16)))
    owners = port.array(np.arange(N)[:, None] % B == np.arange(B))
    assert port.peak_bytes(lambda: port.merge_blocks((o, m, l), owners)[0]) < 2**20


def test_the_mask_of_gaudis_kernel_is_converted_once_per_step(port):
    """Not in every layer: at 2,048 rows and 256 pages a conversion writes 128 MiB. By the twins, on a CPU."""
    from tiny_llm_extensions.gaudi.hpu_attention import attend_fused, fused_mask

    reads = {"query_start": [0, 1, 7], "context_lens": [20, 33], "block_tables": [[1, 2], [5, 3, 4]]}
    sampled = {"sample_rows": [6], "sampling": [SamplingParams()]}
    batch = PackedBatch([0] * 7, [20, *range(33, 39)], [0] * 7, **reads, **sampled)
    mask = fused_mask(port.solution, inputs_of(batch, PAGE, COUNT, None, flat_blocks).map(port.array), PAGE)
    shapes = [(7, H, D), (7, HKV, D), (7, HKV, D), *[(COUNT + 1, PAGE, HKV, D)] * 2]
    recording = record(
        lambda: attend_fused(port.solution, *(port.array(np.ones(s), "bfloat16") for s in shapes), mask)
    )
    assert mask.bias.shape == (7, 3 * PAGE + 7)
    copies = [operation for operation in recording.signature if operation[0] == "aten::_to_copy"]
    assert copies and not [copy for copy in copies if tuple(mask.bias.shape) in copy[1]]
