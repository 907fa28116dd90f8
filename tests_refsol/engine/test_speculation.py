"""Speculative decoding as a product: the answers without drafts, their distribution, blocks, options and counts."""

import argparse
import random
from copy import copy
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.serving.processes import flags
from support.fake_model import ByteTokenizer
from support.served import Guesses
from tiny_llm_course.fakes.fake_packed_model import END, FakePackedModel
from tiny_llm_engine.backends.logits_processors import LogitsProcessors
from tiny_llm_engine.backends.seeded_sampling import SeededSampler
from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import argument_kind, json_object
from tiny_llm_extensions.drafts import speculation
from tiny_llm_extensions.drafts.proposals import AcceptanceRate, Proposals
from tiny_llm_extensions.drafts.row_costs import (
    DecodeCost,
    RowCosts,
    drafts_to_measure,
    request_counts,
    step_cost,
)
from tiny_llm_extensions.drafts.speculative_config import SpeculativeConfig
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.grammars.grammar import Grammars
from tiny_llm_extensions.graphs.step_shapes import StepShapes
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_ref import serving
from tiny_llm_ref.serving import (
    BlockAllocator,
    PromptLookup,
    Sampled,
    SamplingParams,
    Scheduled,
    Sequence,
    StructuredOutputsParams,
    choose_k,
    verify,
)
from tiny_llm_server.openai_api.metrics import EngineMetrics

# ---- the scheduler, on a model that checks what every row can see


def mistakes(rng):
    """Makes of right drafts: some with one mistake, too few of them, and end tokens among them."""

    def change(right, sequence):
        drafts = [*right, END, END]
        if rng.random() < 0.4:
            drafts[rng.randrange(len(right) + 1)] = 97
        return drafts[: rng.choice([0, 1, 9, 9, 9])]

    return change


