"""The given half of Day 3.1: pools that are zeroed once and written in place, and caches that give everything back."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from support.fake_model import ByteTokenizer
from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_engine.models.config import SLIDING

CASE = CASES["untied-3"]
VOCABULARY = CASE.config.vocab_size
SIZE = 4


def allocator_of(s, num_blocks: int = 8, **options):
    return s.BlockAllocator(num_blocks, SIZE, **options)


def model_of(b, *, dtype: str = "float32", attention: str = "simple", **changes):
    case = replace(CASE, config=replace(CASE.config, **changes))
    return b.Qwen3ModelWeek2(random_checkpoint(b, case, dtype), attention=attention)


def caches_of(b, pools, table, offset: int = 0) -> list:
    return b.TinyKvPagedCache.of_layers(pools, table, offset)


def logits_of(b, model, tokens, caches) -> np.ndarray:
    return b.numpy(model(b.array([tokens]), caches[0].offset, caches))[0]


class PagedModel:
    """Week 2's model whose texts all live in one pool.

    Args:
        b, s: the port and the policy.
        model: Week 2's model on that port.
        allocator: hands out the pool's blocks.
    """

    def __init__(self, b, s, model, allocator):
        self.b, self.s, self.model, self.allocator = b, s, model, allocator
        self.pools = b.create_kv_pools(model, allocator.num_blocks, allocator.block_size)

    def create_kv_cache(self, max_seq_len=None) -> list:
        return caches_of(self.b, self.pools, self.s.BlockTable(self.allocator))

    def __call__(self, *args, **options):
        return self.model(*args, **options)


# ---- the pool


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pool_is_zeroed_and_has_a_page_for_padding(b, dtype):
    pools = b.create_kv_pools(model_of(b, dtype=dtype), 5, 3)
    assert len(pools) == CASE.config.num_hidden_layers
    for pool in pools:
        for flat, pages in ((pool.keys, pool.key_pages), (pool.values, pool.value_pages)):
            assert flat.dtype == b.dtype(dtype)
            assert tuple(flat.shape) == (18, 2, 10) and tuple(pages.shape) == (6, 3, 2, 10)
            assert not b.numpy(flat).any(), "whatever memory held before is gone: 0 times NaN is NaN"


def test_a_write_changes_its_slots_and_nothing_else(b, rng):
    """Slots in any order, across pages; pages are the flat memory, cut."""
    pool, slots = b.TinyKvPagedPool(5, 3, 2, 4, b.dtype("float32")), [7, 0, 17, 8, 11]
    expected = np.zeros((2, 18, 2, 4), np.float32)
    for _ in range(2):
        new = rng.normal(size=(2, 5, 2, 4)).astype(np.float32)
        pool.write(b.array(slots), *(b.array(part) for part in new))
        expected[:, slots] = new
    for flat, pages, wanted in zip(
        (pool.keys, pool.values), (pool.key_pages, pool.value_pages), expected, strict=True
    ):
        np.testing.assert_array_equal(b.numpy(flat), wanted)
        np.testing.assert_array_equal(b.numpy(pages), wanted.reshape(6, 3, 2, 4))


def test_a_write_copies_no_pool(b):
    """One token into a pool of 32 MiB takes the memory of a few tokens, also when the pages are read in between."""
    pool = b.TinyKvPagedPool(1023, 16, 4, 64, b.dtype("float32"))
    slot, one = b.array([5]), b.array(np.ones((1, 4, 64)))

    def run():
        pool.write(slot, one, one)
        return pool.key_pages[0] + pool.value_pages[0]

    peak, whole = b.peak_bytes(run), 4 * 1024 * 16 * 4 * 64
    assert peak < whole / 100, f"{peak:,} bytes for one token, and the keys have {whole:,}"


@pytest.mark.port("torch")
def test_torch_writes_where_the_memory_is(port):
    """The pool's memory never moves, and the pages are views of it."""

    model = model_of(port)
    pools = port.create_kv_pools(model, 8, SIZE)
    caches = caches_of(port, pools, port.serving.BlockTable(allocator_of(port.serving)))
    places = {(pool.keys.data_ptr(), pool.values.data_ptr()) for pool in pools}
    for token in range(20):
        logits_of(port, model, [token], caches)
    assert {(pool.key_pages.data_ptr(), pool.value_pages.data_ptr()) for pool in pools} == places


