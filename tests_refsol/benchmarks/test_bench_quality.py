"""`pdm run bench-quality`: its figures worked out by hand, and one run on every port."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import quality
from benchmarks.quality_report import may_be_a_default
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams


def test_figures_are_those_worked_out_by_hand(monkeypatch):
    """Two tokens of four: the reference gives 1/2 and 1/4 to what the text has, the other way 1/4 and 1/4."""
    monkeypatch.setattr(quality, "BEST", 2)
    theirs, ours = np.log([[4, 2, 1, 1], [1, 1, 2, 4]]), np.log([[2, 4, 1, 1], [1, 1, 2, 4]])
    top = quality.best_of(theirs)
    assert np.sort(top).tolist() == [[0, 1], [2, 3]]
    readings = [quality.reading_of(logits + 7, [0, 2], top) for logits in (ours, theirs)]
    found = quality.figures(*readings)
    assert found["perplexity"] == pytest.approx(4) and found["same_best"] == 50
    assert found["perplexity_change"] == pytest.approx(100 * (2**0.5 - 1))
    assert found["mean_difference"] == pytest.approx(np.log(2) / 2)
    assert found["largest_difference"] == pytest.approx(np.log(2)) and not may_be_a_default(found)


def test_a_baseline_is_asked_at_every_nth_token():
    """Two windows of four tokens: places 2, 4 and 6 of the six; it says of token t what is in row t."""
    rows = np.log(np.arange(1, 37).reshape(6, 6))
    windows, prompts = [[0, 1, 2, 3], [5, 4, 3, 2]], []
    top = [quality.best_of(rows[:3]), quality.best_of(rows[3:])]
    parts = zip((rows[:3], rows[3:]), windows, top, strict=True)
    reference = quality.joined(quality.reading_of(part, ids[1:], best) for part, ids, best in parts)

    def log_probabilities(prompt):
        prompts.append(prompt)
        return rows[2 * len(prompts) - 1]

    found = quality.asked(SimpleNamespace(log_probabilities=log_probabilities), windows, 2, top, reference)
    assert prompts == [[0, 1], [5], [5, 4, 3]]
    assert found["tokens"] == 3 and found["largest_difference"] == found["perplexity_change"] == 0


def test_the_command_reads_in_every_way(b, bench):
    """float32 is the reference; its most probable tokens are those that the engine gives."""
    size = "--tokens 60 --window 30 --ways bf16 4bit --threads 1 --device cpu"
    out, found = bench(quality.main, "--model tiny-qwen3 --backend", b.name, size)
    assert list(found["results"]) == ["float32", "bf16", "4bit"] and not found["left_out"]
    exact, bf16, bits = found["results"].values()
    assert (exact["tokens"], exact["same_best"], exact["largest_difference"]) == (58, 100, 0)
    assert 0 < bf16["mean_difference"] < bits["mean_difference"] and "missed  4bit" in out


def test_readings_are_the_engines(b):
    """The most probable token after each prefix, and its log-probability."""
    ids = quality.load_tokenizer("tiny-qwen3").encode(quality.prose(quality.TEXTS))[:12]
    plan, top = quality.QualityPlan(model="tiny-qwen3", window=12, threads=1), []
    found = quality.read(b, plan, [ids], quality.WAYS["float32"], top)
    prompts = [{"prompt_token_ids": ids[:at]} for at in range(1, 12)]
    with LLM(backend=b.name, device="cpu", dtype="float32", num_blocks=20) as llm:
        outputs = llm.generate(prompts, SamplingParams(max_tokens=1, logprobs=1), use_tqdm=False)
    answers = [output.outputs[0] for output in outputs]
    assert found.best.tolist() == [token for answer in answers for token in answer.token_ids]
    theirs = [each.logprob for answer in answers for each in answer.logprobs[0].values()]
    np.testing.assert_allclose(found.top.max(-1), theirs, atol=1e-4)
