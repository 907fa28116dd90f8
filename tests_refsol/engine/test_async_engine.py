"""Asynchronous scheduling in the real engine: whatever a load does, its answers are those of an engine that waits."""

from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests_refsol.engine.native_cases import native_model
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.weights.random_weights import shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.structured_outputs import StructuredOutputsParams
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network, random_network
from tiny_llm_extensions.parallel.in_flight import InFlight
from tiny_llm_ref import SamplingParams

# The blocks hold one request of the greatest length.
SMALL: dict[str, Any] = {
    "block_size": 8,
    "num_blocks": 10,
    "max_model_len": 40,
    "max_num_batched_tokens": 16,
    "max_num_seqs": 4,
}
NEEDED = {
    "max_tokens": st.integers(1, 18),
    "seed": st.integers(0, 99),
    "temperature": st.sampled_from([0.0, 1.2]),
}
FEW = dict.fromkeys(range(64, 70), 9.0)  # the letters from a to f: so tokens come again, and penalties count
FREE = {
    "logit_bias": st.just(FEW),
    "n": st.just(2),
    "ignore_eos": st.just(True),
    "min_tokens": st.just(1),
    "stop": st.sampled_from(["e", "ad"]),
    "stop_token_ids": st.lists(st.integers(0, 300), min_size=40, max_size=80),
    "presence_penalty": st.just(1.0),
    "repetition_penalty": st.just(1.3),
    "logprobs": st.just(1),
}
FORMS = [
    StructuredOutputsParams(regex="[a-c]{3}[d-f]{3}[0-9]+"),
    StructuredOutputsParams(choice=["yes", "no", "never"]),
]
PARAMS = st.fixed_dictionaries(NEEDED, optional=FREE) | st.fixed_dictionaries(
    {**NEEDED, "structured_outputs": st.sampled_from(FORMS)}
)


class Asked(NamedTuple):
    """A request, the step before which it comes, and the one before which its reader leaves."""

    prompt: list[int]
    params: dict
    comes: int
    leaves: int


LOADS = st.lists(
    st.builds(
        Asked,
        st.lists(st.integers(30, 250), min_size=4, max_size=20),
        PARAMS,
        st.integers(0, 4),
        st.just(99) | st.integers(1, 12),
    ),
    min_size=4,
    max_size=6,
)


# Four at once, with answers to their limit: they do not fit. Two of them need each token before the next draw.
LONG = {"max_tokens": 18, "seed": 1, "temperature": 1.2}
KINDS = {"structured_outputs": FORMS[0]}, {"presence_penalty": 2.0, "logit_bias": FEW}, {}, {}
BUSY = [
    Asked([*range(40 + i, 50 + i)], LONG | kind | {"ignore_eos": i > 0}, 0, 99)
    for i, kind in enumerate(KINDS)
]


NEEDS = {"torch": pytest.mark.tool("c++")}
PORTS = [pytest.param(each, marks=NEEDS.get(each, ())) for each in installed_backends()]


@pytest.fixture(scope="module", params=PORTS)
def engines(request):
    """One that waits for each step, and one that runs ahead."""
    port = Port("tiny_llm_ref", request.param, "cpu", "float32")
    loaded = port, network_of(port), load_network(port, "tiny-qwen3", "week3")[1]
    return [LLM.of(*loaded, **SMALL, async_scheduling=ahead).engine for ahead in (False, True)]


def network_of(port):
    """With torch a step of decodes is one call, given lists, as on a CPU; with MLX it is given arrays, as on a GPU."""
    tiny = shape("tiny-qwen3", 2)
    if port.name == "torch":
        return native_model(port, "8" * 7, vocab_size=tiny.vocab_size)
    return random_network(port, tiny)[0]


