"""The workloads of `bench-throughput`: lengths, what is shared, and files."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.datasets import BY_STEPS, DATASETS, OWN, STREAMS, DatasetSize, dataset
from benchmarks.engine_load import figures_of_run
from benchmarks.real_text import KINDS, spec
from support.fake_model import ByteTokenizer
from tiny_llm_course.trace.workload import LONG, RUNNING, SHORT, Workload
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network

SIZE = DatasetSize(num_prompts=40, input_len=50, output_len=7, vocab_size=99)


def specs(name, size=SIZE, seed=0, tokenizer=None):
    return dataset(name, size, seed, 4, tokenizer).requests


def test_random_prompts_have_one_length_and_share_nothing_or_only_their_beginning():
    found, shared = specs("random"), specs("shared-prefix")
    assert {(spec.tokens, len(spec.prompt), spec.answer) for spec in found} == {(50, 50, 7)}
    assert len({spec.prompt[:3] for spec in found}) > 35
    assert all(0 <= token < 99 for spec in found for token in spec.prompt)
    assert len({spec.prompt[: 50 - OWN] for spec in shared}) == 1
    assert len({spec.prompt[50 - OWN :] for spec in shared}) == 40


def test_lengths_of_chats_have_the_mean_and_a_long_tail():
    found = specs("sharegpt-like", DatasetSize(2000, 200, 60, 99))
    for lengths, mean in (([s.tokens for s in found], 200), ([s.answer for s in found], 60)):
        assert abs(np.mean(lengths) / mean - 1) < 0.1
        assert np.median(lengths) < 0.85 * mean and min(lengths) >= 1 and 3 * mean < max(lengths) <= 4 * mean


def test_decode_heavy_keeps_eight_requests_decoding_while_prompts_arrive():
    work = dataset("decode-heavy", DatasetSize(11, 50, 7, 99), 0, 16)
    found = [(spec.tokens, spec.answer, spec.arrives) for spec in work.requests]
    assert found == [(16, 160, None)] * STREAMS + [(50, 7, n) for n in (40, 80, 120)]
    assert len({spec.prompt for spec in work.requests}) == 11
    late = {name for name in DATASETS if any(spec.arrives for spec in specs(name))}
    assert late == {*BY_STEPS} & DATASETS.keys()


@pytest.mark.parametrize("name", DATASETS)
def test_a_seed_is_a_workload(name):
    assert specs(name) == specs(name) != specs(name, seed=1)
    assert f"{name}: 40 requests" in dataset(name, SIZE, 0, 4).says


def test_a_file_has_a_prompt_a_line_or_is_sharegpts(tmp_path):
    lines, chats = tmp_path / "prompts.txt", tmp_path / "chats.json"
    lines.write_text("Hello\n\nGood day\n", encoding="utf-8")
    turns = [{"value": "Hi"}, {"value": "Hello you"}, {"value": "more"}]
    chats.write_text(json.dumps([{"conversations": turns[:1]}, {"conversations": turns}]), encoding="utf-8")
    for file, found in ((lines, [(b"Hello", 7), (b"Good day", 7)]), (chats, [(b"Hi", 9)])):
        work = specs(str(file), replace(SIZE, num_prompts=len(found)), tokenizer=ByteTokenizer())
        assert [
            (bytes(spec.prompt), spec.answer) for spec in work
        ] == found  # the answer is as long as a reply
    lines.write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(ValueError, match="2 prompts, and --num-prompts is 40"):
        specs(str(lines), tokenizer=ByteTokenizer())
    for text in ("{", '[{"a": 1}]'):
        chats.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match="not in ShareGPT's format"):
            specs(str(chats), tokenizer=ByteTokenizer())


CHARACTERS = SimpleNamespace(
    has_chat_template=False,
    encode=lambda text: list(map(ord, text)),
    decode=lambda ids: "".join(map(chr, ids)),
)


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_of_real_text_are_sixteen_and_may_end(kind):
    work = dataset(kind, DatasetSize(16, 0, 30, 0), 0, 4, CHARACTERS)
    assert len({spec.prompt for spec in work.requests}) == 16 and work.ends
    assert {(spec.answer, spec.arrives) for spec in work.requests} == {(30, None)}
    assert not dataset("random", SIZE, 0, 4).ends


def test_documents_arrive_among_questions_each_with_a_short_one_behind_it():
    work = dataset("documents", DatasetSize(2, 4000, 8, 0), 0, 4, CHARACTERS)
    running, late = work.requests[:4], work.requests[4:]
    assert {(spec.kind, spec.arrives, spec.answer) for spec in running} == {(RUNNING, None, 180)}
    kinds = [(spec.kind, spec.arrives) for spec in late]
    assert kinds == [(LONG, 60), (SHORT, 60), (LONG, 120), (SHORT, 120)]
    assert all(4000 < spec.tokens < 4050 for spec in late if spec.kind == LONG) and not work.ends
    [first, second] = specs("one-document", DatasetSize(2, 4000, 8, 0), tokenizer=CHARACTERS)
    assert first.prompt[:4000] == second.prompt[:4000] and first.prompt != second.prompt


def test_answers_of_tasks_end_where_the_model_ends_them():
    """The shipped model greets in fewer than 60 tokens; counted as they were, and not as they were asked for."""
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu", "float32")
    network, tokenizer = load_network(port, "tiny-qwen3", "week3")
    engine = LLM.of(port, network, tokenizer, num_blocks=4, max_model_len=128, max_num_seqs=2).engine
    work = Workload("", "", (spec(tokenizer, "Hello!", 60),))
    assert figures_of_run(engine, work)["output_tokens"] == 60
    assert 5 < figures_of_run(engine, replace(work, ends=True))["output_tokens"] < 50
