"""What a step needs once is made once: masks are not read, and slots not listed, again in every layer."""

from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module

import pytest

from support.close import assert_close
from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_ref.serving import BlockAllocator, BlockTable, PackedBatch, flat_blocks

CASE = CASES["untied-3"]
PAGE = 4
TEXT = [1, 2, 3, 4, 5, 6, 7]


def checkpoint_of(b, layers: int):
    return random_checkpoint(
        b, replace(CASE, config=replace(CASE.config, num_hidden_layers=layers)), "float32"
    )


@contextmanager
def counted(monkeypatch, owner, *names):
    """Counts calls of these functions: a list with the name of each call."""
    calls: list[str] = []

    def counting(name, function):
        def call(*args, **options):
            calls.append(name)
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, counting(name, getattr(owner, name)))
        yield calls


def array_library(b):
    return import_module({"mlx": "mlx.core", "torch": "torch"}[b.name])


def in_a_batch(model, b) -> list:
    """Caches of a batch whose only request has four tokens."""
    own, shared = model.create_kv_cache(16), b.create_batch_cache(model, 2, 16)
    model(b.array([TEXT[:4]]), 0, own)
    for request, batch in zip(own, shared, strict=True):
        batch.add_request(request, 0)
    return shared


@pytest.mark.parametrize("layers", [1, 3])
def test_device_attention_of_a_model_reads_no_mask(b, monkeypatch, layers):
    """A decode step of a batch: its mask is an array in which each token sees itself, so no row is empty."""
    model, plain = (
        b.Qwen3ModelWeek2(checkpoint_of(b, layers), attention=name) for name in ("device", "simple")
    )
    token, caches = b.array([[TEXT[4]], [0]]), in_a_batch(model, b)
    with counted(monkeypatch, array_library(b), "any") as calls:
        logits = model(token, [4, 0], caches)
    assert not calls, f"{layers} layers read their mask {len(calls)} times to look for empty rows"
    expected = b.numpy(plain(token, [4, 0], in_a_batch(plain, b)))
    assert_close(b.numpy(logits)[:1], expected[:1], atol=1e-4, idea="the same logits as by simple attention")


def chunk_with_a_past() -> PackedBatch:
    """Rows 4 to 6 of a text whose first four tokens are in block 2."""
    rows = {"token_ids": TEXT[4:], "positions": [4, 5, 6], "slots": [4 * PAGE, 4 * PAGE + 1, 4 * PAGE + 2]}
    reads = {"query_start": [0, 3], "context_lens": [4], "block_tables": [[2, 4]], "sample_rows": [2]}
    return PackedBatch(**rows, **reads)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_packed_step_reads_its_past_mask_once(b, monkeypatch, layers):
    """One `PastMask` for any number of layers, and no layer looks in a mask for empty rows."""
    model = b.Qwen3ModelWeek3(checkpoint_of(b, layers))
    pools = b.create_kv_pools(model, 8, PAGE)
    inputs = inputs_of(chunk_with_a_past(), PAGE, 8, None, flat_blocks).map(b.array)
    attention = import_module(f"{b.solution.__name__}.paged_attention")
    with (
        counted(monkeypatch, attention.PastMask, "of") as made,
        counted(monkeypatch, array_library(b), "any") as reads,
    ):
        model(inputs, pools)
    assert len(made) == 1 and not reads, f"{layers} layers: {len(made)} masks made, {len(reads)} reads of one"


def test_caches_of_one_request_list_their_slots_once_per_step(b, monkeypatch):
    """Three layers, a prompt of four tokens, then one more, then the same after a rewind."""
    model = b.Qwen3ModelWeek2(checkpoint_of(b, 3))
    table = BlockTable(BlockAllocator(8, PAGE))
    caches = b.TinyKvPagedCache.of_layers(b.create_kv_pools(model, 8, PAGE), table)
    with counted(monkeypatch, BlockTable, "slots") as calls:
        for tokens, offset in ((TEXT[:4], 0), (TEXT[4:5], 4)):
            model(b.array([tokens]), offset, caches)
        assert len(calls) == 2, f"slots were listed {len(calls)} times in two steps of three layers"


def test_slots_follow_a_table_that_was_emptied(b):
    """The same positions in other blocks are other slots: the last token must find the keys of the second prompt."""
    allocator = BlockAllocator(8, PAGE)
    model, table = b.Qwen3ModelWeek2(checkpoint_of(b, 3)), BlockTable(allocator)
    pools = b.create_kv_pools(model, 8, PAGE)
    caches = b.TinyKvPagedCache.of_layers(pools, table)
    model(b.array([TEXT[:6]]), 0, caches)
    expected = b.numpy(model(b.array([TEXT[6:]]), 6, caches))
    _rewind(caches, 7)
    model(b.array([TEXT[:6]]), 0, caches)
    _rewind(caches, 6)
    table.release()
    allocator.allocate(1)  # so that the next text starts in another block
    model(b.array([TEXT[:6]]), 0, caches)
    again = b.numpy(model(b.array([TEXT[6:]]), 6, caches))
    assert_close(again, expected, atol=1e-4, idea="the last token after the table was emptied")


def _rewind(caches, n: int) -> None:
    for cache in caches:
        cache.rewind(n)
