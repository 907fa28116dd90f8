"""Week 3 Day 4: buckets. Ladders, the shapes of a step, padding that changes nothing, and a budget of padded tokens.

Oracles: exact ladders; batches that are made for each bucket; the same requests without padding, in float32.
"""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.fake_model import ByteTokenizer
from support.packed import PackedServing, batch_with, poison_padding
from support.steps import steps_of
from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_extensions.make_loop import make_loop

PAGE = 4
QWEN = small_model(
    34, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=400
)

# Ladders.


@pytest.mark.task("3.4.1")
@pytest.mark.parametrize(
    ("value", "size"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 10), (9, 10), (10, 10)]
)
def test_bucketize_takes_the_smallest_rung_that_is_large_enough(s, value, size):
    """A value that is a size stays as it is; any other goes up, never down."""
    found = s.bucketize(value, (1, 2, 4, 10))
    assert found == size, f"{value} on the ladder 1, 2, 4, 10 is {size}, not {found}"


@pytest.mark.task("3.4.1")
@given(ladder=st.sets(st.integers(1, 500), min_size=1), value=st.integers(0, 500))
@settings(max_examples=100, deadline=None)
def test_bucketize_of_any_ladder(s, ladder, value):
    """No size below it is large enough."""
    ladder = sorted(ladder)
    if value > ladder[-1]:
        with pytest.raises(ValueError):
            s.bucketize(value, ladder)
    else:
        size = s.bucketize(value, ladder)
        assert size in ladder and size >= value, f"{value} on {ladder}: {size} is not large enough"
        assert not [low for low in ladder if value <= low < size], (
            f"{value} on {ladder}: {size} is not the smallest"
        )


@pytest.mark.task("3.4.1")
def test_bucketize_refuses_what_is_above_the_last_rung(s):
    """Padding down would drop tokens. The error has both numbers, and says what to change."""
    with pytest.raises(ValueError, match=r"11.*10.*larger"):
        s.bucketize(11, (1, 2, 10))


