"""Blocks outside the pool as a product: whatever is evicted, lost or aborted, every answer is the right one."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pipeline import FakeDevice, FakeStages
from support.served import Guesses, Served
from tests_refsol.serving.cold_fakes import LEVELS, check_levels, cold_parts, with_cold_blocks
from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.trace.simulation.step_cost import Line
from tiny_llm_extensions.cold_blocks.moves import FOLDER, BlockCosts
from tiny_llm_extensions.cold_blocks.returns import MOST
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_ref import serving

WAYS = {
    "hybrid": ("hybrid", FakePackedModel),
    "sarathi": ("sarathi", FakePackedModel),
    "slack": ("slack", FakePackedModel),
    "ahead": ("hybrid", FakeDevice),
    "stages": ("hybrid", FakeStages),
    "drafts": ("hybrid", FakePackedModel),
}


def last_wrong(right, sequence):
    return [*right[:-1], 97]


def served(
    way="hybrid", levels=(("memory", 8),), num_blocks=8, costs=None, folder=None, fails=None, **options
):
    """A scheduler of this kind with a small pool and these levels, and what it has of them."""
    policy, fake = WAYS[way]
    parts = cold_parts(serving, levels, costs, **(folder or {}))
    if way == "drafts":
        options["drafts"] = Proposals(serving.choose_k, guesses := Guesses(last_wrong), 3)
    options["async_scheduling"] = way == "ahead"
    if way == "slack":
        options |= {"profile": serving.StepProfile(Line(0.0, 1.0), Line(0.0, 0.0)), "tile": 4}
    engine = Served(serving, num_blocks, policy=policy, fake=fake, caching=True, cold=parts, **options)
    engine.allocator.prefix_cache = serving.KeepingCache(parts.blocks)
    if way == "drafts":
        guesses.model = engine.model
    with_cold_blocks(engine.model, parts.reader, **(fails or {}))
    return engine, parts


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_loads_get_their_own_answers_from_all_levels(data):
    """Small pools, any levels, slow and lossy folders, aborts and failing calls, every kind of scheduler."""
    lost = data.draw(st.sets(st.integers(0, 15)))
    way = data.draw(st.sampled_from(sorted(WAYS)))
    # What the stages compute after a call that fails reads what that one has not written.
    fails = set() if way == "stages" else data.draw(st.sets(st.integers(0, 30), max_size=1))
    engine, parts = served(
        way,
        [(name, data.draw(st.integers(0, 5))) for name in LEVELS],
        data.draw(st.integers(7, 12)),
        BlockCosts(data.draw(st.sampled_from([None, 1.0, 3.0])), {"memory": 2.0, FOLDER: 4.0}),
        {"polls": data.draw(st.integers(0, 3)), "loses": lambda digest: digest[0] % 16 in lost},
        {
            kind: data.draw(st.sets(st.integers(0, 30), max_size=0 if way == "stages" else 2))
            for kind in ("refuses", "breaks")
        },
        model={"ends": 7, "fails": dict.fromkeys(fails, RuntimeError("lost"))},
        max_num_seqs=data.draw(st.integers(1, 3)),
    )
    texts = [letter * 10 for letter in "abc"]
    for _ in range(data.draw(st.integers(2, 10))):
        text = data.draw(st.sampled_from(texts))
        engine.add(text + "z" * data.draw(st.integers(0, 5)), max_tokens=data.draw(st.integers(1, 6)))
        texts.append((text + "more")[: data.draw(st.integers(4, 18))])
        for _ in range(data.draw(st.integers(0, 12))):
            with suppress(RuntimeError):
                engine.loop.step()
            check_levels(parts.blocks)
        if data.draw(st.integers(0, 5)) == 0:
            data.draw(st.sampled_from(engine.sequences)).abort()
    for _ in range(400):
        with suppress(RuntimeError):
            if not engine.loop.step() and not engine.loop.has_work_remaining():
                break
    check_levels(parts.blocks)
    assert all(made.is_done for made in engine.sequences)
    assert engine.allocator.num_free == engine.allocator.num_blocks
    for made in engine.sequences:
        if made.error is None:
            assert made.tokens == engine.answer_of(made)[: len(made.tokens)], made.request_id
            assert made.finish_reason == "abort" or len(made.tokens) == len(engine.answer_of(made))


def conversation(engine, text="a" * 20):
    """A first turn, and others that need all of the pool."""
    engine.add(text, max_tokens=1)
    engine.finish()
    for letter in "bcd":
        engine.add(letter * 28, max_tokens=1)
        engine.finish()
    return text


def test_a_text_that_was_put_away_comes_back_before_its_request_is_planned():
    engine, _ = served(levels=[("memory", 40)])
    text = conversation(engine)
    computed = len(engine.model.batches)
    again = engine.add(text + "xyz", max_tokens=1)
    engine.finish()
    batch = engine.model.batches[computed]
    assert batch.context_lens == [20] and again.num_cached == 20, (
        "23 tokens: five blocks come back, 3 are computed"
    )
    engine.check_answers()


@pytest.mark.parametrize("way", ["hybrid", "drafts"])
def test_preempted_requests_come_back_by_copies(way):
    engine, _ = served(way, levels=[("memory", 40)], num_blocks=7)
    for letter in "abc":
        engine.add(letter * 8, max_tokens=12)
    engine.finish()
    engine.check_answers()
    resumed = [event for event in engine.events if event.kind == "resume"]
    back = [move for move in engine.model.moves if move.source.level == "memory"]
    assert resumed and back
    rows = sum(len(batch.token_ids) for batch in engine.model.batches)
    again = rows - 3 * 19 - 4 * 3 * len(resumed)
    assert again < 0 or way == "drafts", "no more than the last blocks is computed again"


def test_others_run_while_the_folder_is_read():
    engine, _ = served(levels=[(FOLDER, 40)], folder={"polls": 6})
    text = conversation(engine)
    before = len(engine.model.batches)
    engine.add(text + "xyz", max_tokens=1)
    other = engine.add("hello", max_tokens=4)
    engine.finish()
    assert [batch.context_lens for batch in engine.model.batches[before : before + 2]] == [[0], [5]]
    assert other.token_time < engine.sequences[-2].token_time
    engine.check_answers()


def test_what_cannot_be_read_is_computed_and_forgotten():
    engine, parts = served(levels=[(FOLDER, 40)], folder={"loses": lambda digest: True})
    text = conversation(engine)
    first = serving.block_hash(None, text[:4].encode())
    assert parts.blocks.level_of(first) == FOLDER
    again = engine.add(text + "xyz", max_tokens=1)
    for _ in range(2):
        engine.loop.step()
    assert again.num_cached == 0 and parts.blocks.level_of(first) is None
    engine.finish()
    engine.check_answers()


def test_where_computing_costs_less_nothing_comes_back():
    engine, _ = served(levels=[("memory", 40)], costs=BlockCosts(1.0, {"memory": 2.0}))
    text = conversation(engine)
    again = engine.add(text + "xyz", max_tokens=1)
    engine.finish()
    assert again.num_cached == 0
    engine.check_answers()


def test_few_requests_at_a_time_hold_blocks_that_are_not_theirs_yet():
    engine, _ = served(levels=[(FOLDER, 40)], folder={"polls": 9}, num_blocks=30, max_num_seqs=8)
    for letter in "abcde":
        engine.add(letter * 12, max_tokens=1)
    engine.finish()
    engine.add("f" * 60, max_tokens=1)
    engine.finish()
    engine.add("g" * 60, max_tokens=1)
    engine.finish()
    for letter in "abcde":
        engine.add(letter * 12 + "z", max_tokens=1)
    engine.loop.step()
    assert len(engine.loop.waiting.holds[0]) == MOST and engine.loop.waiting.holds[0].is_full
    engine.finish()
    engine.check_answers()


def test_a_request_that_is_aborted_while_its_blocks_come_back_makes_room_for_the_next():
    engine, _ = served(levels=[(FOLDER, 40)], folder={"polls": 10**9})
    text = conversation(engine)
    gone, waits = engine.add(text + "xyz", max_tokens=1), engine.add("e" * 20, max_tokens=1)
    for _ in range(3):
        engine.loop.step()
    assert gone in list(engine.loop.waiting.holds[0]) and engine.loop.waiting.is_full
    gone.abort()
    engine.finish()
    assert engine.story(gone)[-1] == "finish" and waits.tokens == engine.answer_of(waits)
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_what_may_not_run_together_does_not_when_blocks_come_back():
    engine, _ = served(
        levels=[(FOLDER, 40)], folder={"polls": 5}, can_join=lambda one, other: one.priority == other.priority
    )
    text = conversation(engine)
    first = engine.add(text[:12] + "x", max_tokens=3)
    second = engine.add("e", max_tokens=1, priority="batch")
    engine.finish()
    assert second.token_time > first.token_time
    engine.check_answers()
