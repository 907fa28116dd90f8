"""How many tokens the steps of a server have: measured once, kept, and never judged by real seconds here."""

from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny_llm_engine.events import Event, Part
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.profiling import product_choice, step_budget
from tiny_llm_extensions.profiling.step_budget import (
    LEAST,
    ChunkCost,
    ShortSteps,
    begin_with_short_steps,
    target_of,
)

SIZES, PASTS = (64, 128, 256, 512), (0, 4000)


@given(st.floats(0.001, 0.1), st.floats(1e-5, 1e-2), st.floats(0, 1e-5))
def test_the_cost_of_steps_is_found_again(a, b, c):
    cost = ChunkCost(a, b, c)
    found = ChunkCost.of({(size, past): cost.seconds(size, past) for size in SIZES for past in PASTS})
    for size in SIZES:
        assert found.seconds(size, 2000) == pytest.approx(cost.seconds(size, 2000), rel=1e-6)


@given(st.floats(0.01, 1), st.integers(0, 9000), st.integers(1, 600))
def test_one_more_token_takes_too_long(target, past, most):
    cost = ChunkCost(0.01, 0.0005, 1e-7)
    tokens = cost.tokens_within(target, past, most)
    assert 0 <= tokens <= most
    assert tokens == 0 or cost.seconds(tokens, past) <= target
    assert tokens == most or cost.seconds(tokens + 1, past) > target


def test_noise_makes_no_step_cheaper_than_nothing():
    assert ChunkCost.of({(64, 0): 0.3, (128, 0): 0.2, (64, 4000): 0.1, (128, 4000): 0.1}).c == 0


def planned(*entries, budget=512, decodes=1, target=0.25):
    """The sizes of a plan's entries after the hook: each (start, size) of a chunk, after some decodes."""
    decoding = [SimpleNamespace(is_decoding=True, known_tokens=[0] * 9, num_prompt_tokens=2)] * decodes
    chunks = [
        SimpleNamespace(is_decoding=False, known_tokens=[0] * 9999, num_prompt_tokens=9999) for _ in entries
    ]
    scheduler = SimpleNamespace(running=[*decoding, *chunks], max_num_batched_tokens=budget)
    plan = [Scheduled(each, 8, 1) for each in decoding]
    plan += [Scheduled(each, *entry) for each, entry in zip(chunks, entries, strict=True)]
    hook = ShortSteps(scheduler, ChunkCost(0.05, 0.001, 1e-6), target, 512)
    assert hook.limit(500, decodes) == 500
    hook.change(plan, [plan])
    assert [entry.size for entry in plan[:decodes]] == [1] * decodes
    return [entry.size for entry in plan[decodes:]]


def test_a_chunk_is_cut_to_the_time_of_a_step():
    assert planned((0, 500), decodes=9) == [183], (
        "183 ms and half of 183² pairs are what 200 ms hold: 192 rows"
    )
    assert planned((0, 500)) == [159], "160 rows, as 192 are too many"
    assert planned((4000, 500)) == [LEAST - 1], "less would take as long"
    assert planned((0, 100), (0, 400), decodes=2) == [100, 90], "the second chunk has what the first leaves"
    assert planned((0, 300), (0, 50), (9, 1)) == [159, 1, 1], "each goes on"


def test_nothing_is_cut_that_nobody_waits_for():
    assert planned((0, 500), decodes=0) == [500]
    assert planned((0, 500), budget=600) == [500], "a budget that was set by hand"
    assert planned((0, 20)) == [20]


def test_a_slower_machine_gets_shorter_chunks_within_a_few_steps():
    """Every step takes three times what was measured, and one is held up for a minute."""
    cost = ChunkCost(0.01, 0.001, 1e-6)
    running = [SimpleNamespace(is_decoding=True)]
    hook = ShortSteps(SimpleNamespace(running=running, max_num_batched_tokens=512), cost, 0.25, 512)
    decode = Part("decode", (1,), 1)
    for tokens in (100, 100, 200, 150, 100, 80, 70, 65, 64, 64):
        chunk = Part("chunk", (0,), tokens, 1000)
        hook.on_event(Event("step", 3 * cost.seconds(tokens, 1000), start=0.0, parts=(chunk, decode)))
    assert 2.8 < hook.slowness < 3
    plan = [Scheduled(SimpleNamespace(known_tokens=[0] * 999, num_prompt_tokens=999), 0, 500)]
    hook.change(plan, [plan])
    assert plan[0].size == 64, "70 ms of 83 go to tokens: two tiles of 32"
    before = hook.slowness
    for parts in ((chunk,), (decode,), ()):
        hook.on_event(Event("step", 60.0, start=0.0, parts=parts))
    assert hook.slowness == before, "only what it plans"
    hook.on_event(Event("step", 60.0, start=0.0, parts=(chunk, decode)))
    assert hook.slowness < 3.3, "a step that took a minute says little about the next"


