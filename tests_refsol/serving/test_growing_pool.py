"""A pool that grows answers as a fixed one does, evicts before it grows, and ends what no memory is left for."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.served import Served, sequence
from tiny_llm_extensions import growing_pool
from tiny_llm_extensions.growing_pool import GrowingPool, typical_blocks
from tiny_llm_ref import serving

BLOCK = 4


class Grown(Served):
    """A `Served` whose pool has `first` blocks and grows to `most`."""

    def __init__(self, first: int, most: int, **options):
        super().__init__(serving, first, BLOCK, **options)
        self.sizes: list[int] = []
        pools = [SimpleNamespace(resize=self.sizes.append)]
        self.runner = SimpleNamespace(num_blocks=first, most_blocks=most, pools=pools)
        self.pool = GrowingPool(self.runner, block_bytes=1)
        self.pool.put_on(self.loop)

    def add(self, prompt="ab", **options):
        """As an engine does: checked with the tokens that the pool can grow to."""
        made = sequence(serving, prompt, request_id=len(self.sequences), **options)
        made.check(self.model.vocab_size, self.model.max_model_len, self.runner.most_blocks * BLOCK)
        self.sequences.append(made)
        self.loop.enqueue(made)
        return made


LOADS = st.lists(
    st.tuples(st.text("ab", min_size=1, max_size=40), st.integers(1, 20)), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(LOADS, st.integers(1, 8), st.integers(8, 40), st.booleans(), st.sampled_from([0.0, 0.1]), st.data())
def test_random_loads_lose_no_block_and_answer_as_alone(load, first, most, caching, watermark, data):
    served = Grown(first, most, caching=caching, watermark=watermark)
    for prompt, tokens in load:
        made = served.add(prompt, max_tokens=tokens)
        for _ in range(data.draw(st.integers(0, 3))):
            served.loop.step()
        if data.draw(st.integers(0, 9)) == 0:
            made.abort()
    served.finish()
    for made in served.sequences:
        if made.finish_reason == "length":
            assert made.tokens == served.answer_of(made)
    allocator = served.allocator
    assert allocator.num_free == allocator.num_blocks == served.runner.num_blocks <= most
    assert sorted([*allocator.blank, *allocator.prefix_cache.idle]) == list(range(allocator.num_blocks))
    assert (
        allocator.watermark_blocks
        == serving.BlockAllocator(allocator.num_blocks, watermark=watermark).watermark_blocks
    )
    assert served.sizes == sorted(set(served.sizes)) and served.sizes[-1:] in ([], [allocator.num_blocks])


def test_cached_prefixes_are_evicted_before_the_pool_grows():
    served = Grown(4, 64, caching=True)
    for letter in "abcde":
        served.add(letter * 12, max_tokens=2)
        served.finish()
    assert served.sizes == []
    served.add("x" * 20, max_tokens=2)
    served.finish()
    assert served.sizes == [8], "six blocks are needed at once"


def test_a_pool_at_its_limit_preempts():
    served = Grown(2, 12)
    made = [served.add(letter * 14, max_tokens=8) for letter in "xy"]
    served.finish()
    assert served.sizes == [4, 8, 12] and not any(each.num_preemptions for each in made), "each needs six"
    made = [served.add(letter * 14, max_tokens=8) for letter in "xyz"]
    served.finish()
    assert sum(each.num_preemptions for each in made) > 0
    served.check_answers()


def test_without_free_memory_running_requests_go_on_and_what_never_fits_ends_in_words(monkeypatch):
    monkeypatch.setattr(growing_pool, "free_ram", lambda: 5)
    served = Grown(4, 64)
    fits, large, last = (
        served.add(letter * size, max_tokens=2) for letter, size in zip("xyz", (8, 30, 6), strict=True)
    )
    served.finish()
    assert served.sizes == [], "four blocks more are over half of five bytes"
    assert (large.finish_reason, "has 4 blocks" in large.error) == ("error", True)
    assert [each.tokens for each in (fits, last)] == [served.answer_of(each) for each in (fits, last)]
    monkeypatch.setattr(growing_pool, "free_ram", lambda: 100)
    again = served.add("y" * 30, max_tokens=2)
    served.finish()
    assert again.tokens == served.answer_of(again), "memory is free again"


@pytest.mark.parametrize(
    ("seqs", "size", "most", "blocks"), [(16, 128, 900, 48), (16, 128, 20, 20), (2, 256, 9, 4)]
)
def test_a_pool_begins_with_what_typical_requests_need(seqs, size, most, blocks):
    assert typical_blocks(seqs, size, most) == blocks