def answers(engine, load: list[Asked]) -> list:
    """All answers to a load, in order."""
    requests = [engine.request(None, asked.prompt, SamplingParams(**asked.params)) for asked in load]
    step = 0
    while engine.has_work_remaining() or any(step <= asked.comes for asked in load):
        for asked, request in zip(load, requests, strict=True):
            if step == asked.comes:
                engine.add(request)
            if step == asked.comes + asked.leaves:
                request.abort()
        engine.step()
        step += 1
    engine.collect_results()
    engine.reset_prefix_cache()
    assert engine.allocator.num_free == engine.allocator.num_blocks and not engine.num_open
    return [sequence for request in requests for sequence in request.sequences]


def test_whatever_a_load_does_the_answers_are_those_of_an_engine_that_waits(engines):
    seen = Counter()

    @settings(max_examples=10)
    @given(LOADS)
    @example(BUSY)
    def fuzz(load):
        for waits, ahead in zip(*(answers(engine, load) for engine in engines), strict=True):
            seen[ahead.finish_reason, ahead.stop_reason is None] += 1
            seen["preempted"] += ahead.num_preemptions
            count = min(len(waits.tokens), len(ahead.tokens))
            assert waits.tokens[:count] == ahead.tokens[:count]
            if "abort" in (waits.finish_reason, ahead.finish_reason):
                continue  # a step of the other engine may have come before it
            assert (waits.tokens, waits.text) == (ahead.tokens, ahead.text)
            assert (waits.finish_reason, waits.stop_reason) == (ahead.finish_reason, ahead.stop_reason)
            pairs = zip(waits.sampled, ahead.sampled, strict=True)
            assert all(one.logprob == pytest.approx(other.logprob, abs=1e-4) for one, other in pairs)

    fuzz()
    ends = [("length", True), ("stop", True), ("stop", False), ("abort", True)]
    assert all(seen[kind] for kind in [*ends, "preempted"]), seen


def test_a_penalty_counts_no_token_that_is_still_in_flight(engines, monkeypatch):
    """vllm-gaudi's pull request 1761: the tokens that a penalty counts ended with one that was not known yet.

    It begins while a request without a penalty runs, and shares its batches (vllm's pull request 27910).
    """
    runner, seen = engines[1].runner, []
    submit = runner.submit

    def watched(batch):  # when the step is planned: on a worker the token may have come before the draw
        for row, request in zip(batch.sample_rows, batch.requests, strict=False):
            if request.sampling.frequency_penalty:
                seen.append((batch.positions[row] + 1, len(request.known_tokens)))
        return submit(batch)

    monkeypatch.setattr(runner, "submit", watched)
    penalty = LONG | {"frequency_penalty": 2.0, "logit_bias": FEW, "ignore_eos": True}
    load = [Asked([*range(40, 50)], LONG | {"ignore_eos": True}, 0, 99), Asked([9, 8, 7], penalty, 3, 99)]
    waits, ahead = (answers(engine, load) for engine in engines)
    assert [one.tokens for one in waits] == [one.tokens for one in ahead]
    assert len(set(ahead[1].tokens)) > len(FEW), "the penalty drives the answer away from the letters"
    assert len(seen) == 18 and all(position == known for position, known in seen)


def test_a_token_in_flight_when_its_request_is_preempted_is_in_the_answer_once(engines, monkeypatch):
    """vllm-gaudi's pull request 1794: such a token was thrown away. Here its blocks are gone, so it is drawn again."""
    late, valid = [], InFlight.valid

    def watched(step, sampled):
        entries, kept = valid(step, sampled)
        drawn = zip(
            (entry for entry, draws in zip(step.plan, step.draws, strict=True) if draws), sampled, strict=True
        )
        late.extend(
            (entry.sequence, len(entry.sequence.tokens), one.token)
            for entry, one in drawn
            if entry not in entries and not entry.sequence.is_done
        )
        return entries, kept

    monkeypatch.setattr(InFlight, "valid", watched)
    load = [Asked([*range(40 + i, 50 + i)], LONG | {"ignore_eos": True}, 0, 99) for i in range(4)]
    waits, ahead = (answers(engine, load) for engine in engines)
    assert [one.tokens for one in waits] == [one.tokens for one in ahead]
    assert late and all(sequence.tokens[place] == token for sequence, place, token in late)
    assert all(len(one.tokens) == len(one.sampled) == 18 for one in ahead)
