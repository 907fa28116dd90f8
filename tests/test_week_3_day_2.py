"""Week 3 Day 2: paged attention, flat over the pages in use. Oracle: NumPy in float64, each request by itself."""

from dataclasses import fields, replace

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.masks import assert_no_loop, assert_traces, visible_keys
from tiny_llm_course.grading.flash import flash64, statistics64
from tiny_llm_course.grading.pages import Pages, decode64, prompt64, random_pages

HEADS = [(4, 4), (6, 2), (3, 1)]  # (H, Hkv)
BORDERS = [3, 4, 5, 7, 8, 9]  # n · page_size - 1, n · page_size, n · page_size + 1 for pages of 4
POISON = [np.nan, np.inf, -np.inf, 1e30]
NAMES = ("o, the sum of exp(score - m) · value", "m, the largest score", "l, the sum of exp(score - m)")


def assert_statistics(actual, expected, idea: str, atol: float = 1e-5) -> None:
    """Compares m first, because o and l only mean something beside the right m."""
    for i in (1, 2, 0):
        assert not np.isnan(actual[i]).any(), f"NaN in {NAMES[i]}: {idea}"
        assert_close(actual[i], expected[i], atol=atol, idea=f"{NAMES[i]}: {idea}")


def assert_merges(actual, expected, idea: str, atol: float = 1e-5) -> None:
    """Compares what a merge uses of statistics, whatever their unit: the output o / l, and m + ln l."""
    for i in (1, 2, 0):
        assert not np.isnan(actual[i]).any(), f"NaN in {NAMES[i]}: {idea}"
    for name, part in (("m + ln l", logarithm_of_sum), ("o / l", output)):
        assert_close(part(actual), part(expected), atol=atol, idea=f"{name}: {idea}")


def logarithm_of_sum(statistics) -> np.ndarray:
    _, m, l = statistics
    return np.where(l == 0, -np.inf, m + np.log(np.where(l == 0, 1, l)))


def output(statistics) -> np.ndarray:
    o, _, l = statistics
    return o / np.where(l == 0, 1, l)[..., None]


def listed(s, pages: Pages, count: int | None = None, lengths=None, first_seen=None):
    lengths = pages.lengths if lengths is None else lengths
    options = {"pad_block": pages.pad_block, "count": count, "first_seen": first_seen}
    return s.flat_blocks(pages.tables, lengths, pages.page_size, **options)


# 3.2.1: the list of the pages in use


@pytest.mark.task("3.2.1")
def test_flat_blocks_lists_each_request_in_the_order_of_its_text(s):
    """Three requests of 3, 9 and 8 tokens in pages of 4: one page, three, two; pages keep the order of the table."""
    blocks = s.flat_blocks([[3], [7, 1, 12], [9, 0]], [3, 9, 8], 4, pad_block=20)
    idea = "go through the requests in order, and through each table in its order"
    assert blocks.block_list == [3, 7, 1, 12, 9, 0], f"block_list: {idea}"
    assert blocks.block_groups == [0, 1, 1, 1, 2, 2], "block_groups: the request's place among the tables"
    assert blocks.block_usage == [3, 4, 4, 1, 4, 4], (
        "block_usage: only the last page of a text may be part full"
    )
    assert blocks.block_starts == [0] * 6, (
        "block_starts: without a window pages are read from their first slot"
    )
    assert blocks.first_positions == [0, 0, 4, 8, 0, 4], "first_positions: index in the table · page_size"


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("length", [1, *BORDERS])
def test_flat_blocks_at_the_border_of_a_page(s, length):
    """n · page_size tokens fill n pages: the last has all slots in use, and there is no empty page behind it."""
    blocks = s.flat_blocks([[5, 2, 8]], [length], 4, pad_block=9)
    usage = [min(length - first, 4) for first in range(0, length, 4)]
    idea = f"{length} tokens in pages of 4: the pages in use have {usage} slots, and no page comes after them"
    assert blocks.block_usage == usage, f"{idea}; a full last page has 4, and 8 % 4 is 0"
    assert blocks.block_list == [5, 2, 8][: len(usage)], idea


@pytest.mark.task("3.2.1")
def test_flat_blocks_leaves_out_pages_without_tokens(s):
    """A table may have pages reserved for tokens to come, and a request may have nothing to read."""
    blocks = s.flat_blocks([[5, 2, 8], [], [1], [3, 4]], [5, 0, 0, 4], 4, pad_block=9)
    assert blocks.block_list == [5, 2, 3], "only pages that hold tokens are read, not those for later"
    assert blocks.block_groups == [0, 0, 3], (
        "a request with nothing to read keeps its number, and lists nothing"
    )


@pytest.mark.task("3.2.1")
def test_flat_blocks_pads_to_count(s):
    """Padding names the pad block, belongs to nobody, and has no slot in use."""
    blocks = s.flat_blocks([[3], [7, 1]], [3, 8], 4, pad_block=20, count=5)
    assert blocks.block_list == [3, 7, 1, 20, 20], "padding names the pad block, never -1"
    assert blocks.block_groups == [0, 1, 1, 2, 2], "padding has group 2, the number of requests: nobody's"
    assert blocks.block_usage == [3, 4, 4, 0, 0], "no slot of padding is in use"
    assert [len(column) for column in blocks] == [5] * 5, "all five lists have `count` entries"


