"""Penalties, bias, bans, min-p and grammars: the formulas, the same in any way to run a request, over HTTP as well.

Oracle: a loop over the vocabulary of one request, written from the formulas of vLLM's documentation.
"""

import json
import math
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from tiny_llm_engine.backends.logits_processors import LogitsProcessors
from tiny_llm_engine.backends.seeded_sampling import SeededSampler
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.grammars.grammar import FUEL_BYTES, KEPT, LIMITS, Grammars
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_ref.serving import SamplingParams, StructuredOutputsParams
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.server import create_app

BACKENDS = [Port("tiny_llm_ref", name, "cpu") for name in installed_backends()]
VOCABULARY = 41
EOS = {7, 9}


def changed_by_formula(logits: np.ndarray, params: SamplingParams, prompt, tokens, ends) -> np.ndarray:
    """One row after all changes, token by token."""
    row = []
    for token, logit in enumerate(logits.astype(np.float64)):
        logit += (params.logit_bias or {}).get(token, 0.0)
        if len(tokens) < params.min_tokens and token in ends:
            logit = -math.inf
        if token in prompt or token in tokens:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * tokens.count(token)
        logit -= params.presence_penalty * (token in tokens)
        row.append(logit)
    return np.array(row)


ids = st.integers(0, VOCABULARY - 1)
penalties = st.sampled_from([0.0, -2.0, 0.4, 2.0])
parameters = st.builds(
    SamplingParams,
    max_tokens=st.none(),
    min_tokens=st.integers(0, 6),
    presence_penalty=penalties,
    frequency_penalty=penalties,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.7]),
    logit_bias=st.none() | st.dictionaries(ids, st.sampled_from([-100.0, -0.3, 0.0, 2.5, 100.0]), max_size=5),
)


def asked(sampling, prompt, tokens):
    state = {"prompt_tokens": prompt, "tokens": tokens, "eos_token_ids": EOS, "grammar": None}
    return SimpleNamespaceWithHash(sampling=sampling, **state)


requests = st.builds(asked, parameters, st.lists(ids, min_size=1, max_size=9), st.lists(ids, max_size=9))


class SimpleNamespaceWithHash(SimpleNamespace):
    """A request as the runner reads it."""

    __hash__ = object.__hash__