@pytest.mark.port("torch")
def test_torch_asks_for_one_program_per_number_of_blocks(port):
    """32 tokens, one by one, in blocks of 4: a compiler for fixed shapes sees 8 programs. No step reads a number."""
    from tiny_llm_course.recorded_operations import record

    model, table = model_of(port), port.serving.BlockTable(allocator_of(port.serving))
    caches, found = caches_of(port, port.create_kv_pools(model, 8, SIZE), table), []
    for position in range(32):
        inputs = port.array([[position]]), port.array([position]), caches
        recording = record(partial(model, *inputs, logits_to_keep=1))
        assert not recording.host_reads
        found.append(recording.signature)
    assert [len({*found[start : start + SIZE]}) for start in range(0, 32, SIZE)] == [1] * 8
    assert len({*found}) == 8


@pytest.mark.port("mlx")
def test_mlx_holds_one_pool_over_many_steps(mlx_port):
    """300 tokens, one by one: active memory is that of the pools, and no step holds a second one."""
    import mlx.core as mx

    model = model_of(mlx_port, max_position_embeddings=512)
    logits_of(mlx_port, model, [7], model.create_kv_cache())  # the weights are read
    mx.clear_cache()  # a freed buffer of up to twice the size may be reused, and counts whole
    before = mx.get_active_memory()
    pools = mlx_port.create_kv_pools(model, 4095, SIZE)  # 1.3 MB for the keys of a layer
    held, keys = sum(pool.keys.nbytes + pool.values.nbytes for pool in pools), pools[0].keys.nbytes
    caches = caches_of(mlx_port, pools, mlx_port.serving.BlockTable(allocator_of(mlx_port.serving, 4095)))
    mx.reset_peak_memory()
    for _ in range(300):
        logits_of(mlx_port, model, [7], caches)
    assert abs(mx.get_active_memory() - before - held) < 64 * 1024
    assert mx.get_peak_memory() - before - held < keys / 2


# ---- the cache of a request


@pytest.mark.parametrize("attention", ["simple", "tiled", "device"])
@pytest.mark.parametrize("window", [None, 5])
def test_every_attention_reads_pages_as_one_array(b, s, rng, attention, window):
    """Pieces that end in the middle of a page, at its end and behind it; layers with and without a window."""
    types = {"layer_types": (SLIDING, "full_attention", SLIDING), "sliding_window": window} if window else {}
    model = model_of(b, attention=attention, **types)
    full, text = model.create_kv_cache(), rng.integers(0, VOCABULARY, 21).tolist()
    paged = caches_of(b, b.create_kv_pools(model, 8, SIZE), s.BlockTable(allocator_of(s)))
    start = 0
    for size in (3, 5, 1, 4, 1, 1, 6):
        piece = text[start : start + size]
        expected, actual = (logits_of(b, model, piece, caches) for caches in (full, paged))
        np.testing.assert_allclose(actual, expected, atol=1e-4)
        start += size


def test_bf16_stays_bf16(b, s, rng):
    model = model_of(b, dtype="bfloat16")
    text = rng.integers(0, VOCABULARY, 9).tolist()
    caches = caches_of(b, b.create_kv_pools(model, 8, SIZE), s.BlockTable(allocator_of(s)))
    logits_of(b, model, text[:6], caches)
    key = b.array(rng.normal(size=(1, 2, 3, 10)), "bfloat16")
    keys, values, length, _ = caches[0].update_and_fetch(key, key)
    assert keys.dtype == values.dtype == b.dtype("bfloat16") and length == 9


