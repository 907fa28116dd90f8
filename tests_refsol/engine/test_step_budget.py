"""How many tokens the steps of a server have: measured once, kept, and never judged by real seconds here."""

import pytest

from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.profiling import product_choice, step_budget
from tiny_llm_extensions.profiling.step_budget import begin_with_short_steps, budget_of, target_of


@pytest.mark.parametrize(
    ("seconds", "budget"),
    [
        ({64: 0.1, 128: 0.2, 256: 0.3}, 128),
        ({64: 0.1, 128: 0.2, 256: 0.24, 512: 0.25}, 512),
        ({64: 0.1, 128: 0.2, 256: 0.24, 512: 0.26}, 256),
        ({64: 0.9}, 64),
        ({}, 512),
    ],
    ids=str,
)
def test_the_largest_budget_below_the_target_is_chosen(seconds, budget):
    assert budget_of(seconds, 0.25, 512) == budget


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
    """Steps of invented seconds, 2 ms per token: the sizes that were measured."""
    sizes = []

    def seconds(self, tokens, decodes, past):
        assert decodes == 1 and past + tokens <= 300 and self.runner.run is not None
        sizes.append(tokens)
        return 0.002 * tokens

    monkeypatch.setattr(step_budget.StepTimer, "seconds", seconds)
    monkeypatch.setattr(product_choice, "user_cache", lambda: tmp_path)
    return sizes


def test_an_engine_is_measured_once_for_each_target_and_a_new_loop_begins_alike(loaded, timed):
    options = {"num_blocks": 4, "max_model_len": 300}
    engine = LLM.of(*loaded, max_step_seconds=0.25, **options).engine
    assert engine.loop.scheduler.max_num_batched_tokens == 512, "an offline batch has no listener"
    line = begin_with_short_steps(engine)
    assert line.startswith(
        "steps of at most 64 tokens (max_step_seconds is 0.25; at most 64 take 0.13 s, 128"
    )
    assert (engine.loop.scheduler.max_num_batched_tokens, timed) == (64, [64, 128])
    engine.reset_prefix_cache()
    assert engine.loop.scheduler.max_num_batched_tokens == 64
    begin_with_short_steps(LLM.of(*loaded, max_step_seconds=0.25, **options).engine)
    assert timed == [64, 128], "kept"
    begin_with_short_steps(again := LLM.of(*loaded, max_step_seconds=9, **options).engine)
    assert (timed[2:], again.loop.scheduler.max_num_batched_tokens) == ([64, 128, 256], 512), (
        "no prompt is longer"
    )


@pytest.mark.parametrize(
    "options",
    [{"max_step_seconds": 0}, {"max_model_len": 60}, {"bucketing_strategy": "linear"}, {"max_num_seqs": 600}],
)
def test_other_engines_are_not_measured(loaded, timed, options):
    engine = LLM.of(*loaded, **{"max_step_seconds": 0.1, "num_blocks": 4, **options}).engine
    assert begin_with_short_steps(engine) == "" and not timed
    assert engine.loop.scheduler.max_num_batched_tokens == max(512, engine.options.max_num_seqs)


def test_a_real_step_is_measured(loaded):
    engine = LLM.of(*loaded, num_blocks=4, max_model_len=200).engine
    assert all(each > 0 for each in step_budget.measure(engine, [64, 128], 9.0).values())
    assert list(step_budget.measure(engine, [64, 128], 0.0)) == [64], "the next one takes longer"