@pytest.mark.parametrize("port", BACKENDS, ids=lambda port: port.name)
@given(seed=st.integers(0, 10**6), rows=st.lists(requests, min_size=1, max_size=4), padding=st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_rows_change_as_the_formulas_say_and_rows_of_padding_do_not(port, seed, rows, padding):
    logits = np.random.default_rng(seed).normal(size=(len(rows) + padding, VOCABULARY)).astype(np.float32) * 3
    positions = [len(request.prompt_tokens) + len(request.tokens) for request in rows]
    actual = port.numpy(LogitsProcessors(port.backend_module)(port.array(logits), rows, positions))
    for row, request in enumerate(rows):
        expected = changed_by_formula(
            logits[row], request.sampling, request.prompt_tokens, request.tokens, EOS
        )
        np.testing.assert_allclose(actual[row], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(actual[len(rows) :], logits[len(rows) :])


def test_shapes_are_those_of_the_bucket_and_a_power_of_two(b, rng):
    """A graph compiler sees one program for each power of two, not one for each length of an answer."""
    shapes = set()
    counted = SimpleNamespace(**vars(b.backend_module))
    counted.put = lambda array, ids, values: shapes.add(tuple(ids.shape)) or array
    for length in range(1, 40):
        params = SamplingParams(max_tokens=None, frequency_penalty=1.0)
        request = SimpleNamespaceWithHash(
            sampling=params, tokens=[*range(length)], prompt_tokens=[], grammar=None
        )
        LogitsProcessors(counted)(b.array(rng.normal(size=(8, VOCABULARY))), [request], [length])
    assert shapes == {(8, columns) for columns in (1, 2, 4, 8, 16, 32, 64)}


@pytest.mark.parametrize("least", [0.0, 0.05, 0.5, 1.0])
def test_min_p_keeps_tokens_with_that_share_of_the_largest_probability(b, rng, least):
    logits = np.tile(rng.normal(size=30) * 2, (3000, 1))
    params = SamplingParams(1.3, min_p=least)
    sampler = SeededSampler(b.sampler, b.backend_module, b.device)
    drawn = {token for token, *_ in sampler(b.array(logits), [params] * 3000, range(3000))}
    shares = np.exp((logits[0] - logits[0].max()) / 1.3)
    assert drawn <= {*np.flatnonzero(shares >= least)}
    assert least == 0 or drawn >= {*np.flatnonzero(shares >= max(least, 0.05))}


# ---- in the engine

PROMPTS = ["What is a KV cache?", "Hello", "Who are you? Who are you?"]
SMALL = {"block_size": 8, "num_blocks": 60, "max_model_len": 64, "max_num_batched_tokens": 24}
DIGITS = StructuredOutputsParams(regex="(yes|no), [0-9]{3}")
PARAMS = [
    SamplingParams(max_tokens=10, repetition_penalty=2.5, ignore_eos=True),
    SamplingParams(1.9, max_tokens=10, presence_penalty=1.5, frequency_penalty=0.5, seed=4, min_p=0.001),
    SamplingParams(max_tokens=10, logit_bias={5: 20.0, 9: -100.0}, min_tokens=9),
    SamplingParams(max_tokens=10, structured_outputs=DIGITS),
    SamplingParams(max_tokens=10),
]


@pytest.fixture
def make(loaded):
    return lambda **options: LLM.of(*loaded, **{**SMALL, "enforce_eager": True, **options})


def answer(llm, prompt, **params):
    [output] = llm.generate([prompt], SamplingParams(**params), use_tqdm=False)
    return output.outputs[0]


def key(output) -> tuple:
    [one] = output.outputs
    return one.text, one.finish_reason, one.stop_reason


@pytest.fixture(scope="module")
def alone(loaded):
    """The prompts, each with every parameter, and their answers one after another."""
    llm = LLM.of(*loaded, **SMALL, enforce_eager=True, max_num_seqs=1, enable_prefix_caching=False)
    template = llm.get_tokenizer().apply_chat_template
    prompts = [template([{"role": "user", "content": text}]) for text in PROMPTS for _ in PARAMS]
    answers = [key(o) for o in llm.generate(prompts, PARAMS * len(PROMPTS), use_tqdm=False)]
    assert all(len({text for text, *_ in answers[i::5]}) > 1 for i in range(5)), "prompts matter"
    assert all(answers[i::5] != answers[4::5] for i in range(4)), "each parameter changes answers"
    return prompts, answers


WAYS = {
    "chunks": {"max_num_batched_tokens": 5, "max_num_seqs": 3},
    "separate": {"policy": "separate"},
    "whole": {"enable_chunked_prefill": False, "max_num_batched_tokens": None},
    "preemption": {"num_blocks": 9, "max_num_seqs": 5},
    "batch": {"max_num_seqs": 16},
    "ahead": {"async_scheduling": True, "max_num_seqs": 16},
    "ahead with preemption": {"async_scheduling": True, "num_blocks": 9, "max_num_seqs": 5},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
def test_answers_are_the_same_in_any_way_to_run_them(make, alone, options):
    """Every parameter on every prompt. In the largest batch a second round hits the prefix cache."""
    prompts, expected = alone
    llm, is_batch = make(**options), options.get("max_num_seqs") == 16
    for _ in range(1 + is_batch):
        outputs = llm.generate(prompts, PARAMS * len(PROMPTS), use_tqdm=False)
        assert [key(o) for o in outputs] == expected
    preemptions = sum(output.metrics.num_preemptions for output in outputs)
    assert (preemptions > 0) == (options.get("num_blocks") == 9)
    assert not is_batch or all(output.num_cached_tokens for output in outputs)


def test_each_token_of_the_engine_is_that_of_the_formulas(make):
    llm = make()
    rows: list[np.ndarray] = []
    llm.engine.runner.on_logits = lambda _, logits: rows.append(logits[0])
    for params in (PARAMS[0], PARAMS[2]):
        rows.clear()
        [output] = llm.generate([PROMPTS[2]], params, use_tqdm=False)
        tokens, prompt = output.outputs[0].token_ids, output.prompt_token_ids
        ends = set() if params.ignore_eos else llm.get_tokenizer().eos_token_ids
        for count, token in enumerate(tokens):
            expected = changed_by_formula(rows[count], params, set(prompt), tokens[:count], ends)
            assert token == expected.argmax()
        assert len(tokens) >= 9


def test_where_an_answer_ends_and_why(loaded):
    """`LLM` with the answer to one prompt as its own oracle: its tokens and its text. The shipped model ends it."""
    llm = LLM.of(loaded[0], *load_network(loaded[0], "tiny-qwen3", "week3"), **SMALL, enforce_eager=True)
    prompt = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    free = answer(llm, prompt, max_tokens=None)
    text, tokens = free.text, list(free.token_ids)
    assert (free.finish_reason, free.stop_reason) == ("stop", None) and len(tokens) > 6
    third = tokens[2]
    first = tokens.index(third)
    cut = answer(llm, prompt, stop_token_ids=[third])
    assert (cut.finish_reason, cut.stop_reason, list(cut.token_ids)) == ("stop", third, tokens[:first])
    decode = llm.get_tokenizer().decode
    assert cut.text == decode(tokens[:first])
    kept = answer(llm, prompt, stop_token_ids=[third], include_stop_str_in_output=True)
    assert kept.text == decode(tokens[: first + 1]) and list(kept.token_ids) == tokens[:first]
    word = text[4:7]
    stopped = answer(llm, prompt, stop=[word, "never comes"])
    assert (stopped.text, stopped.stop_reason) == (text[: text.index(word)], word)
    stopped = answer(llm, prompt, stop=word, include_stop_str_in_output=True)
    assert stopped.text == text[: text.index(word) + 3]
    longer = answer(llm, prompt, max_tokens=40, min_tokens=len(tokens) + 3)
    assert len(longer.token_ids) >= len(tokens) + 3 and list(longer.token_ids[: len(tokens)]) == tokens
    past = answer(llm, prompt, stop=word, min_tokens=len(tokens), max_tokens=len(tokens))
    assert (past.text, past.finish_reason) == (text, "length"), "no stop string before min_tokens"


def test_special_tokens_are_text_if_that_is_wanted(make):
    llm = make()
    [end] = llm.get_tokenizer().encode("<|im_end|>")
    bias = {"logit_bias": {end: 100}, "ignore_eos": True, "max_tokens": 2}
    assert answer(llm, "Hello", **bias).text == ""
    assert answer(llm, "Hello", skip_special_tokens=False, **bias).text == 2 * "<|im_end|>"


# ---- structured outputs


def object_of(**properties) -> dict:
    """The schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": [*properties]}


SCHEMAS = [
    object_of(a={"type": "boolean"}, b={"enum": ["x", "y"]}),
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 3},
    # A format that nobody checks is a remark; a value that looks like one is none.
    object_of(c={"type": "string", "maxLength": 4, "format": "path"}),
    {"anyOf": [{"const": None}, {"type": "array", "items": {"const": "d"}, "minItems": 1, "maxItems": 2}]},
    {"const": {"format": "path"}},
]
CLOSED = [{"additionalProperties": False, **each} if "properties" in each else each for each in SCHEMAS]


def is_valid(value, number: int) -> bool:
    """By hand: no validator of JSON schemas is installed."""
    if number == 0:
        return value.keys() == {"a", "b"} and type(value["a"]) is bool and value["b"] in ("x", "y")
    if number == 1:
        return 2 <= len(value) <= 3 and all(type(each) is int and 0 <= each <= 9 for each in value)
    if number == 2:
        return value.keys() == {"c"} and isinstance(value["c"], str) and len(value["c"]) <= 4
    return value in (None, ["d"], ["d", "d"]) if number == 3 else value == {"format": "path"}


@pytest.mark.parametrize("number", range(len(CLOSED)))
def test_every_answer_follows_its_schema(make, number):
    """Greedy and at high temperatures, where the model alone would hardly ever write JSON."""
    form = StructuredOutputsParams(json=CLOSED[number])
    heats = [0.0, 1.0, 2.0, 5.0]
    params = [SamplingParams(t, max_tokens=60, seed=7, structured_outputs=form, n=2) for t in heats]
    outputs = make(max_model_len=128).generate(["Answer in JSON: "] * 4, params, use_tqdm=False)
    for one in (one for output in outputs for one in output.outputs):
        assert (one.finish_reason, one.error) == ("stop", None), one
        assert is_valid(json.loads(one.text), number), one.text


@pytest.mark.parametrize("mark", ["<|im_end|>", "<|endoftext|>"])
def test_no_end_token_comes_before_the_form_is_complete(make, mark):
    """Neither the model's own nor one of the request's, however likely it is."""
    [end] = (llm := make(max_model_len=128)).get_tokenizer().encode(mark, add_special_tokens=False)
    form = StructuredOutputsParams(json=CLOSED[0])
    found = answer(
        llm, "Hello", max_tokens=60, structured_outputs=form, logit_bias={end: 100}, stop_token_ids=[end]
    )
    assert found.finish_reason == "stop" and is_valid(json.loads(found.text), 0)


def test_an_answer_that_is_cut_off_says_length_and_is_a_beginning(make):
    form = StructuredOutputsParams(regex="[0-9]{12}")
    cut = answer(make(), "Hello", max_tokens=3, structured_outputs=form)
    assert cut.finish_reason == "length" and re.fullmatch("[0-9]{1,11}", cut.text)


# Beyond the limits of llguidance at its first token, and after a choice.
LARGE = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(560)}}
LARGE_LATER = {**object_of(a={"enum": ["x", "y"]}, b=LARGE), "additionalProperties": False}
NESTED = "((a{100}){100}){100}"


BROKEN_FORMS = [{"json": text} for text in ('{"type": 7}', "{", "[1]", json.dumps(LARGE))]
BROKEN_FORMS += [{"regex": text} for text in ("(", "a" * 10**6, NESTED)]


@pytest.mark.parametrize("form", BROKEN_FORMS)
def test_a_form_without_a_grammar_is_the_error_of_its_request_alone(make, form, capfd):
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(**form))
    failed, served = make().generate(["Hello", "Hello"], [bad, SamplingParams(max_tokens=2)], use_tqdm=False)
    assert failed.error.startswith("structured_outputs has no grammar: ") and "\n" not in failed.error
    assert served.error is None and served.outputs[0].text
    assert not capfd.readouterr().err


@pytest.mark.parametrize("drafts", [None, {"method": "ngram", "num_speculative_tokens": 3}])
def test_a_grammar_that_reaches_a_limit_ends_its_answer_with_the_reason(make, capfd, drafts):
    """What is written so far stays, and the others go on."""
    forms = [StructuredOutputsParams(json=schema) for schema in (LARGE_LATER, CLOSED[0])]
    params = [SamplingParams(max_tokens=30, structured_outputs=form) for form in forms]
    options = {"speculative_config": drafts} if drafts else {}
    llm = make(max_model_len=128, **options)
    capfd.readouterr()  # the engine may say that no draft pays
    failed, served = llm.generate(["Hello", "Hello"], params, use_tqdm=False)
    assert failed.outputs[0].finish_reason == "error"
    assert failed.error.startswith("structured_outputs reached a limit: ") and "\n" not in failed.error
    assert re.match('{"a": "[xy]", "b": {', failed.outputs[0].text)
    assert served.outputs[0].finish_reason == "stop" and is_valid(json.loads(served.outputs[0].text), 0)
    assert not capfd.readouterr().err


@pytest.fixture(scope="module")
def grammars():
    tokenizer = load_tokenizer("tiny-qwen3")
    return Grammars(tokenizer, tokenizer.vocab_size)


COSTLY = StructuredOutputsParams(regex="b{1,50}|x(.*[aeiou].{30}){20}")


def text_to_a_limit(grammar) -> list[int]:
    """The ids of a text of `COSTLY` after which its limit is reached."""
    ids = load_tokenizer("tiny-qwen3").encode("x" + "a quick brown e i o u " * 40)
    for count in range(len(ids)):
        grammar.allowed(ids[:count])
        if grammar.error_after(ids[:count]):
            return ids[:count]
    raise AssertionError("no limit was reached")


def test_an_answer_at_a_limit_is_not_the_end_of_another_one_with_the_same_grammar(grammars):
    """Nor of the same one, if it came there with drafts that are not taken."""
    bad, good = grammars.grammar(COSTLY), grammars.grammar(COSTLY)
    failing = text_to_a_limit(bad)
    assert bad.error_after([*failing, 5]) == bad.error_after(failing)
    assert bad.error_after(failing[:-1]) is None
    other = load_tokenizer("tiny-qwen3").encode("bbb")
    expected = Grammars(load_tokenizer("tiny-qwen3"), len(good.allowed([]))).grammar(COSTLY).allowed(other)
    for grammar in (good, bad):
        assert (grammar.allowed(other) == expected).all() and grammar.error_after(other) is None
    assert (grammars.grammar(COSTLY).allowed([]) == good.allowed([])).all()
    assert not grammars.compiled(COSTLY).is_spoiled, "later answers do not begin with one that is"


def test_grammars_are_kept_while_they_are_held_and_a_few_for_later(grammars):
    """What one of them takes is limited, and so is their number."""
    forms = [StructuredOutputsParams(regex=f"number {number}") for number in range(2 * KEPT)]
    held = grammars.compiled(forms[0])
    kept = [weakref.ref(grammars.compiled(form)) for form in forms[1:]]
    assert sum(each() is not None for each in kept) == KEPT
    assert grammars.compiled(forms[0]) is held
    assert KEPT * LIMITS["initial_lexer_fuel"] * FUEL_BYTES <= 2**28


# ---- over HTTP, with the official client


@pytest.fixture(scope="module")
def served():
    """What opens an `LLM` of the shipped model, whose answers have an end, on the first port."""
    port = Port("tiny_llm_ref", installed_backends()[0], "cpu", "float32")
    network, tokenizer = load_network(port, "tiny-qwen3", "week3")
    options = {**SMALL, "max_model_len": 128, "enforce_eager": True}
    made = partial(LLM.of, port, network, tokenizer, **options)
    made().generate([[5]], use_tqdm=False)  # MLX's arrays belong to the thread that evaluates first
    return made


@pytest.fixture(scope="module")
def client(served):
    with BackgroundServer(create_app(served)) as server:
        yield openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_every_field_reaches_the_engine_over_http(client, served):
    llm = served()
    fields = [
        {"presence_penalty": 1.5, "frequency_penalty": 1.0},
        {"repetition_penalty": 1.8},
        {"logit_bias": {"5": 5.5}},
        {"min_tokens": 14, "stop_token_ids": [300, 301]},
        {"stop": "a", "include_stop_str_in_output": True},
        {"skip_special_tokens": False, "logit_bias": {"3227": 100}, "ignore_eos": True},
        {"top_k": -1, "min_p": 0.3, "temperature": 1.5, "seed": 5},
    ]
    ours = {"repetition_penalty", "min_tokens", "stop_token_ids", "min_p", "ignore_eos", "top_k"}
    ours |= {"include_stop_str_in_output", "skip_special_tokens"}
    for wanted in fields:
        body = {name: value for name, value in wanted.items() if name not in ours}
        body = {"model": "tiny-qwen3", "prompt": "Hello", "max_tokens": 14, "temperature": 0, **body}
        extra = {name: value for name, value in wanted.items() if name in ours}
        [choice] = client.completions.create(**body, extra_body=extra).choices
        own = {**wanted, "logit_bias": {int(k): v for k, v in wanted.get("logit_bias", {}).items()} or None}
        expected = answer(llm, "Hello", **{"max_tokens": 14, **own})
        assert (choice.text, choice.stop_reason) == (expected.text, expected.stop_reason), wanted


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_reaches_a_limit_is_the_clients_error(client, stream):
    asked = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    with pytest.raises(openai.APIError, match="structured_outputs reached a limit: ") as failed:
        list(
            client.chat.completions.create(**asked, extra_body={"structured_outputs": {"json": LARGE_LATER}})
        )
    assert failed.value.param == "structured_outputs"
    with pytest.raises(openai.BadRequestError, match="structured_outputs has no grammar: "):
        client.chat.completions.create(**asked, extra_body={"structured_outputs": {"json": LARGE}})


CHOICES = ["yes", 'no "q"', "\u00fc\\"]
TEXTS_OF_FORMS = {
    "choice": ({"choice": CHOICES}, {*CHOICES}),
    "lark": ({"grammar": 'start: "a" b\nb: "1" | "2"'}, {"a1", "a2"}),
    "gbnf": ({"grammar": 'root ::= "x" ("y" | "z")'}, {"xy", "xz"}),
}


@pytest.mark.parametrize(("form", "texts"), TEXTS_OF_FORMS.values(), ids=TEXTS_OF_FORMS)
def test_choices_and_grammars_decide_the_text(client, form, texts):
    asked = {"model": "tiny-qwen3", "prompt": "Hello", "max_tokens": 20, "n": 8}
    made = client.completions.create(**asked, extra_body={"structured_outputs": form})
    assert {choice.text for choice in made.choices} <= texts
    assert {choice.finish_reason for choice in made.choices} == {"stop"}


OVERLAP = {"oneOf": [{"type": "integer"}, {"type": "number"}]}
CYCLE = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}


LOOKS = {"type": "string", "pattern": "a(?=b)"}
WRONG_SCHEMAS = [
    (OVERLAP, "oneOf has alternatives that overlap: write anyOf"),
    (CYCLE, "no text fits: a cycle of $ref or of rules needs an alternative that ends"),
    ({"type": "string", "pattern": "(a"}, "the pattern (a cannot be read, unclosed group: correct it"),
    (LOOKS, "patterns without look-around and backreferences are needed"),
    ({"type": "array", "uniqueItems": True}, '"uniqueItems": not supported: leave it out'),
    ({"$ref": "#/$defs/B"}, "$ref: there is no /$defs/B: define it, or correct the reference"),
    ({"type": "strin"}, "Invalid type: strin; correct it"),
]


@pytest.mark.parametrize(("schema", "says"), WRONG_SCHEMAS)
def test_a_schema_is_refused_in_the_clients_words(client, schema, says):
    """As the form of an answer, and as arguments of a tool."""
    named = {"name": "x", "schema": schema, "strict": True}
    inside = {**object_of(a=schema), "$defs": schema.get("$defs", {})}
    tool = {"type": "function", "function": {"name": "f", "parameters": inside}}
    forms = {"response_format": {"response_format": {"type": "json_schema", "json_schema": named}}}
    forms["tools"] = {"tools": [tool], "tool_choice": "required"}
    for field, form in forms.items():
        with pytest.raises(openai.BadRequestError) as refused:
            messages = [{"role": "user", "content": "Hello"}]
            client.chat.completions.create(model="tiny-qwen3", messages=messages, max_tokens=50, **form)
        assert refused.value.body["message"] == f"{field} has no grammar: {says}"


def test_as_many_choices_as_are_advertised(client):
    asked = {"model": "tiny-qwen3", "prompt": "Hello", "max_tokens": 40}
    texts = [f"choice \x7f{number}" for number in range(10_000)]
    [made] = client.completions.create(**asked, extra_body={"guided_choice": texts}).choices
    assert made.text in texts and made.finish_reason == "stop"
    says = r"guided_choice has no grammar: it has .* at most 262144"
    with pytest.raises(openai.BadRequestError, match=says):
        client.completions.create(**asked, extra_body={"guided_choice": [f"{text:50}" for text in texts]})


@pytest.mark.parametrize("grammar", ["(", "start: b", "root ::= (", "start: " + "(" * 10_000])
def test_what_is_no_grammar_is_refused_in_one_line(client, grammar):
    form = {"structured_outputs": {"grammar": grammar}}
    with pytest.raises(openai.BadRequestError, match=r"structured_outputs has no grammar: .+") as refused:
        client.completions.create(model="tiny-qwen3", prompt="Hello", extra_body=form)
    assert "\n" not in refused.value.body["message"]


class HeldMatcher:
    """A matcher of llguidance whose masks take until an event, or a minute."""

    grammar_from_regex = staticmethod(LLMatcher.grammar_from_regex)
    entered, released = threading.Event(), threading.Event()

    def __init__(self, *arguments, **options):
        self._matcher = LLMatcher(*arguments, **options)

    def deep_copy(self):
        copied = HeldMatcher.__new__(HeldMatcher)
        copied._matcher = self._matcher.deep_copy()
        return copied

    def compute_bitmask(self):
        self.entered.set()
        self.released.wait(60)
        return self._matcher.compute_bitmask()

    def __getattr__(self, name):
        return getattr(self._matcher, name)


def test_steps_go_on_while_the_first_masks_of_a_grammar_are_computed(client, monkeypatch):
    """On an expression of 22 bytes that took a second, in a step of all streams."""
    monkeypatch.setattr("llguidance.LLMatcher", HeldMatcher)
    asked = {"model": "tiny-qwen3", "prompt": "Hello", "max_tokens": 12}
    form = {"structured_outputs": {"regex": "held [0-9]"}, "ignore_eos": False}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(client.completions.create, **asked, extra_body=form)
        assert HeldMatcher.entered.wait(60)
        other = client.completions.create(**asked, extra_body={"ignore_eos": True})
        steps = 0 if HeldMatcher.released.is_set() else other.usage.completion_tokens
        is_held = not held.done()
        HeldMatcher.released.set()
        assert (steps, is_held) == (12, True), "a stream waits for the grammar of another request"
        assert re.fullmatch("held [0-9]", held.result().choices[0].text)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_reason_and_a_schema_in_chats(client, stream):
    asked = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": "Hello"}], "stream": stream}
    schema = {"name": "pair", "schema": CLOSED[0], "strict": True}
    form = {"type": "json_schema", "json_schema": schema}

    def ask(**options) -> tuple:
        made = client.chat.completions.create(**asked, **options)
        if not stream:
            [choice] = made.choices
            return choice.message.content, choice.finish_reason, choice.stop_reason
        choices = [chunk.choices[0] for chunk in made]
        text = "".join(choice.delta.content or "" for choice in choices)
        return text, choices[-1].finish_reason, choices[-1].stop_reason

    text, finish, reason = ask(response_format=form)
    assert (finish, reason) == ("stop", None) and is_valid(json.loads(text), 0)
    assert ask(response_format=form, max_tokens=2)[1] == "length"
    text, finish, _ = ask(extra_body={"structured_outputs": {"regex": "(yes|no), [0-9]{3}"}})
    assert finish == "stop" and re.fullmatch("(yes|no), [0-9]{3}", text)
    assert ask(response_format={"type": "json_object"}, max_tokens=1)[0].startswith("{")
    whole, finish, reason = ask(response_format={"type": "text"}, temperature=0)
    assert (finish, reason) == ("stop", None)
    assert ask(stop=whole[3:6], temperature=0)[1:] == ("stop", whole[3:6])