def test_a_runner_pads_chunks_into_pages(b, s, rng):
    """Prompts padded to a bucket, the padding taken back: the logits of `ModelRunner` with Day 2.1's cache."""
    model, text = model_of(b), rng.integers(0, VOCABULARY, 15).tolist()
    seen = []
    runner = b.runner(model, prompt_bucket=8, on_logits=lambda rows, logits: seen.append(logits))
    paged = caches_of(b, b.create_kv_pools(model, 8, SIZE), s.BlockTable(allocator_of(s)))
    for caches in (runner.create_kv_cache(24), paged):
        runner.prefill(text[:9], 0, caches, sample=False)
        assert [cache.offset for cache in caches] == [9] * 3
        runner.prefill(text[9:], 9, caches, sample=True)
    np.testing.assert_allclose(seen[1], seen[0], atol=1e-4)


def test_too_few_blocks_change_nothing(b, s, rng):
    """The model call that finds no block left raises; pool, table and offset are as they were, and it can go on."""
    allocator, model = allocator_of(s, 3), model_of(b)
    pools = b.create_kv_pools(model, 3, SIZE)
    other, table = s.BlockTable(allocator), s.BlockTable(allocator)
    other.reserve(4)
    text = rng.integers(0, VOCABULARY, 12).tolist()
    caches = caches_of(b, pools, table)
    logits_of(b, model, text[:6], caches)
    before = [b.numpy(pool.keys).copy() for pool in pools], [*table.blocks]
    with pytest.raises(s.OutOfBlocks, match="needed: 1, free: 0"):
        logits_of(b, model, text[6:], caches)
    for pool, keys in zip(pools, before[0], strict=True):
        np.testing.assert_array_equal(b.numpy(pool.keys), keys)
    assert table.blocks == before[1] and [cache.offset for cache in caches] == [6] * 3
    other.release()
    full = model.create_kv_cache()
    expected = logits_of(b, model, text, full)[6:]
    np.testing.assert_allclose(logits_of(b, model, text[6:], caches), expected, atol=1e-4)


def test_what_an_earlier_request_left_is_never_seen(b, s, rng):
    """A request whose keys became NaN ends; the next one gets its blocks, and the logits that it has alone."""
    allocator, model = allocator_of(s, 4), model_of(b)
    pools = b.create_kv_pools(model, 4, SIZE)
    for pool in pools:
        nan = b.array(np.full((20, 2, 10), np.nan))
        pool.write(b.array(np.arange(20)), nan, nan)
    text = rng.integers(0, VOCABULARY, 11).tolist()
    caches, full = caches_of(b, pools, s.BlockTable(allocator)), model.create_kv_cache()
    for piece in (text[:5], text[5:6], text[6:10], text[10:]):
        expected, actual = (logits_of(b, model, piece, each) for each in (full, caches))
        np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_blocks_that_others_can_find_are_not_written_again(b, s, rng):
    """Behind a hit, and after taking back registered tokens: refused before anything changes, with the way out."""
    allocator, model = allocator_of(s), model_of(b)
    pools, table = b.create_kv_pools(model, 8, SIZE), s.BlockTable(allocator)
    text = rng.integers(0, VOCABULARY, 10).tolist()
    caches = caches_of(b, pools, table)
    logits_of(b, model, text, caches)
    table.register(text, 10)
    for cache in caches:
        cache.rewind(3)
    with pytest.raises(ValueError, match=r"position 7 .* go on at 8"):
        logits_of(b, model, [1], caches)
    again = s.BlockTable(allocator)
    assert again.share(text) == 8
    with pytest.raises(ValueError, match=r"position 4 .* go on at 8"):
        logits_of(b, model, text[4:], caches_of(b, pools, again, 4))
    logits_of(b, model, text[8:], caches_of(b, pools, again, 8))