@pytest.mark.task("3.2.1")
def test_flat_blocks_are_never_empty(s):
    """Nothing to read: one page of padding, because arrays of length 0 are a shape of their own."""
    blocks = s.flat_blocks([[], [2]], [0, 0], 4, pad_block=9)
    assert (blocks.block_list, blocks.block_groups) == ([9], [2]), "nothing in use: list one page of padding"


@pytest.mark.task("3.2.1")
def test_flat_blocks_of_one_long_and_fifteen_short_requests(s):
    """1,000 tokens and 15 times 10, in pages of 16: 63 + 15 pages, and not 16 · 63."""
    tables = [list(range(63)), *([63 + i] for i in range(15))]
    blocks = s.flat_blocks(tables, [1000, *[10] * 15], 16, pad_block=99)
    idea = "the list grows with the pages in use, not with the number of requests times the longest"
    assert len(blocks.block_list) == 78, idea


@pytest.mark.task("3.2.1")
def test_flat_blocks_lists_shared_pages_for_each_request(s):
    """Two requests share their first two pages: each reads them, so each lists them."""
    blocks = s.flat_blocks([[3, 7, 1], [3, 7, 5]], [9, 10], 4, pad_block=9)
    assert blocks.block_list == [3, 7, 1, 3, 7, 5], (
        "a shared page is listed once for each request that reads it"
    )


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize("first", BORDERS)
def test_flat_blocks_begin_with_the_first_token_seen(s, first):
    """A sliding window: pages before the first token seen are left out, and slots before it are not read."""
    blocks = s.flat_blocks([[5, 2, 8]], [11], 4, pad_block=9, first_seen=[first])
    index = first // 4
    idea = f"tokens {first} to 10 in pages of 4: begin with page {index} of the table, at slot {first % 4}"
    assert blocks.block_list == [5, 2, 8][index:], idea
    assert blocks.block_starts == [first % 4, *[0] * (2 - index)], idea
    assert blocks.block_usage == [4, 4, 3][index:], f"{idea}; block_usage counts from slot 0"
    assert blocks.first_positions == [0, 4, 8][index:], f"{idea}; first_positions are those of slot 0"


@pytest.mark.task("3.2.1")
@pytest.mark.parametrize(("table", "tokens", "count"), [([5, 2], 9, None), ([5, 2, 8], 9, 2)])
def test_flat_blocks_refuses_what_does_not_fit(s, table, tokens, count):
    """A table that is too short for its tokens, and more pages than `count`: ValueError with the numbers."""
    try:
        s.flat_blocks([table], [tokens], 4, pad_block=9, count=count)
    except ValueError as error:
        assert "2" in str(error), f"the message must name the numbers: {error}"
    else:
        pytest.fail(f"{len(table)} pages of 4 for {tokens} tokens, count {count}: this must raise ValueError")


# 3.2.2: the pages, and zeros where nobody reads


def gathered(b, pages, block_list, mask) -> np.ndarray:
    return b.numpy(b.gather_pages(b.array(pages), b.array(block_list), b.array(mask)))


@pytest.mark.task("3.2.2")
def test_gather_takes_the_pages_in_the_order_of_the_list(b, rng):
    """Page numbers in any order, one of them twice."""
    pages, block_list = rng.normal(size=(7, 4, 2, 3)), [5, 0, 5, 3]
    actual = gathered(b, pages, block_list, np.zeros((4, 4)))
    assert_close(
        actual, pages[block_list], atol=0, idea="page n of the result is page block_list[n] of the pool"
    )


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize("poison", POISON)
def test_gather_puts_0_where_nobody_reads(b, rng, poison):
    """Hidden slots may hold anything. Only what is exactly 0 stays 0 under any weight."""
    pages, block_list = rng.normal(size=(7, 4, 2, 3)), [5, 6, 3]
    mask = np.where(np.arange(4) < np.array([4, 0, 2])[:, None], 0, -np.inf)
    expected = np.where(np.isneginf(mask)[:, :, None, None], 0, pages[block_list])
    pages[6], pages[3, 2:] = poison, poison
    actual = gathered(b, pages, block_list, mask)
    idea = f"a hidden slot held {poison}: replace it by 0; multiplying by 0 makes NaN of NaN and of infinity"
    assert_close(actual, expected, atol=0, idea=idea)


@pytest.mark.task("3.2.2")
def test_gather_shows_slots_with_any_other_mask(b, rng):
    """A mask may hold numbers, as ALiBi's do; only -inf hides."""
    pages, mask = rng.normal(size=(3, 2, 1, 3)), np.array([[-5.0, -1e9], [0.5, 0]])
    actual = gathered(b, pages, [1, 0], mask)
    assert_close(actual, pages[[1, 0]], atol=0, idea="only -inf hides a slot; -1e9 is a number")


@pytest.mark.task("3.2.2")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gather_keeps_the_type(b, dtype):
    """Pages are half of the memory traffic of a decode step: bf16 stays bf16."""
    pages = b.array(np.ones((3, 2, 1, 4)), dtype)
    actual = b.gather_pages(pages, b.array([2, 0]), b.array([[0.0, -np.inf]] * 2))
    assert actual.dtype == b.dtype(dtype), f"the pages are {dtype} and so is the result"


