"""Paged attention beyond the day tests: any tables and lengths, what a compiler sees, what the public name refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from tiny_llm_course.grading.flash import flash64
from tiny_llm_course.grading.pages import Pages, decode64, prompt64, random_pages
from tiny_llm_ref.serving import flat_blocks

COUNT = 24  # pages in a bucket


@st.composite
def batches(draw):
    """Pages of requests that may share any of them, in any order, and the random numbers to fill them."""
    page_size, rng = draw(st.sampled_from([1, 3, 4, 16])), np.random.default_rng(draw(st.integers(0, 2**16)))
    tables = draw(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5))
    lengths = [draw(st.integers(0, len(table) * page_size)) for table in tables]
    Hkv, group = draw(st.sampled_from([(1, 1), (2, 2), (2, 3), (1, 4)]))
    keys, values = rng.normal(size=(2, 11, page_size, Hkv, 4))
    return Pages(keys, values, tables, lengths), group * Hkv, rng


def arrays_of(b, pages: Pages, count=None, first_seen=None) -> list:
    options = {"pad_block": pages.pad_block, "count": count, "first_seen": first_seen}
    return [b.array(part) for part in flat_blocks(pages.tables, pages.lengths, pages.page_size, **options)]


def assert_equal(b, actual, expected, idea: str) -> None:
    """The outputs, and the sums in one unit for all."""
    for mine, right in zip(in_one_unit(tuple(map(b.numpy, actual))), in_one_unit(expected), strict=True):
        assert_close(mine, right, idea=idea)


def in_one_unit(statistics) -> tuple[np.ndarray, np.ndarray]:
    o, m, l = statistics
    some = np.where(l == 0, 1, l)
    return o / some[..., None], np.where(l == 0, -np.inf, m + np.log(some))


@settings(max_examples=60)
@given(
    batch=batches(),
    window=st.one_of(st.none(), st.integers(1, 20)),
    poison=st.sampled_from([np.nan, -np.inf, 0.0]),
)
def test_decode_equals_dense_attention_for_any_tables(b, batch, window, poison):
    pages, H, rng = batch
    query = rng.normal(size=(len(pages.tables), H, 4))
    first = None if window is None else [max(length - window, 0) for length in pages.lengths]
    block_list, groups, usage, starts, _ = arrays_of(b, pages, COUNT + 1, first)
    mask, bad = b.block_mask(usage, pages.page_size, starts), pages.poisoned(poison)
    given_arrays = map(b.array, (query, bad.keys, bad.values))
    actual = b.paged_decode_statistics(*given_arrays, block_list, groups, mask)
    assert_equal(b, actual, decode64(query, pages, window=window), f"window {window}")


@settings(max_examples=60)
@given(
    batch=batches(),
    window=st.one_of(st.none(), st.integers(1, 20)),
    poison=st.sampled_from([np.nan, np.inf, 0.0]),
)
def test_chunks_of_any_requests_equal_dense_attention(b, batch, window, poison):
    """Tokens in any order of requests, some without pages, each behind the past of its own request."""
    pages, H, rng = batch
    rows = rng.integers(0, len(pages.tables), size=7).tolist()
    positions = [pages.lengths[row] + int(rng.integers(0, 4)) for row in rows]
    block_list, groups, usage, _, firsts = arrays_of(b, pages, COUNT + 1)
    places = (b.array(rows), b.array(positions))
    mask, bad = b.past_mask(groups, usage, firsts, pages.page_size, *places, window), pages.poisoned(poison)
    query = rng.normal(size=(7, H, 4))
    given_arrays = map(b.array, (query, bad.keys, bad.values))
    shown = b.PastMask.of(mask, COUNT + 1)
    actual = b.paged_prompt_statistics(*given_arrays, block_list, shown)
    alone = [prompt64(query[[t]], pages, rows[t], [positions[t]], window=window) for t in range(7)]
    assert_equal(b, actual, [np.concatenate(part) for part in zip(*alone, strict=True)], f"window {window}")


def test_paged_attention_without_a_mask_sees_the_whole_text(b):
    rng = np.random.default_rng(0)
    pages, query = random_pages(rng, [5, 9]), rng.normal(size=(2, 4, 3, 8))
    given_arrays = map(b.array, (query, pages.keys, pages.values))
    actual = b.numpy(b.paged_attention(*given_arrays, pages.tables, pages.lengths, 4))
    for row in range(2):
        assert_close(actual[row], flash64(query[row], *pages.text(row)), idea=f"request {row}")


MEANINGLESS = [
    ({"page_size": 8}, "page_size is 8, but a page of this pool has 4 slots"),
    ({"mask": "sliding"}, "mask 'sliding' is unknown: give \"causal\" or None"),
    ({"window": 3}, 'a window of 3 tokens needs mask="causal"'),
]


@pytest.mark.parametrize(("options", "message"), MEANINGLESS)
def test_paged_attention_refuses_what_has_no_meaning(b, options, message):
    pages = random_pages(np.random.default_rng(0), [5])
    given_arrays = map(b.array, (np.ones((1, 4, 2, 8)), pages.keys, pages.values))
    with pytest.raises(ValueError, match=message):
        b.paged_attention(*given_arrays, pages.tables, pages.lengths, **{"page_size": 4, **options})