def test_a_cache_refuses_what_it_cannot_do(b, s):
    allocator, pool = allocator_of(s), b.TinyKvPagedPool(8, SIZE, 2, 4, b.dtype("float32"))
    cache = b.TinyKvPagedCache(pool, s.BlockTable(allocator))
    two_rows, one = (b.array(np.ones((rows, 2, 1, 4))) for rows in (2, 1))
    with pytest.raises(ValueError, match="2 rows"):
        cache.update_and_fetch(two_rows, two_rows)
    with pytest.raises(ValueError, match="mask_length 3 for 1"):
        cache.update_and_fetch(one, one, 3)
    for n in (-1, 1):
        with pytest.raises(ValueError, match=f"rewind {n} of 0"):
            cache.rewind(n)
    for wrong in (s.BlockAllocator(7, SIZE), s.BlockAllocator(8, SIZE + 1)):
        with pytest.raises(ValueError, match="give both the same numbers"):
            b.TinyKvPagedCache(pool, s.BlockTable(wrong))


# ---- everything is given back


@pytest.mark.parametrize("way_out", ["limit", "model", "sampler", "on_text", "Ctrl-C"])
def test_blocks_come_back_on_every_way_out(b, s, way_out):
    allocator = allocator_of(s)
    model = PagedModel(b, s, model_of(b), allocator)
    taken = []

    def fail(*_):
        taken.append(allocator.num_free)
        raise KeyboardInterrupt if way_out == "Ctrl-C" else RuntimeError(way_out)

    options = {"max_tokens": 6}
    if way_out in ("sampler", "Ctrl-C"):
        options["sampler"] = fail
    elif way_out == "on_text":
        options["on_text"] = fail
    elif way_out == "model":
        model.model.head = fail
    run = partial(b.simple_generate_with_kv_cache, model, ByteTokenizer(), [1, 2, 3, 4, 5], **options)
    if way_out == "limit":
        run()
    else:
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            run()
        assert taken == [6], "the prompt of 5 tokens has 2 of the 8 blocks"
    assert allocator.num_free == 8 and not any(allocator.reference_counts)


# ---- the policy: what is given in it


@pytest.mark.parametrize("block", [-1, 8, 9])
def test_only_blocks_of_the_pool_are_shared_and_freed(s, block):
    """-1 would be the last block, in Python; 8 is the pad block."""
    allocator = allocator_of(s)
    mine = allocator.allocate(8)
    for call in (allocator.fork, allocator.free):
        with pytest.raises(ValueError, match=f"block {block} is not one of 0 to 7"):
            call([mine[0], block])
    assert allocator.reference_counts == [1] * 8


@pytest.mark.parametrize(
    ("num_blocks", "watermark", "kept"), [(100, 0.07, 7), (50, 0.01, 1), (1000, 0.01, 10), (8, 0, 0)]
)
def test_the_watermark_is_at_least_a_block_unless_it_is_0(s, num_blocks, watermark, kept):
    assert allocator_of(s, num_blocks, watermark=watermark).watermark_blocks == kept


@pytest.mark.parametrize(
    ("args", "options"), [((0,), {}), ((8, 0), {}), ((8,), {"watermark": 1}), ((8,), {"watermark": -0.1})]
)
def test_an_allocator_refuses_nonsense(s, args, options):
    with pytest.raises(ValueError, match="give"):
        s.BlockAllocator(*args, **options)


def test_a_table_refuses_what_has_no_block(s):
    table = s.BlockTable(allocator_of(s))
    table.reserve(5)
    for start, stop in ((0, 9), (-1, 2), (3, 2)):
        with pytest.raises(ValueError, match=r"reserve\("):
            table.slots(start, stop)
    with pytest.raises(ValueError, match="share first"):
        table.share([1, 2, 3])
    for tokens, num_computed in (([1] * 4, 5), ([1] * 9, 9), ([1], -1)):
        with pytest.raises(ValueError, match="tokens computed"):
            table.register(tokens, num_computed)