@pytest.mark.task("3.2.2")
def test_gather_copies_the_listed_pages_alone(b):
    """3 pages of 1,024: the peak has nothing to do with the size of the pool."""
    pages = b.array(np.ones((1024, 16, 2, 32)))
    listed, mask = b.array([5, 0, 1000]), b.array(np.zeros((3, 16)))
    peak, bytes_of_page = b.peak_bytes(lambda: b.gather_pages(pages, listed, mask)), 16 * 2 * 32 * 4
    assert peak < 16 * bytes_of_page, (
        f"{peak:,} bytes for 3 pages of {bytes_of_page:,}: the pool was copied. Take the listed pages first, and "
        "hide slots of these"
    )


@pytest.mark.task("3.2.2")
def test_gather_writes_nothing_into_the_pool(b, rng):
    """The pool belongs to all requests: what one does not see, another one may."""
    numbers = rng.normal(size=(3, 4, 1, 2))
    pages = b.array(numbers)
    b.numpy(b.gather_pages(pages, b.array([0, 1, 2]), b.array(np.full((3, 4), -np.inf))))
    assert_close(b.numpy(pages), numbers, atol=0, idea="gather_pages wrote into the pool: return new pages")


# 3.2.3: many pages, few requests


def merged(b, blocks, owners):
    given = tuple(map(b.array, blocks))
    return tuple(map(b.numpy, b.merge_blocks(given, b.array(owners))))


def statistics_of_pages(rng, groups, B: int, loud: float = 0.0, H: int = 3, page: int = 4):
    """(o, m, l) of pages whose requests are `groups`, the owners, and what each request's keys give at once."""
    N = len(groups)
    query, bias = rng.normal(size=(B + 1, H, 1, 5)), loud * np.arange(N) * (-1.0) ** np.arange(N)
    keys, values = rng.normal(size=(2, N, H, page, 5))
    pages = [statistics64(query[g], keys[n], values[n], mask=bias[n]) for n, g in enumerate(groups)]
    whole = []
    for row in range(B):
        own = [n for n, g in enumerate(groups) if g == row]
        if not own:
            whole.append((np.zeros((H, 1, 5)), np.full((H, 1), -np.inf), np.zeros((H, 1))))
            continue
        text = (np.concatenate([x[n] for n in own], axis=-2) for x in (keys, values))
        whole.append(statistics64(query[row], *text, mask=np.repeat(bias[own], page)))
    squeezed = [tuple(np.stack(part)[:, :, 0] for part in zip(*many, strict=True)) for many in (pages, whole)]
    return squeezed[0], np.array(groups)[:, None] == np.arange(B), squeezed[1]


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("groups", [[0], [0, 1, 1, 1, 2], [2, 0, 1, 0, 2, 2], [1, 1, 3, 3, 0]])
def test_merge_of_pages_equals_all_keys_at_once(b, rng, groups):
    """Pages of a request in any order, requests without pages, padding in group 3."""
    blocks, owners, whole = statistics_of_pages(rng, groups, 3)
    idea = f"pages of requests {groups}, of 0 to 2: each page shrinks by exp(its m - its own request's largest m), "
    idea += "and a request without pages has m = -inf"
    assert_statistics(merged(b, blocks, owners), whole, idea)


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("loud", [20.0, 3000.0])
def test_merge_of_pages_whose_scores_lie_far_apart(b, rng, loud):
    """Scores of neighbouring pages are 20 or 3,000 apart, with both signs; nothing overflows."""
    blocks, owners, whole = statistics_of_pages(rng, [0, 1, 0, 1, 1, 2], 3, loud)
    idea = "the largest m of a REQUEST holds for its pages: not that of the batch, and not the page's own"
    assert_statistics(merged(b, blocks, owners), whole, idea + OR_EARLIER, atol=1e-3)


@pytest.mark.task("3.2.3")
@pytest.mark.parametrize("groups", [[3, 3], [1, 3, 3], [0, 0, 3]])
def test_merge_gives_nothing_to_requests_without_pages(b, rng, groups):
    """o = 0, m = -inf, l = 0, as Day 2.4 says it, whatever the others have."""
    blocks, owners, whole = statistics_of_pages(rng, groups, 3)
    idea = "a request without pages has o = 0, m = -inf, l = 0: shift by 0 where the largest m is -inf"
    assert_statistics(merged(b, blocks, owners), whole, idea)


@pytest.mark.task("3.2.3")
def test_merge_of_pages_that_saw_nothing(b, rng):
    """An empty page (m = -inf) beside a full one, alone, and as padding: it adds nothing, and makes no NaN."""
    (o, m, l), owners, _ = statistics_of_pages(rng, [0, 0, 1, 2], 2)
    for page in (1, 2, 3):
        o[page], m[page], l[page] = 0, -np.inf, 0
    actual = merged(b, (o, m, l), owners)
    empty = (np.zeros_like(o[0]), np.full_like(m[0], -np.inf), np.zeros_like(l[0]))
    expected = tuple(np.stack(pair) for pair in zip((o[0], m[0], l[0]), empty, strict=True))
    assert_statistics(actual, expected, "a page that saw nothing (m = -inf, l = 0) adds nothing")