@pytest.mark.task("3.4.2")
@pytest.mark.parametrize(
    ("arguments", "ladder"),
    [
        ((1, 16, 5), (1, 2, 4, 8, 16)),
        ((1, 512, 10), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
        ((1, 3**10, 11), tuple(3**i for i in range(11))),
        ((20, 100, 4), (20, 35, 59, 100)),
        ((1, 8, 9), (1, 2, 3, 4, 5, 7, 8)),
        ((4, 64, 3, 10), (10, 20, 64)),
        ((1, 101, 3), (1, 11, 101)),
        ((5, 5, 2), (5,)),
    ],
)
def test_exponential_ladder_has_equal_ratios(s, arguments, ladder):
    """Size i is least · (most / least)^(i / (count - 1)), rounded up; equal sizes are one, and `most` is the last."""
    found = s.exponential_ladder(*arguments)
    assert tuple(found) == ladder, f"exponential_ladder{arguments} is {ladder}, not {tuple(found)}"


@pytest.mark.task("3.4.2")
@given(least=st.integers(1, 40), ratio=st.integers(1, 300), count=st.integers(2, 14), step=st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_exponential_ladder_ascends_to_its_end(s, least, ratio, count, step):
    """At most `count` sizes and the end; multiples of `step` but for the end; none twice."""
    most = least * ratio
    ladder = list(s.exponential_ladder(least, most, count, step))
    says = f"exponential_ladder({least}, {most}, {count}, {step}) is {ladder}"
    assert ladder == sorted(set(ladder)) and ladder[-1] == most and len(ladder) <= count, says
    assert all(size % step == 0 and size >= least for size in ladder[:-1]), says


@pytest.mark.task("3.4.3")
@pytest.mark.parametrize(
    ("arguments", "options", "ladder"),
    [
        ((1, 8, 64), {}, (1, 2, 4, 8, 16, 24, 32, 40, 48, 64)),
        ((1, 8, 64), {"pad_percent": 50}, (1, 4, 8, 16, 32, 64)),
        ((1, 8, 64), {"pad_percent": 0}, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        ((1, 1, 12), {"pad_percent": 25}, (1, 2, 4, 6, 9, 12)),
        ((1, 4, 40), {"pad_percent": 90, "pad_max": 7}, (1, 8, 16, 24, 32, 40)),
        ((8, 8, 8), {}, (8,)),
        ((5, 8, 9), {}, (5, 8, 9)),
    ],
)
def test_padding_aware_ladder_leaves_out_what_saves_little(s, arguments, options, ladder):
    """A size of the linear ladder stays when the next one would pad the value after the size before by too much."""
    found = s.padding_aware_ladder(*arguments, **options)
    assert tuple(found) == ladder, f"padding_aware_ladder{arguments} {options}: {ladder}, not {tuple(found)}"


@pytest.mark.task("3.4.3")
@given(
    step=st.integers(1, 20),
    most=st.integers(1, 300),
    percent=st.integers(0, 95),
    pad_max=st.none() | st.integers(0, 60),
)
@settings(max_examples=100, deadline=None)
def test_padding_aware_ladder_keeps_its_promise(s, step, most, percent, pad_max):
    """It is a part of the linear ladder, pads within the limits wherever that one can, and needs every size it has."""
    linear = s.linear_ladder(1, step, most)
    found = s.padding_aware_ladder(1, step, most, pad_percent=percent, pad_max=pad_max)
    says = f"of {linear}, {percent} % and {pad_max}: {found}"
    assert set(found) <= set(linear) and (found[0], found[-1]) == (linear[0], linear[-1]), says

    def is_within(size, before):
        padding = size - before - 1
        return padding <= size * percent / 100 and (pad_max is None or padding <= pad_max)

    for before, size in pairwise(found):
        position = linear.index(size)
        assert is_within(size, before) or linear[position - 1] == before, f"{size} pads too much {says}"
        following = linear[position + 1 :][:1]
        assert not following or not is_within(following[0], before), f"{size} could be left out {says}"


# The bucket of a batch, and the list of all buckets.


def buckets_of(s, **changes):
    """Buckets that are small enough to be read: 4 requests of 3 pages at most, 16 tokens per step."""
    options = {
        "decode_tokens": (1, 2, 4),
        "chunk_tokens": (6, 10, 16),
        "decode_pages": (1, 2, 4, 8, 12),
        "chunk_pages": (2, 6, 12),
        "max_num_seqs": 4,
        "page_size": PAGE,
        "pages_per_request": 3,
        "chunk_readers": 4,
        "decode_readers": 4,
    }
    return s.Buckets(**{**options, **changes})


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize(
    ("requests", "bucket"),
    [
        # (context, rows) of each request: tokens, rows, pages of chunks, pages of requests of one row.
        ([(3, 1)], (1, 1, 0, 1)),
        ([(12, 1)], (1, 1, 0, 4)),
        ([(4, 1), (5, 1)], (2, 2, 0, 4)),
        ([(1, 1), (1, 1), (1, 1)], (4, 4, 0, 4)),
        ([(0, 1)], (1, 1, 0, 1)),
        ([(0, 1), (0, 1), (9, 1)], (4, 4, 0, 4)),
        ([(0, 2)], (6, 4, 0, 0)),
        ([(0, 5), (0, 1)], (6, 4, 0, 0)),
        ([(0, 5), (3, 1)], (6, 4, 0, 6)),
        ([(3, 1), (0, 5)], (6, 4, 0, 6)),
        ([(8, 7)], (10, 4, 2, 0)),
        ([(9, 3), (3, 1), (11, 1), (4, 1)], (6, 4, 6, 6)),
        ([(9, 3), (12, 13)], (16, 4, 6, 0)),
        ([(1, 3), (12, 1), (12, 1), (12, 1)], (6, 4, 2, 12)),
    ],
)
def test_the_bucket_of_a_batch(s, requests, bucket):
    """Steps of decodes and steps with chunks have ladders of their own; each row counts as a page at least."""
    found = buckets_of(s).of(batch_with(s, requests, PAGE))
    assert found == s.Bucket(*bucket), f"(context, rows) {requests}: {s.Bucket(*bucket)}, not {found}"


@pytest.mark.task("3.4.4")
def test_one_token_in_the_middle_of_a_prompt_is_no_chunk(s):
    """Nothing is sampled after it, and its request has one row: a step of decodes as far as shapes go."""
    batch = batch_with(s, [(5, 1), (3, 1)], PAGE)
    del batch.sample_rows[0], batch.sampling[0]
    found = buckets_of(s).of(batch)
    assert found == s.Bucket(2, 2, 0, 4), (
        f"a step has chunks when it has more tokens than requests, whatever is sampled: {found}"
    )


@pytest.mark.task("3.4.4")
@pytest.mark.parametrize(("requests", "bucket"), [([(12, 1), (3, 1)], (2, 2)), ([(9, 3), (3, 1)], (6, 4))])
def test_without_padded_pages_a_bucket_is_a_number_of_tokens(s, requests, bucket):
    """`decode_pages` and `chunk_pages` are None: so are the pages of every bucket."""
    found = buckets_of(s, decode_pages=None, chunk_pages=None).of(batch_with(s, requests, PAGE))
    assert found == s.Bucket(*bucket), f"(context, rows) {requests}: {s.Bucket(*bucket)}, not {found}"


@pytest.mark.task("3.4.4")
def test_a_batch_that_no_bucket_holds_is_refused(s):
    """17 tokens, or 5 requests that decode, where the ladders end with 16 and 4."""
    for requests in ([(0, 17)], [(1, 1)] * 5):
        with pytest.raises(ValueError, match="above the last bucket size"):
            buckets_of(s).of(batch_with(s, requests, PAGE))


def is_possible(buckets, requests) -> bool:
    """Whether a scheduler with these options can make a batch of these (context, rows)."""
    chunks = [context for context, rows in requests if rows > 1]
    pages = sum(-(-context // buckets.page_size) for context, _ in requests)
    ones = [context for context, rows in requests if rows == 1 and context]
    return (
        len(requests) <= buckets.max_num_seqs
        and sum(rows for _, rows in requests) <= buckets.chunk_tokens[-1]
        and sum(context > 0 for context in chunks) <= buckets.chunk_readers
        and (not chunks or len(ones) <= buckets.decode_readers)
        and (buckets.num_pages is None or pages <= buckets.num_pages)
    )


def all_batches(buckets):
    """Every batch of these buckets, up to what makes no difference: the last page is full or nothing is read."""
    kinds = [
        (pages * buckets.page_size, rows) for pages in range(buckets.pages_per_request + 1) for rows in (1, 2)
    ]
    lists = [[]]
    for _ in range(buckets.max_num_seqs):
        lists += [[*one, kind] for one in lists for kind in kinds if not one or kind >= one[-1]]
    for requests in lists[1:]:
        if not is_possible(buckets, requests):
            continue
        chunks = [i for i, (_, rows) in enumerate(requests) if rows > 1]
        rows = sum(rows for _, rows in requests)
        for more in range(buckets.chunk_tokens[-1] - rows + 1 if chunks else 1):  # in the first chunk
            longer = (
                [(c, r + more * (i == chunks[0])) for i, (c, r) in enumerate(requests)]
                if chunks
                else requests
            )
            yield longer


SMALL = {"max_num_seqs": 3, "decode_tokens": (1, 3), "chunk_tokens": (5, 10), "decode_pages": (1, 2, 4, 9)}
OPTIONS = {
    "any pasts": SMALL,
    "one chunk with a past": {**SMALL, "chunk_readers": 1},
    "separate calls": {**SMALL, "chunk_readers": 1, "decode_readers": 1},
    "whole prompts": {**SMALL, "chunk_readers": 0, "decode_readers": 0},
    "few pages": {**SMALL, "num_pages": 3},
    "one request": {
        "max_num_seqs": 1,
        "decode_tokens": (1,),
        "chunk_tokens": (2, 5),
        "decode_pages": (1, 2, 3),
        "chunk_pages": (1, 3),
    },
    "few tokens": {**SMALL, "chunk_tokens": (3,)},
}


@pytest.fixture(scope="module")
def met(s):
    """By the name of the options: the buckets, and all of them that some batch has."""
    found = {}
    for name, changes in OPTIONS.items():
        buckets = buckets_of(s, **changes)
        batches = (batch_with(s, requests, PAGE) for requests in all_batches(buckets))
        found[name] = buckets, set(map(buckets.of, batches))
    return found


@pytest.mark.task("3.4.5")
@pytest.mark.parametrize("name", OPTIONS)
def test_a_step_with_chunks_is_reachable_exactly_when_a_batch_has_it(s, met, name):
    """Compared with every batch that there can be."""
    buckets, batches = met[name]
    for tokens in buckets.chunk_tokens:
        for chunk_pages in (0, *buckets.chunk_pages):
            for decode_pages in (0, *buckets.chunk_pages):
                bucket = s.Bucket(tokens, min(tokens, buckets.max_num_seqs), chunk_pages, decode_pages)
                if bucket in batches and tokens in buckets.decode_tokens:
                    continue  # a step of decodes may look like this one
                found = buckets.is_step_with_chunks(bucket)
                assert found is (bucket in batches), (
                    f"{name}, {bucket}: {'some' if bucket in batches else 'no'} batch has it, and is_step_with_chunks "
                    f"says {found}"
                )


@pytest.mark.task("3.4.6")
@pytest.mark.parametrize("name", OPTIONS)
def test_the_warm_up_list_has_what_a_batch_can_meet_and_nothing_else(met, name):
    """A bucket that is missing is compiled while somebody waits; one too many is compiled for nobody."""
    buckets, batches = met[name]
    listed = buckets.warm_up_list()
    assert len(listed) == len(set(listed)), f"{name}: a bucket is in the list twice"
    missing, extra = batches - set(listed), set(listed) - batches
    assert not missing, f"{name}: {len(missing)} buckets are missing, such as {min(missing, key=str)}"
    assert not extra, f"{name}: no batch has {min(extra, key=str)}, nor {len(extra) - 1} others of the list"


@pytest.mark.task("3.4.6")
def test_the_warm_up_list_begins_with_the_largest(s):
    """By rows, then by pages: what does not fit into memory fails at once."""
    sizes = [bucket.size for bucket in buckets_of(s).warm_up_list()]
    assert sizes == sorted(sizes, reverse=True), f"the sizes are {sizes}"


@pytest.mark.task("3.4.6")
@pytest.mark.parametrize("strategy", ["exponential", "linear", "padding-aware"])
def test_the_warm_up_list_of_every_strategy_holds_random_batches(s, rng, strategy):
    """Batches of 16 requests in a context of 2,048 tokens, with a budget of 512: each is in the list."""
    buckets = s.make_buckets(strategy, 512, 16, 2048, 128)
    listed = set(buckets.warm_up_list())
    for _ in range(300):
        requests, left = [], 512
        for _ in range(rng.integers(1, 17)):
            rows = 1 if rng.random() < 0.7 else int(rng.integers(1, left + 1))
            requests.append((int(rng.integers(0, 2049 - rows)), rows))
            left -= rows
            if not left:
                break
        bucket = buckets.of(batch_with(s, requests, 128))
        assert bucket in listed, f"(context, rows) {requests}: {bucket} is not in the list"


# Padding.


def reads_of(s, rows, contexts):
    """What requests of one row at these rows read: pages from 0 on."""
    tables = [list(range(10 * i, 10 * i + -(-context // PAGE))) for i, context in enumerate(contexts)]
    return s.PastReads(
        list(rows), list(range(len(rows))), s.flat_blocks(tables, contexts, PAGE, pad_block=99)
    )


@pytest.mark.task("3.4.7")
@pytest.mark.parametrize(
    ("rows", "contexts", "shape"),
    [
        ([0, 1], [5, 9], (4, 4, 8)),
        ([2], [3], (6, 4, 6)),
        ([3, 1, 5], [4, 1, 9], (6, 3, 5)),
        ([0], [1], (1, 1, 1)),
    ],
)
def test_padded_reads_of_single_rows(s, rows, contexts, shape):
    """The rows that read stay group 0, 1, …; others follow, none twice; the pages of padding are nobody's."""
    tokens, count, pages = shape
    reads = reads_of(s, rows, contexts)
    padded = s.pad_decode_reads(reads, tokens, count, pages, 99)
    n = len(reads.blocks.block_list)
    assert padded.rows[: len(rows)] == rows, f"the rows that read come first: {padded.rows}"
    assert len(padded.rows) == len(padded.groups) == count, (
        f"{count} rows and groups: {padded.rows}, {padded.groups}"
    )
    assert len(set(padded.rows)) == count and set(padded.rows) <= set(range(tokens)), (
        f"different rows of the step: {padded.rows}; two statistics for one row, and one of them is lost"
    )
    for column, before, filler in zip(padded.blocks, reads.blocks, (99, count, 0, 0, 0), strict=True):
        assert column == [*before, *[filler] * (pages - n)], f"{pages} pages, fillers {filler}: {column}"


@pytest.mark.task("3.4.7")
def test_padded_reads_of_nobody(s):
    """A bucket with pages, and a batch in which nobody reads: rows of the step and pages of padding. 0 pages: None."""
    padded = s.pad_decode_reads(None, 4, 2, 3, 99)
    assert sorted(set(padded.rows)) == sorted(padded.rows) and len(padded.rows) == 2, (
        f"two rows: {padded.rows}"
    )
    assert padded.blocks.block_list == [99] * 3 and padded.blocks.block_groups == [2] * 3, f"{padded.blocks}"
    assert s.pad_decode_reads(None, 4, 2, 0, 99) is None, "a bucket without such pages has no such part"


def padded_inputs(s, batch, bucket, window=None):
    """What a model with this window gets in a bucket."""
    return s.pad_inputs(
        inputs_of(batch, PAGE, 50, window, s.flat_blocks), bucket, PAGE, 50, window is not None
    )


@pytest.mark.task("3.4.8")
@pytest.mark.parametrize(
    "requests", [[(5, 1), (9, 1)], [(6, 4), (5, 1)], [(0, 3)], [(0, 1)], [(7, 2), (3, 3), (2, 1)]]
)
def test_a_padded_batch_has_the_lengths_of_its_bucket(s, requests):
    """Whatever is in it; the rows that were there are as they were."""
    batch, buckets = batch_with(s, requests, PAGE), buckets_of(s)
    bucket = buckets.of(batch)
    plain, padded = inputs_of(batch, PAGE, 50, None, s.flat_blocks), padded_inputs(s, batch, bucket)
    T = len(batch.token_ids)
    for name in ("token_ids", "positions", "slots", "segments"):
        before, found = getattr(plain, name), getattr(padded, name)
        assert len(found) == bucket.tokens, f"{name}: {bucket.tokens} entries, not {len(found)}"
        assert found[:T] == before, f"{name}: the first {T} stay {before}: {found}"
    assert set(padded.slots[T:]) <= {50 * PAGE}, f"padding is written to slot {50 * PAGE}: {padded.slots[T:]}"
    assert not any(padded.positions[T:]), (
        f"padding is at position 0, which each model has: {padded.positions}"
    )
    assert not set(padded.segments[T:]) & set(plain.segments), (
        f"segments {padded.segments}: padding is a request of its own, or the last request sees it"
    )
    assert len(padded.sample_rows) == bucket.rows, f"{bucket.rows} sampled rows: {padded.sample_rows}"
    assert padded.sample_rows[: len(batch.sample_rows)] == batch.sample_rows, f"{padded.sample_rows}"
    assert all(row < bucket.tokens for row in padded.sample_rows), (
        f"{padded.sample_rows} of {bucket.tokens} rows"
    )
    for reads, pages in ((padded.chunks, bucket.chunk_pages), (padded.decodes, bucket.decode_pages)):
        assert (0 if reads is None else len(reads.blocks.block_list)) == pages, f"{pages} pages: {reads}"


@pytest.mark.task("3.4.8")
def test_sampled_rows_are_padded_where_nobody_is_sampled(s):
    """The middle of a prompt: the head runs all the same, because a step without it would be one shape more."""
    batch = batch_with(s, [(4, 5)], PAGE)
    batch.sample_rows.clear()
    bucket = buckets_of(s).of(batch)
    padded = padded_inputs(s, batch, bucket)
    assert len(padded.sample_rows) == bucket.rows == 4, f"4 rows: {padded.sample_rows}"


@pytest.mark.task("3.4.8")
def test_windows_are_padded_like_the_rest(s):
    """A model with sliding windows reads fewer pages there, and as many after padding; without windows, None."""
    batch, buckets = batch_with(s, [(12, 1), (7, 1)], PAGE), buckets_of(s)
    bucket = buckets.of(batch)
    padded = padded_inputs(s, batch, bucket, 3)
    plain, found = (
        inputs_of(batch, PAGE, 50, 3, s.flat_blocks).window_decodes.blocks,
        padded.window_decodes.blocks,
    )
    assert len(found.block_list) == bucket.decode_pages, f"{padded.window_decodes}"
    pages = len(plain.block_list)
    assert [part[:pages] for part in found] == list(map(list, plain)), (
        f"in these layers requests read the pages of their window, {plain.block_list}, and not {found.block_list}"
    )
    assert not any(found.block_usage[pages:]), f"padding has no slot in use: {found.block_usage}"
    assert padded_inputs(s, batch, bucket).window_decodes is None, "no window, no part"
    nobody = batch_with(s, [(0, 1)], PAGE)
    padded = padded_inputs(s, nobody, buckets.of(nobody), 3)
    assert padded.window_decodes is not None, "nobody reads, and the shape has the part"


@pytest.fixture(scope="module")
def model(b):
    return b.Qwen3ModelWeek3(random_checkpoint(b, QWEN))


def served(b, s, model, buckets, steps, texts, poison=True):
    """Logits of each request and position, for plans given as steps of (request, start, size)."""
    serving = PackedServing(b, s, model, buckets=buckets)
    made = [serving.sequence(text, number) for number, text in enumerate(texts)]
    for step in steps:
        if poison:
            poison_padding(serving.runner)
        serving.run([(made[number], start, size) for number, start, size in step])
    return serving, {(n, p): row for n, rows in serving.logits.items() for p, row in rows.items()}


STEPS = [
    [(0, 0, 7)],
    [(1, 0, 3), (2, 0, 1), (0, 7, 2)],
    [(2, 1, 1), (1, 3, 4)],
    [(2, 2, 1), (0, 9, 1), (1, 7, 1), (3, 0, 5)],
    [(3, 5, 6), (1, 8, 2)],
    [(0, 10, 1), (1, 10, 1), (2, 3, 1)],
    [(3, 11, 1)],
]
SHAPES = {
    "tight": {},
    "wide": {"decode_tokens": (4,), "chunk_tokens": (16,), "decode_pages": (12,), "chunk_pages": (12,)},
    "rows alone": {"decode_pages": None, "chunk_pages": None},
}


@pytest.mark.task("3.4.8")
@pytest.mark.parametrize("shape", SHAPES)
def test_padding_changes_no_logits(b, s, rng, model, shape):
    """The same steps in exact shapes and in buckets, whose pad page is full of NaN before every step."""
    texts = [rng.integers(0, 61, size=n).tolist() for n in (11, 11, 4, 12)]
    _, exact = served(b, s, model, None, STEPS, texts, poison=False)
    _, padded = served(b, s, model, buckets_of(s, **SHAPES[shape]), STEPS, texts)
    assert exact.keys() == padded.keys(), "the same rows are sampled"
    for key, row in exact.items():
        idea = f"{shape}: request {key[0]} at position {key[1]}; padding is seen, or hides something"
        assert_close(padded[key], row, atol=1e-4, idea=idea)


@pytest.mark.task("3.4.8")
def test_padding_writes_into_the_pad_page_alone(b, s, rng, model):
    """Every page of the pool but the last is as after steps without padding."""
    texts = [rng.integers(0, 61, size=n).tolist() for n in (11, 11, 4, 12)]
    pools = [
        served(b, s, model, buckets, STEPS, texts, poison=False)[0].runner.pools
        for buckets in (None, buckets_of(s, **SHAPES["wide"]))
    ]
    for exact, padded in zip(*pools, strict=True):
        for kind in ("keys", "values"):
            before, after = (b.numpy(getattr(pool, kind))[:-PAGE] for pool in (exact, padded))
            assert_close(
                after, before, atol=1e-4, idea=f"{kind}: padding goes to the pad page, and nowhere else"
            )


@pytest.mark.task("3.4.8")
def test_a_request_does_not_depend_on_its_bucket_or_its_company(b, s, rng, model):
    """The last token of a text, alone and beside others, in small buckets and in large ones."""
    texts = [rng.integers(0, 61, size=n).tolist() for n in (10, 11, 4, 12)]
    before = [(0, 0, 9)]
    last = {
        "alone": [[(0, 9, 1)]],
        "with a decode": [[(1, 0, 10)], [(1, 10, 1), (0, 9, 1)]],
        "with a prompt": [[(0, 9, 1), (3, 0, 9)]],
        "with a chunk that has a past": [[(3, 0, 6)], [(3, 6, 6), (0, 9, 1)]],
    }
    found = [
        (
            company,
            shape,
            served(b, s, model, buckets_of(s, **SHAPES[shape]), [before, *steps], texts)[1][0, 9],
        )
        for company, steps in last.items()
        for shape in SHAPES
    ]
    for company, shape, row in found:
        assert_close(row, found[0][2], atol=1e-4, idea=f"{company}, {shape}: the request's own logits")


# The budget.


@pytest.mark.task("3.4.9")
@pytest.mark.parametrize(
    ("budget", "decodes", "separate", "room"),
    [
        (16, 0, False, 16),
        (16, 3, False, 13),
        (16, 4, False, 12),
        (15, 0, False, 10),
        (15, 3, False, 7),
        (9, 4, False, 2),
        (5, 1, False, 0),
        (16, 0, True, 16),
        (16, 1, True, 10),
        (16, 3, True, 10),
        (13, 3, True, 6),
        (10, 4, True, 6),
        (9, 4, True, 0),
        (17, 1, True, 16),
    ],
)
def test_the_room_for_prompts_is_counted_in_padded_tokens(s, budget, decodes, separate, room):
    """Ladders 6, 10, 16 of steps with chunks and 1, 2, 4 of decodes: what is computed stays within the budget."""
    found = s.room_for_prompts(budget, decodes, buckets_of(s), separate=separate)
    assert found == room, (
        f"budget {budget}, {decodes} decodes, {'two calls' if separate else 'one call'}: room for {room}, not {found}"
    )


@pytest.mark.task("3.4.10")
@pytest.mark.parametrize(
    ("tokens", "delayed"),
    [(1, 0), (5, 0), (6, 0), (7, 1), (8, 0), (9, 0), (10, 0), (11, 1), (12, 2), (13, 0), (16, 0)],
)
def test_tokens_are_delayed_where_that_saves_more_padding(s, tokens, delayed):
    """On the ladder 6, 10, 16: 12 tokens are 4 of padding and 2 above the size below; of 13, 3 and 3."""
    found = s.tokens_to_delay(tokens, (6, 10, 16))
    assert found == delayed, f"{tokens} tokens: {delayed} wait, not {found}"


class Engine:
    """A loop with buckets, and a model that checks every batch; each call is kept with its bucket."""

    def __init__(self, s, buckets, budget=16, **options):
        self.s, self.buckets, self.calls = s, buckets, []
        allocator = s.BlockAllocator(64, PAGE, watermark=0.0, enable_prefix_caching=False)
        self.model = FakePackedModel(allocator, s.Sampled, max_model_len=12 if not options else 16)
        options = {"max_num_batched_tokens": budget, "max_num_seqs": 4, **options}
        self.loop = make_loop(
            s, "hybrid", self.model, allocator, clock=self.model.clock, buckets=buckets, **options
        )

    def serve(self, sizes, most=300):
        """Requests of (prompt, answer) tokens, all there at the start; returns them."""
        made = []
        for number, (prompt, answer) in enumerate(sizes):
            sampling = self.s.SamplingParams(max_tokens=answer, ignore_eos=True)
            text = [97 + (number + i) % 26 for i in range(prompt)]
            made.append(
                self.s.Sequence(text, ByteTokenizer(), request_id=number, sampling=sampling, max_seq_len=12)
            )
            self.loop.add(made[-1])
        for _ in steps_of(self.loop, made, most):
            assert self.loop.step() or not self.loop.has_work_remaining(), "a step computed nothing"
        return made


@pytest.mark.task("3.4.9")
@pytest.mark.parametrize("mixed_steps", [True, False])
def test_no_step_computes_more_than_its_budget(s, rng, mixed_steps):
    """Padded tokens of all calls of a step, and every bucket is in the warm-up list."""
    buckets = buckets_of(s)
    engine, listed = Engine(s, buckets, mixed_steps=mixed_steps), set(buckets.warm_up_list())
    sizes = [(int(rng.integers(1, 9)), int(rng.integers(1, 5))) for _ in range(24)]
    steps, run = [], engine.model.run

    def kept(batch):
        steps[-1].append(buckets.of(batch))
        return run(batch)

    plan = engine.loop.plan
    engine.model.run, engine.loop.plan = kept, lambda now: (steps.append([]), plan(now))[1]
    made = engine.serve(sizes)
    worst = max(sum(bucket.tokens for bucket in step) for step in steps)
    assert worst <= 16, f"mixed_steps={mixed_steps}: a step computed {worst} padded tokens of a budget of 16"
    assert {bucket for step in steps for bucket in step} <= listed, "a bucket is not in the warm-up list"
    for one in made:
        assert one.tokens == engine.model.answer_alone(one.prompt_tokens, one.max_new_tokens), (
            f"{one.request_id}"
        )


@pytest.mark.task("3.4.10")
def test_a_chunk_is_cut_back_to_a_rung(s):
    """A prompt of 11 on the ladder 6, 10, 16: 10 tokens, and the last one later; without buckets all at once."""
    for buckets, calls in ((buckets_of(s), [10, 1]), (None, [11])):
        engine = Engine(s, buckets)
        engine.serve([(11, 1)])
        found = [len(batch.token_ids) for batch in engine.model.batches]
        assert found == calls, f"a prompt of 11 tokens: calls of {calls} tokens, not {found}"


@pytest.mark.task("3.4.9")
def test_whole_prompts_are_never_cut(s):
    """Without chunked prefill a prompt is one step, whatever its padding; there is room for it in a padded budget."""
    engine = Engine(s, buckets_of(s), enable_chunked_prefill=False)
    engine.serve([(11, 1)])
    assert [len(batch.token_ids) for batch in engine.model.batches] == [11]
