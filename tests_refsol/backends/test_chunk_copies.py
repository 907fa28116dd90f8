"""What a chunk of a prompt writes and allocates: its own keys and values, and nothing of what was there before."""

import numpy as np
import pytest

from support.close import assert_close
from support.fake_model import ByteTokenizer
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_ref.serving import Request

HKV, D, CONTEXT, CHUNK, LIMIT = 2, 64, 3000, 4, 4000
# Keys are wide and all else is narrow: a copy of the cache stands out among the bytes.
CASE = small_model(
    28, num_attention_heads=2, num_key_value_heads=HKV, head_dim=D, max_position_embeddings=LIMIT
)
HELD = HKV * CONTEXT * D * 4  # bytes of the keys of one layer


class LongPrefill:
    """A request in the middle of its prefill: CONTEXT tokens are in its caches."""

    def __init__(self, b):
        self.b = b
        runner = b.runner(b.Qwen3ModelWeek2(random_checkpoint(b, CASE), "device"))
        prompt = (
            np.random.default_rng(0).integers(0, CASE.config.vocab_size, size=CONTEXT + 3 * CHUNK).tolist()
        )
        self.request = Request(runner, ByteTokenizer(), prompt, prefill_max_step=CHUNK)
        for layer, cache in enumerate(self.request.kv_cache):
            parts = np.random.default_rng(layer).normal(size=(2, 1, HKV, CONTEXT, D))
            cache.update_and_fetch(*map(b.array, parts))
            cache.materialize()
        self.request.offset = CONTEXT

    def chunk(self) -> list:
        """The chunk behind CONTEXT tokens, as often as it is asked for."""
        for cache in self.request.kv_cache:
            cache.rewind(cache.offset - CONTEXT)
        self.request.offset = CONTEXT
        self.request.try_prefill()
        return [part for cache in self.request.kv_cache for part in (cache.keys, cache.values)]


@pytest.fixture
def prefill(b) -> LongPrefill:
    return LongPrefill(b)


def test_a_chunk_allocates_no_copy_of_what_is_held(b, prefill):
    peak = b.peak_bytes(lambda: prefill.chunk()[0])
    assert peak < HELD / 4, f"{peak:,} bytes, and the keys of one layer have {HELD:,}"


def test_a_chunk_changes_its_own_places_alone(b, prefill):
    """Before and behind it every bit stays; its own places hold something new."""
    before = [b.numpy(part).copy() for part in prefill.chunk()]
    prefill.request.prompt_tokens[CONTEXT : CONTEXT + CHUNK] = [7, 5, 3, 1]
    after = [b.numpy(part) for part in prefill.chunk()]
    own = slice(CONTEXT, CONTEXT + CHUNK)
    for old, new in zip(before, after, strict=True):
        assert (old[:, :, own] != new[:, :, own]).any()
        old[:, :, own] = new[:, :, own]
        assert np.array_equal(old, new), "something beside the chunk's own keys and values has changed"


def test_moving_a_prefill_into_a_slot_is_one_copy(b, prefill):
    """Its keys and values are written into the slot's places and nowhere else; nothing is allocated for that."""
    prefill.chunk()
    [own, _] = prefill.request.kv_cache
    cache = b.BatchingKvCache(3, LIMIT)
    cache.add_request(own, 0)
    before = b.numpy(cache.keys).copy()

    def move():
        if cache.active[2]:
            cache.remove_request(2)
            cache.materialize()
        cache.add_request(own, 2)
        cache.materialize()
        return cache.keys

    peak = b.peak_bytes(move)
    assert peak < HELD / 16, f"{peak:,} bytes, and the keys that moved have {HELD:,}"
    after, n = b.numpy(cache.keys), CONTEXT + CHUNK
    assert np.array_equal(before[:2], after[:2]), "another slot has changed"
    assert_close(after[2, :, :n], b.numpy(own.keys)[0, :, :n], atol=0, rtol=0, idea="the keys of the slot")