@pytest.mark.task("3.2.3")
def test_merge_of_pages_traces(b, rng):
    """Any numbers, one program: the shapes alone decide what runs."""
    blocks, owners, _ = statistics_of_pages(rng, [0, 1, 1, 3], 3)
    o, m, l = assert_traces(
        b,
        lambda o, m, l, owners: b.merge_blocks((o, m, l), owners),
        *map(b.array, (*blocks, owners)),
        idea="read no number of an array; `owners` says whose page it is, as a matrix",
    )
    assert (tuple(o.shape), tuple(m.shape), tuple(l.shape)) == ((3, 3, 5), (3, 3), (3, 3))


@pytest.mark.task("3.2.3")
def test_merge_of_pages_is_no_loop(b, rng):
    """As many lines of Python for 400 pages of 400 requests as for 4."""

    def merge(n):
        arrays = np.ones((n, 1, 2)), np.zeros((n, 1)), np.ones((n, 1))
        return b.merge_blocks(tuple(map(b.array, arrays)), b.array(np.eye(n) > 0))

    assert_no_loop(merge, "a loop over pages or requests")


# 3.2.4: one token of each request


def decode(b, s, query, pages: Pages, count=None, scale=None, window=None, dtype=None):
    """`paged_decode_statistics` with the lists that the port's own solution makes."""
    first = None if window is None else [max(n - window, 0) for n in pages.lengths]
    blocks = listed(s, pages, count, first_seen=first)
    block_list, groups, usage, starts, _ = map(b.array, blocks)
    mask = b.block_mask(usage, pages.page_size, starts)
    arrays = (b.array(x, dtype) for x in (query, pages.keys, pages.values))
    return b.paged_decode_statistics(*arrays, block_list, groups, mask, scale)


def assert_decodes(b, s, query, pages, idea: str, given: Pages | None = None, atol=1e-5, **options) -> None:
    """`given`: the pages to compute with, when they are not those to compare with."""
    actual = tuple(map(b.numpy, decode(b, s, query, given or pages, **options)))
    known = {name: options.get(name) for name in ("scale", "window")}
    assert_merges(actual, decode64(query, pages, **known), idea + OR_EARLIER, atol)


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize(("H", "Hkv", "page_size"), [(4, 4, 1), (6, 2, 4), (3, 1, 16)])
def test_decode_equals_each_request_alone(b, s, rng, H, Hkv, page_size):
    """Random pages in random order, lengths around the borders of pages, few K/V heads."""
    pages = random_pages(rng, [1, 16, 9, 17, 5, 15], page_size, Hkv, num_blocks=80)
    query = rng.normal(size=(6, H, 8))
    idea = f"pages of {page_size}, {H} heads over {Hkv}: each request reads its own pages, up to its last token, "
    idea += "with its own query, and the scale once"
    assert_decodes(b, s, query, pages, idea)


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("scale", [0.3, 0.0])
def test_decode_uses_the_given_scale(b, s, rng, scale):
    """A given scale replaces 1/√D, once."""
    pages = random_pages(rng, [5, 9])
    idea = f"the given scale, {scale}, must replace 1/√D, once: on the query or on the scores"
    assert_decodes(b, s, rng.normal(size=(2, 4, 8)), pages, idea, scale=scale)


@pytest.mark.task("3.2.4")
def test_decode_with_shared_pages(b, s, rng):
    """Three requests with the same first pages: each reads them with its own query."""
    pages = random_pages(rng, [12, 3, 7])
    shared = Pages(
        pages.keys,
        pages.values,
        [pages.tables[0], pages.tables[0][:2], [*pages.tables[0][:2], *pages.tables[1]]],
        [12, 7, 11],
    )
    idea = "a shared page is read by each request with its own query"
    assert_decodes(b, s, rng.normal(size=(3, 4, 8)), shared, idea)


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("count", [6, 7, 16])
def test_decode_does_not_see_padding(b, s, rng, count):
    """The list is padded to a bucket: nothing changes."""
    pages = random_pages(rng, [5, 3, 9])
    idea = f"6 pages in use, listed as {count}: a page of padding belongs to nobody"
    assert_decodes(b, s, rng.normal(size=(3, 4, 8)), pages, idea, count=count)


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("poison", POISON)
def test_decode_is_safe_from_unused_slots(b, s, rng, poison):
    """NaN, infinity or rubbish in the pad page and in every slot without a token reaches nobody."""
    pages = random_pages(rng, [5, 3, 8])
    idea = f"{poison} in a slot without a token reached a request: 0 · NaN is NaN, and a one-hot product spreads it"
    query = rng.normal(size=(3, 4, 8))
    assert_decodes(b, s, query, pages, idea, given=pages.poisoned(poison), count=8)


@pytest.mark.task("3.2.4")
def test_decode_of_requests_with_nothing_to_read(b, s, rng):
    """Rows 0 and 2 have no pages: o = 0, m = -inf, l = 0, and row 1 does not notice."""
    pages = random_pages(rng, [0, 5, 0])
    assert_decodes(b, s, rng.normal(size=(3, 4, 8)), pages, "a request without pages gives 0 and no NaN")


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("window", [1, 3, 4, 6, 50])
def test_decode_through_a_sliding_window(b, s, rng, window):
    """The last `window` tokens of each request, whichever pages they are in."""
    pages = random_pages(rng, [5, 3, 8, 17])
    idea = f"a window of {window}: the mask hides the slots before it"
    assert_decodes(b, s, rng.normal(size=(4, 4, 8)), pages, idea, window=window)