def test_the_target_is_an_option_or_of_the_environment(monkeypatch):
    assert (target_of(1.5), target_of(None)) == (1.5, 0.0), "what all these tests are pinned to"
    monkeypatch.delenv("TINY_LLM_MAX_STEP_SECONDS")
    assert target_of(None) == 0.25
    for wrong in ("soon", "-1", "nan", "inf"):
        monkeypatch.setenv("TINY_LLM_MAX_STEP_SECONDS", wrong)
        with pytest.raises(ValueError, match="give seconds"):
            target_of(None)
    with pytest.raises(ValueError, match="max_step_seconds is -1"):
        EngineOptions(max_step_seconds=-1)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Steps of invented seconds, nearly 2 ms per token: the sizes that were measured."""
    sizes = []

    def seconds(self, tokens, decodes, past):
        assert decodes == 1 and past + tokens <= 300 and self.runner.run is not None
        sizes.append((tokens, past))
        return 0.00199 * tokens

    monkeypatch.setattr(step_budget.StepTimer, "seconds", seconds)
    monkeypatch.setattr(product_choice, "user_cache", lambda: tmp_path)
    return sizes


def hooks_of(engine):
    """Its tokens of a step, and what cuts them."""
    found = [hook for hook in engine.loop.hooks.plan if isinstance(hook, ShortSteps)]
    return engine.loop.scheduler.max_num_batched_tokens, [hook.target for hook in found]


def test_an_engine_is_measured_once_and_a_new_loop_begins_alike(loaded, timed):
    options = {"num_blocks": 4, "max_model_len": 300}
    engine = LLM.of(*loaded, max_step_seconds=0.25, **options).engine
    assert hooks_of(engine) == (512, []), "an offline batch has no listener"
    line = begin_with_short_steps(engine)
    assert line == (
        "while answers are read, steps compute 125 tokens of a new prompt and 125 after 150 (max_step_seconds is 0.25)"
    )
    assert hooks_of(engine) == (512, [0.25])
    assert timed == [(64, 0), (128, 0), (256, 0), (64, 150), (128, 150)]
    engine.reset_prefix_cache()
    assert hooks_of(engine) == (512, [0.25])
    begin_with_short_steps(again := LLM.of(*loaded, max_step_seconds=9, **options).engine)
    assert (hooks_of(again), len(timed)) == ((512, [9]), 5), "kept for any target"


def test_the_steps_of_an_engine_are_cut_and_its_answers_stay(loaded, timed):
    """Nearly 2 ms per token and 150 ms: chunks of 75 tokens, or 64 rows, while another request decodes."""
    llm = LLM.of(*loaded, num_blocks=8, max_model_len=300, max_step_seconds=0.15)
    params = llm.engine.names.SamplingParams(max_tokens=40, ignore_eos=True)
    prompts = [{"prompt_token_ids": [5] * 9}, {"prompt_token_ids": [*range(7, 207)]}]
    expected = [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]
    begin_with_short_steps(engine := llm.engine)
    engine.reset_prefix_cache()
    chunks = []
    engine.loop.events.listeners.append(
        lambda event: chunks.extend(part.tokens for part in event.parts if part.kind == "chunk")
    )
    first, second = (engine.request(None, each["prompt_token_ids"], params) for each in prompts)
    ticks = count()
    engine.loop.clock = lambda: 0.075 * next(ticks)
    engine.add(first)
    engine.step()
    engine.add(second)
    while engine.has_work_remaining():
        engine.step()
    assert chunks == [9, 63, 63, 74], "the clock says that a step takes half of that"
    assert [list(each.output().outputs[0].token_ids) for each in (first, second)] == [
        list(each) for each in expected
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"max_step_seconds": 0},
        {"max_model_len": 100},
        {"bucketing_strategy": "linear"},
        {"max_num_seqs": 600},
    ],
)
def test_other_engines_are_not_measured(loaded, timed, options):
    engine = LLM.of(*loaded, **{"max_step_seconds": 0.1, "num_blocks": 4, **options}).engine
    assert begin_with_short_steps(engine) == "" and not timed
    assert hooks_of(engine) == (max(512, engine.options.max_num_seqs), [])


def test_a_real_step_is_measured(loaded):
    engine = LLM.of(*loaded, num_blocks=4, max_model_len=200).engine
    seconds = step_budget.measure(engine)
    assert {name: list(each) for name, each in seconds.items()} == {"empty": [64, 128], "long": [64, 128]}
    assert all(each > 0 for sizes in seconds.values() for each in sizes.values())
