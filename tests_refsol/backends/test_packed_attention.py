"""Attention of packed batches by every set of kernels: each request is alone with its own text."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.qwen3_layer import attention64
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_ref.serving import PackedBatch, flat_blocks, make_buckets, pad_inputs

NUM_BLOCKS = 90


@st.composite
def steps(draw, most):
    """A packed batch in any order of requests, queries, keys and values of each, and how heads are grouped.

    A request has at most `most` rows.
    """
    rng, page = np.random.default_rng(draw(st.integers(0, 2**16))), draw(st.sampled_from([1, 3, 4]))
    requests = draw(st.lists(st.tuples(st.integers(0, 12), st.integers(1, most)), min_size=1, max_size=5))
    Hkv, group = draw(st.sampled_from([(1, 1), (2, 2), (1, 4)]))
    blocks, batch, texts = rng.permutation(NUM_BLOCKS).tolist(), PackedBatch(), []
    for context, size in requests:
        table = [blocks.pop() for _ in range(-(-(context + size) // page))]
        batch.token_ids.extend([0] * size)
        batch.positions.extend(range(context, context + size))
        batch.slots.extend(table[p // page] * page + p % page for p in range(context, context + size))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(context)
        batch.block_tables.append(table)
        texts.append(rng.normal(size=(2, context + size, Hkv, 4)))
    return batch, texts, rng.normal(size=(len(batch.token_ids), group * Hkv, 4)), page


def alone(query, text, window):
    """(L, H, D) in float64: the last L tokens of one text over all that they see of it."""
    keys, positions = np.arange(text.shape[1]), np.arange(text.shape[1] - len(query), text.shape[1])[:, None]
    seen = (keys <= positions) & (keys > positions - (window or np.inf))
    arrays = (part.swapaxes(0, 1) for part in (query, *text))
    return attention64(*arrays, None, np.where(seen, 0.0, -np.inf)).swapaxes(0, 1)


def sets_of(b, name):
    """The kernels of this name; for "device" on torch those of a Gaudi too, by their twins."""
    if name != "device":
        yield SimpleNamespace(mask=b.packed_mask, attend=b.packed_attention)
        return
    of_device = import_module(f"tiny_llm_extensions.kernels.{b.name}.packed_kernels").kernels_of_device
    yield of_device(b.solution, "cpu")
    if b.name == "torch":
        yield of_device(b.solution, "hpu")


@pytest.mark.parametrize("kernels", ["simple", "device"])
@pytest.mark.parametrize("most", [6, 1], ids=["chunks and decodes", "decodes alone"])
@settings(max_examples=40)
@given(
    data=st.data(),
    strategy=st.sampled_from([None, "linear"]),
    window=st.one_of(st.none(), st.integers(1, 9)),
    poison=st.sampled_from([np.nan, 0.0]),
)
def test_each_request_reads_its_own_text_and_nothing_else(b, kernels, most, data, strategy, window, poison):
    """Any mix of chunks and decodes, over pages anywhere whose other slots hold anything, padded or not."""
    batch, texts, query, page = data.draw(steps(most))
    bucket = None if strategy is None else make_buckets(strategy, 40, 5, 20, page).of(batch)
    places = [(t, p) for t, text in zip(batch.block_tables, texts, strict=True) for p in range(text.shape[1])]
    slots = [table[p // page] * page + p % page for table, p in places]
    pages = np.full((2, (NUM_BLOCKS + 1) * page, *texts[0].shape[2:]), poison)
    pages[:, slots] = np.concatenate(texts, axis=1)
    fresh = np.concatenate(
        [text[:, context:] for text, context in zip(texts, batch.context_lens, strict=True)], axis=1
    )
    inputs = inputs_of(batch, page, NUM_BLOCKS, window, flat_blocks)
    if bucket is not None:
        inputs = pad_inputs(inputs, bucket, page, NUM_BLOCKS, window is not None)
    padding = ((0, len(inputs.token_ids) - len(query)), (0, 0), (0, 0))
    rows = [b.array(np.pad(part, padding)) for part in (query, *fresh)]
    pages = pages.reshape(2, NUM_BLOCKS + 1, page, *pages.shape[2:])
    for chosen in sets_of(b, kernels):
        mask = chosen.mask(inputs.map(b.array), page, window)
        found = b.numpy(chosen.attend(*rows, *map(b.array, pages), mask))
        for index, (span, text) in enumerate(zip(batch.spans, texts, strict=True)):
            expected = alone(query[slice(*span)], text, window)
            idea = (
                f"request {index}: rows {span}, {batch.context_lens[index]} tokens in pages, window {window}"
            )
            assert_close(found[slice(*span)], expected, atol=1e-5, rtol=1e-4, idea=idea)


def test_decodes_of_similar_length_are_one_call_and_others_are_not(b):
    """So the padding of a call is at most as long as what its requests read."""
    cpu = import_module(f"tiny_llm_extensions.kernels.{b.name}.cpu_attention")
    page, lengths = 4, [3, 70, 65, 4, 128]
    tables = [[*range(40 * i, 40 * i + -(-length // page))] for i, length in enumerate(lengths)]
    last = [length - 1 for length in lengths]
    slots = [table[-1] * page + p % page for table, p in zip(tables, last, strict=True)]
    batch = PackedBatch([0] * 5, last, slots, [*range(6)], context_lens=last, block_tables=tables)
    reads = cpu.step_reads(inputs_of(batch, page, 200, None, flat_blocks).map(b.array), page)
    found = {tuple(b.numpy(call.rows).tolist()): tuple(call.slots.shape) for call in reads.decodes}
    assert found == {(0, 3): (2, 4), (1, 2, 4): (3, 128)} and not reads.chunks, f"slots of each call: {found}"