@pytest.mark.task("3.2.4")
def test_decode_of_bf16_has_float32_statistics(b, s, rng):
    """bf16 pages and queries; o, m and l are float32, and near the exact result."""
    pages, query = random_pages(rng, [37, 3, 8], 16), rng.normal(size=(3, 4, 8))
    actual = decode(b, s, query, pages, dtype="bfloat16")
    for name, array in zip(NAMES, actual, strict=True):
        assert array.dtype == b.dtype("float32"), f"{name} must be float32, also for bf16 pages"
    out = b.numpy(b.finish_attention(actual, b.dtype("float32")))
    o, _, l = decode64(query, pages)
    assert_close(
        out, o / l[..., None], atol=0.03, rtol=0.03, idea="bf16 is far from the exact result" + OR_EARLIER
    )


@pytest.mark.task("3.2.4")
def test_decode_gathers_the_pages_in_use_alone(b, s):
    """One request of 640 tokens and fifteen of 16, in pages of 16: 55 pages, where 16 · 40 would be 640."""
    lengths = [640, *[16] * 15]
    pages = random_pages(np.random.default_rng(0), lengths, 16, 2, 32, num_blocks=60)
    blocks = listed(s, pages)
    arrays = [b.array(x) for x in (np.ones((16, 4, 32)), pages.keys, pages.values)]
    block_list, groups, usage = map(b.array, blocks[:3])
    mask = b.block_mask(usage, 16)
    peak = b.peak_bytes(lambda: b.paged_decode_statistics(*arrays, block_list, groups, mask)[0])
    padded = 640 * 16 * 2 * 32 * 4
    assert peak < padded, (
        f"{peak:,} bytes at the peak; the keys of 16 requests padded to the longest would be {padded:,}. Work page by "
        "page: no array has an axis for the longest request"
    )


@pytest.mark.task("3.2.4")
def test_decode_traces(b, rng):
    """No number is read and no shape depends on one: lengths are values in arrays."""
    pages = rng.normal(size=(9, 4, 2, 8))
    given = (rng.normal(size=(3, 4, 8)), pages, pages, [5, 8, 0, 8], [0, 3, 2, 1], np.zeros((4, 4)))
    o, m, l = assert_traces(
        b,
        b.paged_decode_statistics,
        *map(b.array, given),
        idea="read no number of an array: `block_groups` says whose page it is",
    )
    assert (tuple(o.shape), tuple(m.shape), tuple(l.shape)) == ((3, 4, 8), (3, 4), (3, 4))


@pytest.mark.task("3.2.4")
def test_decode_is_no_loop(b):
    """As many lines of Python for 400 pages as for 4."""
    pages, query = b.array(np.ones((5, 2, 1, 4))), b.array(np.ones((3, 2, 4)))

    def step(n):
        lists = b.array([0] * n), b.array([1] * n), b.array(np.zeros((n, 2)))
        return b.paged_decode_statistics(query, pages, pages, *lists)

    assert_no_loop(step, "a loop over pages or requests")


@pytest.mark.task("3.2.4")
def test_decode_merges_with_the_tokens_own_key(b, s, rng):
    """Tomorrow's use: the past from pages, the new token's key fresh, put together by Day 2.4's merge."""
    pages = random_pages(rng, [5, 8, 0])
    query, key, value = rng.normal(size=(3, 4, 8)), *rng.normal(size=(2, 3, 2, 1, 8))
    fresh = statistics64(query[:, :, None], key, value)
    fresh = tuple(b.array(x) for x in (fresh[0][:, :, 0], fresh[1][..., 0], fresh[2][..., 0]))
    both = b.merge_attention(decode(b, s, query, pages), fresh)
    actual = b.numpy(b.finish_attention(both, b.dtype("float32")))
    for row in range(3):
        text = (
            np.concatenate(pair, axis=1) for pair in zip(pages.text(row), (key[row], value[row]), strict=True)
        )
        expected = flash64(query[row, :, None], *text)[:, 0]
        assert_close(
            actual[row], expected, idea=f"request {row}: past and new token are parts of one softmax"
        )


@pytest.mark.task("3.2.4")
@pytest.mark.parametrize("window", [None, 3, 8])
def test_paged_attention_of_one_token(b, rng, window):
    """The public name: tables and lengths as lists, any window, the type of the query."""
    pages = random_pages(rng, [5, 1, 8, 13])
    query = rng.normal(size=(4, 4, 1, 8))
    arrays = map(b.array, (query, pages.keys, pages.values))
    actual = b.numpy(b.paged_attention(*arrays, pages.tables, pages.lengths, 4, window=window))
    o, _, l = decode64(query[:, :, 0], pages, window=window)
    assert_close(
        actual[:, :, 0], o / l[..., None], idea=f"the last token of each text, window {window}" + OR_EARLIER
    )


# 3.2.5: who sees which slot


def masked(b, s, pages: Pages, rows, positions, count=None, window=None) -> np.ndarray:
    blocks = listed(s, pages, count)
    groups, usage, firsts = map(b.array, (blocks.block_groups, blocks.block_usage, blocks.first_positions))
    given = (groups, usage, firsts, pages.page_size, b.array(rows), b.array(positions), window)
    return b.numpy(b.past_mask(*given))