class Run:
    """One random load: its scheduler with drafts or without, and what happened."""

    def __init__(self, seed: int, drafts: bool):
        rng = random.Random(seed)
        caching = rng.random() < 0.5
        blocks, size = rng.choice([(26, 1), (13, 2), (8, 4), (40, 4)])
        self.allocator = BlockAllocator(
            blocks, size, watermark=rng.choice([0, 0.2]), enable_prefix_caching=caching
        )
        self.model = FakePackedModel(self.allocator, Sampled, ends=rng.choice([0, 9]))
        options = {
            "max_num_batched_tokens": rng.choice([4, 8, 20]),
            "max_num_seqs": rng.choice([1, 2, 4]),
            "clock": self.model.clock,
            "on_event": self._hear,
        }
        policy, most, self.aborts = (
            rng.choice(["hybrid", "separate"]),
            rng.choice([1, 3, 6]),
            rng.random() < 0.3,
        )
        guesses = Guesses(mistakes(random.Random(seed)), self.model)
        proposals = Proposals(choose_k, guesses, most)
        self.counts = proposals.counts
        options["drafts"] = proposals if drafts else None
        self.loop = make_loop(serving, policy, self.model, self.allocator, **options)
        self.sequences = [self._sequence(number, rng) for number in range(6)]

    def _sequence(self, number: int, rng: random.Random) -> Sequence:
        sampling = SamplingParams(
            max_tokens=rng.choice([1, 9, None, None]),
            stop=rng.choice([None, "ab", "e"]),
            min_tokens=0,
            include_stop_str_in_output=rng.random() < 0.5,
        )
        prompt = [97 + rng.randrange(2) for _ in range(rng.randrange(1, 9))]
        made = Sequence(
            prompt, ByteTokenizer(), request_id=number, sampling=sampling, max_seq_len=rng.choice([14, 24])
        )
        self.loop.add(made)
        return made

    def _hear(self, event) -> None:
        """A listener that aborts two requests after their third token."""
        is_one = self.aborts and event.kind == "token" and event.request.request_id < 2
        if is_one and len(event.request.tokens) == 3:
            event.request.abort()

    def finish(self) -> list:
        for _ in range(500):
            if not self.loop.has_work_remaining():
                break
            self.loop.step()
            known = [-(-len(one.known_tokens) // self.allocator.block_size) for one in self.loop.running]
            held = [len(one.block_table.blocks) for one in self.loop.running]
            assert all(mine <= most for mine, most in zip(held, known, strict=True)), "drafts keep a block"
        assert self.allocator.num_free == self.allocator.num_blocks and not self.loop.running
        return [(one.tokens, one.text, one.finish_reason, one.stop_reason) for one in self.sequences]


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_every_answer_is_the_one_without_drafts_and_no_block_is_lost(seed):
    """With chunks, preemption, prefix caching, stop strings, end tokens, limits, and a listener that aborts."""
    assert Run(seed, drafts=True).finish() == Run(seed, drafts=False).finish()


def test_these_loads_have_accepted_and_rejected_drafts_and_preemption():
    runs = [Run(seed, drafts=True) for seed in range(12)]
    for run in runs:
        run.finish()
    made = sum(run.counts.draft_tokens for run in runs)
    right = sum(run.counts.accepted_tokens for run in runs)
    assert 50 < right < made - 20 and any(one.num_preemptions for run in runs for one in run.sequences)


@pytest.mark.parametrize("call", range(1, 9))
def test_a_request_that_ends_in_a_call_takes_none_of_its_tokens(call):
    """Aborted while drafts are checked, or in a call that fails; the others get their answers."""
    for fails in (False, True):
        run = Run(4, drafts=True)
        before = {}

        def during(number, run=run, before=before, fails=fails):
            if number == call:
                before.update((one, list(one.tokens)) for one in run.loop.running)
                if fails:
                    raise RuntimeError("no device")
                for one in before:
                    one.abort()

        run.model.during = during
        if fails:
            with pytest.raises(RuntimeError):
                run.finish()
        run.finish()
        ended = [one for one in before if one.finish_reason in ("abort", "error")]
        assert ended and all(one.tokens == before[one] for one in ended)


def test_drafts_that_cost_time_are_chosen_before_they_are_made():
    """Ten rows at the price of one pay at once; a draft that costs as much as a step never does."""
    sequence = Sequence([1, 2], ByteTokenizer(), max_seq_len=40)
    sequence.take(3)
    asked = []

    class Costly:
        draft_seconds = 0.0

        def propose(self, wanted):
            asked.append([k for _, k in wanted])
            return [[5] * k for _, k in wanted]

    proposals = Proposals(choose_k, Costly(), 4, RowCosts({1: DecodeCost(1.0, 0.0)}))
    plan = [Scheduled(sequence, 2, 1)]
    assert proposals.of(plan, 100) == {0: [5] * 4} and proposals.of(plan, 3) == {0: [5] * 3}
    proposals.proposer.draft_seconds = 1.0
    assert proposals.of(plan, 100) == {} and asked == [[4], [3]]


def test_acceptance_is_estimated_from_drafts_that_were_tried():
    good, bad = AcceptanceRate(), AcceptanceRate()
    first = good.at(0)
    for step in range(30):
        good.observe(step, 4, 4)
        bad.observe(step, 4, 0)
    assert good.at(30) > 0.98 and bad.at(30) < 0.05 and 0 < first < 1
    assert bad.at(30) < bad.at(60) < first, "without drafts it moves back"
    assert bad.at(930) == pytest.approx(first, abs=0.01)


def test_a_new_request_begins_with_the_estimate_of_those_before_it():
    proposals = Proposals(choose_k, Guesses(), 4)
    first, second = (Sequence([1, 2], ByteTokenizer(), max_seq_len=40) for _ in "ab")
    begin = proposals.rate(first).at(0)
    for _ in range(20):
        proposals.observe(first, 4, 0)
    assert proposals.rate(second).at(1) < 0.1 < begin
    proposals.observe(second, 1, 1)
    assert proposals.rate(second).at(1) > 0.5 > proposals.rate(first).at(1)


def test_each_number_of_requests_has_costs_of_its_own():
    costs = RowCosts({1: DecodeCost(31.0, 1.0), 4: DecodeCost(40.0, 2.0)})
    assert [costs.seconds(10, decodes) for decodes in (0, 1, 2, 4, 9)] == [40, 40, 52, 52, 52]
    assert request_counts(16) == [1, 4, 16] and request_counts(1) == [1] and request_counts(6) == [1, 4, 6]
    assert [drafts_to_measure(count, 8, 64) for count in (1, 4, 16, 64, 99)] == [4, 1, 1, 0, 0]
    assert drafts_to_measure(1, 8, 3) == 2
    assert step_cost(4, 1, 2.0, 2.8) == DecodeCost(2.0, pytest.approx(0.2))
    assert step_cost(4, 1, 2.0, 1.9) == DecodeCost(2.0, 0.0) and step_cost(4, 0, 2.0, 2.0) == DecodeCost(
        2.0, 0.5
    )


# ---- the distribution


@pytest.mark.parametrize("backend", installed_backends())
def test_tokens_come_with_the_probabilities_of_the_model(backend):
    """4 · 10⁴ draws on two ports after penalties and top-p, every second after a draft: chi-square of both tokens."""
    b, requests, rng = Port("tiny_llm_ref", backend, "cpu"), 10_000, np.random.default_rng(4)
    logits = rng.normal(0, 1.5, (9, 8))  # after the text, and after each of 8 tokens
    params = SamplingParams(
        0.9, top_p=0.85, presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.2
    )
    made = [_State(params, [0, 1], [2, 2]), *(_State(params, [0, 1], [2, 2, token]) for token in range(8))]
    changed = b.numpy(LogitsProcessors(b.backend_module)(b.array(logits), made, [4, *[5] * 8]))
    drafts = rng.integers(0, 8, requests)  # they know nothing of the model
    rows = np.stack([np.broadcast_to(changed[0], (requests, 8)), changed[1 + drafts]], 1).reshape(-1, 8)
    each = [SamplingParams(0.9, top_p=0.85, seed=seed) for seed in range(requests)]
    draws = SeededSampler(b.sampler, b.backend_module)(
        b.array(rows), [params for params in each for _ in "ab"], [4, 5] * requests
    )
    pairs = zip(drafts.tolist(), draws[::2], draws[1::2], strict=True)
    taken = [verify([draft], [Sampled(one[0]), Sampled(two[0])]) for draft, one, two in pairs]
    first = np.bincount([tokens[0].token for tokens in taken], minlength=8)
    assert chi_square(first, nucleus(changed[0], 0.9, 0.85)) < 25
    for token in np.flatnonzero(first):
        bonus = [tokens[1].token for tokens in taken if len(tokens) == 2 and tokens[0].token == token]
        assert chi_square(np.bincount(bonus, minlength=8), nucleus(changed[1 + token], 0.9, 0.85)) < 25


class _State:
    """What `LogitsProcessors` reads of a request."""

    def __init__(self, sampling, prompt_tokens, tokens):
        self.sampling, self.prompt_tokens, self.tokens = sampling, prompt_tokens, tokens
        self.eos_token_ids, self.grammar = frozenset(), None


def nucleus(logits: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """Probabilities after temperature and top-p, in float64."""
    weights = np.exp(logits.astype(np.float64) / temperature)
    weights /= weights.sum()
    order = np.argsort(-weights)
    kept = order[: 1 + np.searchsorted(np.cumsum(weights[order]), top_p)]
    found = np.zeros_like(weights)
    found[kept] = weights[kept] / weights[kept].sum()
    return found


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """The statistic; infinite if something came that cannot come.

    With 7 degrees of freedom it exceeds 25 once in 1,300 times.
    """
    possible = expected > 0
    if counts[~possible].any():
        return np.inf
    wanted = expected[possible] * counts.sum()
    return float(((counts[possible] - wanted) ** 2 / wanted).sum())


# ---- the engine


SMALL = {
    "block_size": 8,
    "num_blocks": 60,
    "max_model_len": 96,
    "max_num_batched_tokens": 24,
    "max_num_seqs": 4,
}
PROMPTS = ["one two one two one", "What is chunked prefill?", "aaaa", "Who are you?", "a b a b a b"]
DIGITS = StructuredOutputsParams(regex="(12){3,9}[0-9]{6}")
SAMPLINGS = [
    SamplingParams(max_tokens=30, ignore_eos=True, logprobs=2),
    SamplingParams(1.0, top_p=0.9, seed=3, max_tokens=24, n=2),
    SamplingParams(0.7, seed=5, max_tokens=24, frequency_penalty=0.4, repetition_penalty=1.1, min_tokens=9),
    SamplingParams(max_tokens=40, structured_outputs=DIGITS),
    SamplingParams(max_tokens=30, ignore_eos=True, logit_bias={5: 4.0}, stop=["you", "ab"]),
]


@pytest.fixture(scope="module")
def answers(loaded):
    """The answers without drafts, whose log-probabilities are rounded."""
    return results(LLM.of(*loaded, **SMALL))


def results(llm: LLM) -> list:
    found = []
    for output in llm.generate(PROMPTS, SAMPLINGS, use_tqdm=False):
        for one in output.outputs:
            logprobs = [
                round(best[token].logprob, 3)
                for best, token in zip(one.logprobs or [], one.token_ids, strict=False)
            ]
            found.append((one.token_ids, one.text, one.finish_reason, one.stop_reason, logprobs))
    assert llm.engine.allocator.num_free == llm.engine.allocator.num_blocks
    return found


@pytest.mark.parametrize(
    "options", [{}, {"num_blocks": 14}, {"policy": "separate", "enable_prefix_caching": False}]
)
def test_every_way_to_ask_gives_the_answer_without_drafts(loaded, answers, options):
    """Greedy and seeded, penalties, bias, grammars, log-probabilities, stop strings, n; also with preemption."""
    config = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    llm = LLM.of(*loaded, **{**SMALL, **options}, speculative_config=config)
    llm.engine.extensions["drafts"].profile = None  # every draft pays
    assert results(llm) == answers
    counts = llm.engine.extensions["drafts"].counts
    assert 0 < counts.accepted_tokens < counts.draft_tokens


def test_a_draft_model_like_the_model_is_always_right(loaded, answers):
    """It draws with the request's own seeds, and sees its penalties and grammars; its blocks are given back."""
    config = {"model": "tiny-qwen3", "num_speculative_tokens": 3}
    llm = LLM.of(*loaded, draft_network=loaded[1], **SMALL, speculative_config=config)
    llm.engine.extensions["drafts"].profile = None
    assert results(llm) == answers
    counts, proposer = llm.engine.extensions["drafts"].counts, llm.engine.extensions["drafts"].proposer
    assert counts.accepted_tokens > 0.95 * counts.draft_tokens > 0 and proposer.draft_seconds > 1e-6
    proposer.propose(
        [(llm.engine.request(None, [1], SAMPLINGS[0]).sequences[0], 1)]
    )  # forgets the ended first
    assert proposer.allocator.num_free == proposer.allocator.num_blocks - 1


def test_a_draft_model_without_free_blocks_has_no_drafts(loaded, answers):
    config = {"model": "tiny-qwen3", "num_speculative_tokens": 3}
    llm = LLM.of(*loaded, draft_network=loaded[1], **SMALL, speculative_config=config)
    llm.engine.extensions["drafts"].profile = None
    llm.engine.extensions["drafts"].proposer.allocator.allocate(56)
    assert results(llm) == answers


def test_a_grammar_takes_drafts_back():
    """Also those that it forbids; what is allowed afterwards is what a new grammar allows."""
    grammars = Grammars(load_tokenizer("tiny-qwen3"), 4096)
    form = StructuredOutputsParams(regex="(12){3,9}x")
    one, two, letter = (load_tokenizer("tiny-qwen3").encode(text)[0] for text in "12a")
    mine = grammars.grammar(form)
    for text in ([], [one, two, one], [one, letter, two], [one, two], [], [one, two, one, two]):
        mine.allowed(text)
        if letter not in text:
            assert (mine.allowed(text) == grammars.grammar(form).allowed(text)).all()


def test_metrics_have_the_names_of_vllm(loaded):
    llm = LLM.of(*loaded, **SMALL, speculative_config={"method": "ngram", "prompt_lookup_max": 1})
    llm.engine.extensions["drafts"].profile = None
    metrics = EngineMetrics("m")
    metrics.watch(llm.engine)
    with llm.engine.heard_by(metrics):
        llm.generate("aaaa", SamplingParams(max_tokens=30, ignore_eos=True), use_tqdm=False)
    counts, text = llm.engine.extensions["drafts"].counts, metrics.text().decode()
    for each in fields(counts):
        value = float(getattr(counts, each.name))
        assert f'vllm:spec_decode_num_{each.name}_total{{model_name="m"}} {value}' in text and value
    assert 'vllm:generation_tokens_total{model_name="m"} 30.0' in text
    latencies = 29 - counts.accepted_tokens  # tokens of one step have none between them
    assert f'vllm:inter_token_latency_seconds_count{{model_name="m"}} {latencies}.0' in text
    llm.reset_prefix_cache()
    assert llm.engine.extensions["drafts"].counts is counts, "counters never go back"


@pytest.mark.parametrize(("row", "says"), [(0.1, 0), (0.9, 1)])
def test_an_engine_that_will_never_draft_says_so_once(loaded, monkeypatch, capsys, row, says):
    costs = RowCosts({1: DecodeCost(1.0, row), 4: DecodeCost(1.0, 9.0)})
    monkeypatch.setattr(speculation, "measured_row_costs", lambda *given: costs)
    llm = LLM.of(*loaded, **SMALL, speculative_config={"method": "ngram"})
    llm.reset_prefix_cache()
    llm.generate("aaaa", SamplingParams(max_tokens=20, ignore_eos=True), use_tqdm=False)
    line = "nothing will be drafted, because no draft pays on this machine: a step of one request takes 1 s"
    assert (
        capsys.readouterr().err.count(line)
        == says
        == (not llm.engine.extensions["drafts"].counts.draft_tokens)
    )


@pytest.mark.parametrize("length", [1, 2, 3, 96])
def test_costs_are_measured_at_positions_that_the_model_has(length):
    met: list[int] = []
    runner = SimpleNamespace(
        buckets=None, num_blocks=9, block_size=8, run=lambda batch: met.extend(batch.positions)
    )
    options, limits = EngineOptions(max_num_seqs=4), EngineLimits(length, 24, True)
    config, proposer = SpeculativeConfig(num_speculative_tokens=3), serving.PromptLookup(1, 3)
    speculation.Speculation(serving, options, limits, runner, config, proposer)
    assert max(met) < length


@pytest.mark.parametrize("length", [1, 2, 16])
def test_a_draft_model_is_warmed_up_within_its_own_context(loaded, monkeypatch, length):
    port, network, _ = loaded
    short, new_runner, seen = copy(network), StepShapes.new_runner, []
    short.config = replace(network.config, max_model_len=length)

    def noted(shapes, draft):
        seen.extend(position for batch in shapes._free_shapes() for position in batch.positions)
        return new_runner(shapes, draft)

    monkeypatch.setattr(StepShapes, "new_runner", noted)
    target = SimpleNamespace(vocab_size=network.config.vocab_size, num_blocks=9)
    options, limits = EngineOptions(max_num_seqs=4, enforce_eager=True), EngineLimits(96, 24, True)
    made = speculation.draft_model(port, short, options, limits, target)
    assert max(seen) + 1 == made.runner.max_model_len == length


# ---- options


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("ngram", "speculative_config is 'ngram': give an object such as"),
        ({"method": "eagle"}, "method is 'eagle': give ngram or draft_model"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens is 0: give a whole number of at least 1"),
        ({"prompt_lookup_min": 3, "prompt_lookup_max": 2}, "prompt_lookup_min is 3 and prompt_lookup_max 2"),
        ({"prompt_lookup_max": True}, "prompt_lookup_max is True"),
        ({"method": "draft_model"}, "model is None: the method draft_model needs one"),
        ({"method": "ngram", "model": "x"}, "model does not belong to the method ngram"),
        (
            {"model": "x", "prompt_lookup_max": 2},
            "prompt_lookup_max does not belong to the method draft_model",
        ),
        ({"draft_tokens": 2}, "'draft_tokens' is unknown: give method, num_speculative_tokens"),
    ],
)
def test_a_wrong_option_is_one_clear_error(given, says):
    with pytest.raises(ValueError, match=says):
        EngineOptions(speculative_config=given)


def test_what_excludes_drafts_says_so():
    drafts = {"speculative_config": {"method": "ngram"}}
    with pytest.raises(ValueError, match="a stage cannot check drafts yet; leave one of them out"):
        EngineOptions(pipeline_parallel_size=2, **drafts)
    with pytest.raises(ValueError, match='for policy="hybrid" or "separate", and the policy is \'slack\''):
        EngineOptions(policy="slack", **drafts)
    with pytest.raises(ValueError, match="give at least 1"):
        Proposals(choose_k, PromptLookup(), 0)
    with pytest.raises(ValueError, match="no more for the first than for the second"):
        PromptLookup(3, 2)


def test_a_draft_model_has_the_vocabulary_of_the_model(loaded):
    class Other:
        class config:
            vocab_size = 7

    with pytest.raises(
        ValueError, match=r"the draft model has 7 token ids, and the model .*: give a model with"
    ):
        LLM.of(*loaded, draft_network=Other, **SMALL, speculative_config={"model": "x"})


def test_one_n_gram_length_stands_for_both():
    assert (
        SpeculativeConfig.of({}).lookup == (2, 4)
        and SpeculativeConfig.of({"model": "x"}).method == "draft_model"
    )
    assert SpeculativeConfig.of({"prompt_lookup_max": 3}).lookup == (3, 3)
    assert SpeculativeConfig.of({"prompt_lookup_min": 2, "prompt_lookup_max": 3}).lookup == (2, 3)


def test_the_option_is_an_object_in_json():
    assert argument_kind("collections.abc.Mapping[str, typing.Any] | None") == {"type": json_object}
    assert flags({"speculative_config": {"method": "ngram"}}) == [
        "--speculative-config",
        '{"method": "ngram"}',
    ]
    for text in ("ngram", "[1]", '{"a"'):
        with pytest.raises(argparse.ArgumentTypeError, match="is no object in JSON"):
            json_object(text)