def expected_mask(s, pages: Pages, rows, positions, count=None, window=None) -> np.ndarray:
    """By a loop over tokens, pages and slots."""
    blocks, seen = listed(s, pages, count), []
    for row, position in zip(rows, positions, strict=True):
        for group, usage, first in zip(
            blocks.block_groups, blocks.block_usage, blocks.first_positions, strict=True
        ):
            own = visible_keys(position, first + pages.page_size, window)[first:]
            seen += list(own & (np.arange(pages.page_size) < usage) & (group == row))
    return np.where(seen, 0.0, -np.inf).reshape(len(rows), -1)


def assert_masks(b, s, pages, rows, positions, idea: str, **options) -> None:
    actual, expected = (
        masked(b, s, pages, rows, positions, **options),
        expected_mask(s, pages, rows, positions, **options),
    )
    assert actual.shape == expected.shape, f"{idea}: the mask is {actual.shape}, not {expected.shape}"
    for token, slot in np.argwhere(actual != expected)[:1].tolist():
        pytest.fail(
            f"{idea}\n  the token at position {positions[token]} of request {rows[token]} has {actual[token, slot]:g} "
            f"for slot {slot % pages.page_size} of listed page {slot // pages.page_size}"
        )


@pytest.mark.task("3.2.5")
@pytest.mark.parametrize("start", BORDERS)
def test_past_mask_of_a_chunk_shows_its_past(b, s, rng, start):
    """A chunk of 3 tokens at the border of a page: all tokens before it, and no slot behind them."""
    idea = f"a chunk after {start} tokens in pages of 4 sees these {start}, and not the rest of the last page"
    assert_masks(b, s, random_pages(rng, [start]), [0] * 3, range(start, start + 3), idea)


@pytest.mark.task("3.2.5")
def test_past_mask_keeps_requests_apart(b, s, rng):
    """Two chunks with a past, a prompt without one and a decode, side by side in one row of tokens."""
    pages = random_pages(rng, [6, 0, 8])
    idea = "a token sees pages of its own request alone"
    assert_masks(b, s, pages, [0, 0, 1, 1, 2, 2, 2], [6, 7, 0, 1, 8, 9, 10], idea)


@pytest.mark.task("3.2.5")
def test_past_mask_of_tokens_without_pages(b, s, rng):
    """Row -1 is no request: such a token sees nothing, not even padding."""
    idea = "row -1 has no pages, and neither has padding: a token of -1 sees nothing"
    assert_masks(b, s, random_pages(rng, [6, 3]), [0, -1, 1, -1], [6, 9, 3, 0], idea, count=6)


@pytest.mark.task("3.2.5")
def test_past_mask_is_causal_where_the_tokens_own_keys_are_in_pages(b, s, rng):
    """All 9 tokens are written already: token i of the text sees the keys up to its own."""
    pages = random_pages(rng, [9, 7])
    idea = "a key is seen by tokens at its own position or after it: compare positions in the text"
    assert_masks(b, s, pages, [0] * 9 + [1] * 2, [*range(9), 5, 6], idea)


@pytest.mark.task("3.2.5")
@pytest.mark.parametrize("window", [1, 4, 5, 100])
def test_past_mask_through_a_sliding_window(b, s, rng, window):
    """Each token sees itself and the window - 1 tokens before it."""
    pages = random_pages(rng, [9, 6])
    idea = f"a window of {window}: keys at position - {window} and before are hidden"
    assert_masks(b, s, pages, [0, 0, 1, 1, 1], [9, 10, 5, 6, 7], idea, window=window)


@pytest.mark.task("3.2.5")
@pytest.mark.parametrize("first", [252, 2044, 30_000])
@pytest.mark.parametrize("window", [None, 5])
def test_past_mask_is_exact_far_into_a_text(b, first, window):
    """bf16 has no 257 and float16 no 2,049: positions stay integers."""
    lists = ([0, 0], [8, 8], [first, first + 8])
    positions = np.arange(first, first + 16)
    actual = b.numpy(b.past_mask(*map(b.array, lists), 8, b.array([0] * 16), b.array(positions), window))
    expected = np.where(visible_keys(positions, first + 16, window)[:, first:], 0.0, -np.inf)
    assert (actual == expected).all(), f"keys {first} to {first + 15}: compare positions as integers"


@pytest.mark.task("3.2.5")
def test_past_mask_is_float32_and_traces(b):
    """Values in arrays alone, and a mask that is exact for scores of any type."""
    lists = ([0, 1, 2], [4, 2, 0], [0, 0, 0])
    made = assert_traces(
        b,
        lambda groups, usage, firsts, rows, positions: b.past_mask(
            groups, usage, firsts, 4, rows, positions, 3
        ),
        *map(b.array, (*lists, [0, 1, 1, -1], [4, 2, 3, 0])),
        idea="read no number of an array, and make new arrays where the given ones are",
    )
    assert tuple(made.shape) == (4, 12), f"4 tokens over 3 pages of 4 slots, not {tuple(made.shape)}"
    assert made.dtype == b.dtype("float32"), "the mask is float32"


@pytest.mark.task("3.2.5")
def test_past_mask_is_no_loop(b):
    """As many lines of Python for 400 tokens and pages as for 4."""

    def mask(n):
        numbers = b.array(list(range(n)))
        return b.past_mask(numbers, numbers, numbers, 2, numbers, numbers)

    assert_no_loop(mask, "a loop over tokens or pages")


# 3.2.6: the tokens of prompts


def prompt(b, s, query, pages: Pages, rows, positions, count=None, scale=None, window=None, dtype=None):
    lists = listed(s, pages, count)
    mask = b.PastMask.of(b.array(masked(b, s, pages, rows, positions, count, window)), len(lists.block_list))
    arrays = (b.array(x, dtype) for x in (query, pages.keys, pages.values))
    return b.paged_prompt_statistics(*arrays, b.array(lists.block_list), mask, scale)


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize(("start", "H", "Hkv"), [(start, *HEADS[i % 3]) for i, start in enumerate(BORDERS)])
def test_prompt_equals_its_past_in_numpy(b, s, rng, start, H, Hkv):
    """A chunk of 3 tokens behind a past that ends before, at and behind the border of a page."""
    pages, query = random_pages(rng, [start], Hkv=Hkv), rng.normal(size=(3, H, 8))
    positions = range(start, start + 3)
    actual = tuple(map(b.numpy, prompt(b, s, query, pages, [0] * 3, positions)))
    idea = f"3 tokens after {start}, {H} heads over {Hkv}: each token sees all {start}, with few K/V heads as they are"
    assert_merges(actual, prompt64(query, pages, 0, positions), idea + OR_EARLIER)


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize("start", [0, *BORDERS])
def test_prompt_past_and_own_chunk_are_one_softmax(b, s, rng, start):
    """The past from pages and the chunk's own keys, merged, equal attention over the whole text."""
    pages, T = random_pages(rng, [start]), 5
    query, (key, value) = rng.normal(size=(T, 4, 8)), rng.normal(size=(2, 2, T, 8))
    own = np.where(np.arange(T) <= np.arange(T)[:, None], 0, -np.inf)
    fresh = statistics64(query.swapaxes(0, 1), key, value, mask=own)
    fresh = tuple(map(b.array, (fresh[0].swapaxes(0, 1), fresh[1].T, fresh[2].T)))
    both = b.merge_attention(prompt(b, s, query, pages, [0] * T, range(start, start + T)), fresh)
    actual = b.numpy(b.finish_attention(both, b.dtype("float32")))
    text = (np.concatenate(pair, axis=1) for pair in zip(pages.text(0), (key, value), strict=True))
    mask = np.concatenate([np.zeros((T, start)), own], axis=1)
    expected = flash64(query.swapaxes(0, 1), *text, mask=mask).swapaxes(0, 1)
    assert_close(
        actual, expected, idea=f"a chunk after {start} tokens: past and chunk are parts of one softmax"
    )


@pytest.mark.task("3.2.6")
def test_prompt_of_several_requests_in_one_row(b, s, rng):
    """Two chunks with a past and a prompt without one: one gather, one call."""
    pages, query = random_pages(rng, [6, 0, 9]), rng.normal(size=(7, 4, 8))
    rows, positions = [2, 2, 0, 0, 0, 1, 1], [9, 10, 6, 7, 8, 0, 1]
    actual = tuple(map(b.numpy, prompt(b, s, query, pages, rows, positions, count=9)))
    alone = [prompt64(query[[t]], pages, rows[t], [positions[t]]) for t in range(7)]
    expected = tuple(np.concatenate(part) for part in zip(*alone, strict=True))
    assert_merges(actual, expected, "each token sees what the mask shows it; one without a past sees nothing")


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize("poison", POISON)
def test_prompt_is_safe_from_unused_slots(b, s, rng, poison):
    """NaN, infinity or rubbish in the pad page and behind the last token reaches nobody."""
    pages, query = random_pages(rng, [6, 3]), rng.normal(size=(4, 4, 8))
    rows, positions = [0, 0, 1, -1], [6, 7, 3, 0]
    given = pages.poisoned(poison)
    actual = tuple(map(b.numpy, prompt(b, s, query, given, rows, positions, count=5)))
    expected = tuple(map(b.numpy, prompt(b, s, query, pages, rows, positions, count=5)))
    idea = f"{poison} in a slot that no token sees: 0 · NaN is NaN, so such slots become 0 before any product"
    assert_merges(actual, expected, idea)


@pytest.mark.task("3.2.6")
def test_prompt_does_not_hide_what_one_token_alone_sees(b, s, rng):
    """A slot is hidden from most tokens and seen by one: it is gathered as it is."""
    pages, query = random_pages(rng, [8]), rng.normal(size=(8, 4, 8))
    actual = tuple(map(b.numpy, prompt(b, s, query, pages, [0] * 8, range(8))))
    idea = "a slot becomes 0 where NO token sees it, not where one of them does not"
    assert_merges(actual, prompt64(query, pages, 0, range(8)), idea)


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize("scale", [0.3, 0.0])
def test_prompt_uses_the_given_scale(b, s, rng, scale):
    """A given scale replaces 1/√D, once."""
    pages, query = random_pages(rng, [6]), rng.normal(size=(2, 4, 8))
    actual = tuple(map(b.numpy, prompt(b, s, query, pages, [0, 0], [6, 7], scale=scale)))
    idea = f"the given scale, {scale}, must replace 1/√D, once"
    assert_merges(actual, prompt64(query, pages, 0, [6, 7], scale), idea)


@pytest.mark.task("3.2.6")
def test_prompt_of_bf16_has_float32_statistics(b, s, rng):
    """bf16 pages and queries; o, m and l are float32, and near the exact result."""
    pages, query = random_pages(rng, [37], 16), rng.normal(size=(5, 4, 8))
    actual = prompt(b, s, query, pages, [0] * 5, range(37, 42), dtype="bfloat16")
    for name, array in zip(NAMES, actual, strict=True):
        assert array.dtype == b.dtype("float32"), f"{name} must be float32, also for bf16 pages"
    out = b.numpy(b.finish_attention(actual, b.dtype("float32")))
    o, _, l = prompt64(query, pages, 0, range(37, 42))
    assert_close(
        out, o / l[..., None], atol=0.03, rtol=0.03, idea="bf16 is far from the exact result" + OR_EARLIER
    )


@pytest.mark.task("3.2.6")
def test_prompt_gathers_once_for_all_tokens(b):
    """64 tokens over 16 pages of 32: not one copy of the past for each token, nor all scores at once."""
    T, N, page, H, D = 64, 16, 32, 8, 16
    pages = b.array(np.ones((N, page, H, D)))
    given = (
        b.array(np.ones((T, H, D))),
        pages,
        pages,
        b.array(list(range(N))),
        b.PastMask.of(b.array(np.zeros((T, N * page))), N),
    )
    peak = b.peak_bytes(lambda: b.paged_prompt_statistics(*given)[0])
    once, each = N * page * H * D * 4, T * N * page * H * D * 4
    assert peak < each // 4, (
        f"{peak:,} bytes at the peak: the past is {once:,}, and a copy for each of {T} tokens {each:,}. Gather once, "
        "for all tokens"
    )


@pytest.mark.task("3.2.6")
def test_prompt_never_holds_all_scores(b):
    """256 tokens over 64 pages of 32, and 8 heads: one table of scores would be several times the keys and values."""
    T, N, page, H, D = 256, 64, 32, 8, 16
    pages = b.array(np.ones((N, page, H, D)))
    mask = b.PastMask.of(b.array(np.zeros((T, N * page))), N)
    given = b.array(np.ones((T, H, D))), pages, pages, b.array(list(range(N))), mask
    peak = b.peak_bytes(lambda: b.paged_prompt_statistics(*given)[0])
    scores = T * N * page * H * 4
    assert peak < 0.75 * scores, (
        f"{peak:,} bytes at the peak, and all {T} · {N * page} scores of {H} heads are {scores:,}: "
        "`attention_statistics` holds them at once; take the statistics in tiles"
    )


@pytest.mark.task("3.2.6")
def test_prompt_takes_from_the_mask_what_was_made_once_per_step(b, rng):
    """`slots`, and `seen` where the port has it, say here that no token sees anything, whatever the bias says."""
    pages = b.array(rng.normal(size=(4, 4, 2, 8)))
    query = b.array(rng.normal(size=(3, 4, 8)))
    mask = b.PastMask.of(b.array(np.zeros((3, 8))), 2)
    nothing = {"slots": b.array(np.full((2, 4), -np.inf)), "seen": b.array(np.zeros(3)) != 0}
    for part in {field.name for field in fields(mask)} - {"bias"}:
        given = replace(mask, **{part: nothing[part]})
        o, _, _ = b.paged_prompt_statistics(query, pages, pages, b.array([1, 3]), given)
        assert_close(
            b.numpy(o),
            np.zeros((3, 4, 8)),
            atol=0,
            idea=f"use `mask.{part}`: without it the whole bias is read again in each layer",
        )


@pytest.mark.task("3.2.6")
def test_prompt_traces(b, rng):
    """No number is read and no shape depends on one."""
    pages = rng.normal(size=(9, 4, 2, 8))
    given = (rng.normal(size=(3, 4, 8)), pages, pages, [5, 8, 0], np.zeros((3, 12)))

    def prompt_of(query, key_pages, value_pages, block_list, bias):
        mask = b.PastMask.of(bias, block_list.shape[0])
        return b.paged_prompt_statistics(query, key_pages, value_pages, block_list, mask)

    o, m, l = assert_traces(
        b, prompt_of, *map(b.array, given), idea="read no number of an array: the mask hides"
    )
    assert (tuple(o.shape), tuple(m.shape), tuple(l.shape)) == ((3, 4, 8), (3, 4), (3, 4))


@pytest.mark.task("3.2.6")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("L", [2, 5])
def test_paged_attention_of_many_tokens(b, rng, L, window):
    """The public name for the last L tokens of each text, whose keys are in pages already."""
    pages, query = random_pages(rng, [5, 9, 12]), rng.normal(size=(3, 4, L, 8))
    arrays = map(b.array, (query, pages.keys, pages.values))
    options = {"mask": "causal", "window": window}
    actual = b.numpy(b.paged_attention(*arrays, pages.tables, pages.lengths, 4, **options))
    for row, length in enumerate(pages.lengths):
        o, _, l = prompt64(query[row].swapaxes(0, 1), pages, row, range(length - L, length), window=window)
        expected = (o / l[..., None]).swapaxes(0, 1)
        assert_close(
            actual[row], expected, idea=f"the last {L} tokens of request {row}, window {window}" + OR_EARLIER
        )
