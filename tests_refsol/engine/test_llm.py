"""`LLM` as a user of vLLM meets it: inputs, results, errors of single requests, options, and the end of everything."""

import gc
import io
import os
import random
import re
import signal
import threading
import weakref
from collections import deque
from copy import copy
from dataclasses import fields, replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import tiny_llm
import tiny_llm_ref
from tiny_llm_course import capabilities
from tiny_llm_course.address import Task
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_engine.llm import PLAIN
from tiny_llm_engine.machine import progress_bar
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.chat_template import ChatTemplate
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.graphs.step_shapes import keep_compiled, will_compile
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.profiling.step_timer import StepTimer
from tiny_llm_ref import SamplingParams

PROMPTS = ["What is chunked prefill?", "Which day teaches attention?", "Hello", "Who are you?"]
SMALL = {"block_size": 8, "num_blocks": 60, "max_model_len": 64, "max_num_batched_tokens": 24}
SIX = SamplingParams(max_tokens=6)


@pytest.fixture
def make(loaded):
    """An `LLM` of it, small unless somebody says otherwise."""

    def made(**options) -> LLM:
        return LLM.of(*loaded, **{**SMALL, **options})

    return made


@pytest.fixture
def quick_compiler(loaded, monkeypatch):
    """torch's parts are traced and run as they are: what Inductor makes of them is tested in test_graphs.py.

    So no compiler for C++ is needed.
    """
    if loaded[0].name == "torch":
        import torch

        torch._dynamo.reset()
        compiled = torch.compile
        monkeypatch.setattr(torch, "compile", lambda part, **options: compiled(part, backend="eager"))
        monkeypatch.setattr(given_of(loaded[0]), "cannot_compile", lambda device: None)


def texts(outputs) -> list[str]:
    return [answer.text for output in outputs for answer in output.outputs]


def is_empty(llm: LLM) -> bool:
    """No block is taken, and no request is known any more."""
    engine = llm.engine
    return engine.allocator.num_free == engine.allocator.num_blocks and not engine.num_open


# ---- inputs and results

QUICK_START = """
from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The capital of France is",
    "What is chunked prefill?",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95)

llm = LLM(model="facebook/opt-125m")
outputs = llm.generate(prompts, sampling_params)

for output in outputs:
    prompt = output.prompt
    generated_text = output.outputs[0].text
    print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")
"""


@pytest.mark.parametrize("backend", installed_backends())
def test_a_script_for_vllm_runs_with_another_import_and_another_model(monkeypatch, capsys, backend):
    monkeypatch.setenv("TINY_LLM_BACKEND", backend)
    script = QUICK_START.replace("from vllm", "from tiny_llm_ref").replace("facebook/opt-125m", "tiny-qwen3")
    names: dict = {}
    exec(script, names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(", Generated text: ")[0] for line in lines] == [
        f"Prompt: {prompt!r}" for prompt in names["prompts"]
    ]
    assert all(0 < len(output.outputs[0].token_ids) <= 16 for output in names["outputs"])
    assert names["llm"].engine.port.name == backend


# Like the examples of vLLM's offline inference: their calls and arguments, on our model.
BASIC = """
from vllm import LLM, SamplingParams

asked = ["What is chunked prefill?", "Hello", "The KV cache"]
llm = LLM(model="facebook/opt-125m", tensor_parallel_size=1, trust_remote_code=True, tokenizer="facebook/opt-125m",
          swap_space=4, dtype="float32", seed=0, max_model_len=64, gpu_memory_utilization=0.4, **SMALL)
outputs = llm.generate(asked, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=4))
assert [output.prompt for output in outputs] == asked and all(output.outputs[0].token_ids for output in outputs)
"""
CHAT = """
from vllm import LLM, RequestOutput

turns = [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! What would you like to know?"},
    {"role": "user", "content": "What is RoPE?"},
]
llm = LLM(model="facebook/opt-125m", tokenizer_mode="auto", disable_log_stats=True, **SMALL)
params = llm.get_default_sampling_params()
[one] = llm.chat(turns, params, use_tqdm=False, chat_template=None, continue_final_message=False, lora_request=None)
outputs = llm.chat([turns] * 3, sampling_params=params, use_tqdm=True)
assert isinstance(one, RequestOutput) and one.finished and "Be brief." in one.prompt
assert {output.outputs[0].text for output in outputs} == {one.outputs[0].text}
"""
PREFIX_CACHING = """
from vllm import LLM, SamplingParams, TokensPrompt

shared = "The scheduler decides in every step which prompts and which decodes run together. "
asked = [shared + question for question in ("Why?", "How?", "What for?")]
greedy = SamplingParams(temperature=0.0)
regular = LLM(model="facebook/opt-125m", enable_prefix_caching=False, gpu_memory_utilization=0.4, **SMALL)
expected = [output.outputs[0].text for output in regular.generate(asked, greedy)]
del regular
llm = LLM(model="facebook/opt-125m", enable_prefix_caching=True, gpu_memory_utilization=0.4, **SMALL)
llm.generate(asked[0], greedy)
outputs = llm.generate(asked, greedy)
assert [output.outputs[0].text for output in outputs] == expected
assert all(output.num_cached_tokens for output in outputs)
ids = llm.get_tokenizer().encode(asked[1])
[output] = llm.generate(TokensPrompt(prompt_token_ids=ids), greedy)
assert output.outputs[0].text == expected[1]
"""


@pytest.mark.parametrize("script", [BASIC, CHAT, PREFIX_CACHING], ids=["basic", "chat", "prefix_caching"])
@pytest.mark.filterwarnings("ignore:LLM. no effect here")
def test_the_calls_of_vllms_examples(script, monkeypatch, capsys):
    monkeypatch.setenv("TINY_LLM_BACKEND", installed_backends()[-1])
    script = script.replace("from vllm", "from tiny_llm_ref").replace("facebook/opt-125m", "tiny-qwen3")
    exec(script, {"SMALL": {"num_blocks": 60, "block_size": 8, "device": "cpu"}})


def test_a_long_prompt_takes_chunks_of_its_threshold_and_others_the_rest(make):
    """vLLM's long_prefill_token_threshold: two long prompts share each step, and answers stay what they are."""
    prompts = [[*range(40, 70)], [*range(80, 104)]]
    options = {"max_num_batched_tokens": 16, "max_num_seqs": 4}
    found = {}
    for threshold in (0, 8):
        llm, events = make(**options, long_prefill_token_threshold=threshold), []
        with llm.engine.heard_by(events.append):
            answers = texts(llm.generate(prompts, SIX))
        steps = [
            [part.tokens for part in event.parts if part.kind == "chunk"] for event in events if event.parts
        ]
        found[threshold] = answers, steps[:3]
    assert found[0][0] == found[8][0]
    assert (found[0][1], found[8][1]) == ([[16], [14, 2], [15]], [[8, 8], [8, 8], [8, 8]])
    with pytest.raises(ValueError, match="long_prefill_token_threshold needs chunks"):
        make(long_prefill_token_threshold=8, enable_chunked_prefill=False, max_model_len=64)


UNREAD = {"role": "bot", "content": "a"}
TURN = {"role": "user", "content": "a"}
WRONG_CALLS = [
    (
        lambda llm: llm.generate(["a"], lora_request="a"),
        "lora_request is 'a': there are no adapters; leave it",
    ),
    (lambda llm: llm.chat([TURN], chat_template="x"), "chat_template is 'x': the model's own"),
    (lambda llm: llm.generate(["a"], SIX, lora_requests=None), "there is no argument lora_requests"),
    (lambda llm: llm.generate(PROMPTS, [SIX, SIX]), "2 sampling_params for 4 prompts"),
    (lambda llm: llm.generate("hi", {"n": 3}), "sampling_params is {'n': 3}: give SamplingParams"),
    (lambda llm: llm.generate("hi", 0.7), "sampling_params is 0.7: give SamplingParams"),
    (lambda llm: llm.generate(["hi"], "x"), "sampling_params is 'x': give SamplingParams"),
    (lambda llm: llm.generate(None), "prompts is None: give a text, token ids, or a list of these"),
    (lambda llm: llm.generate("hi", max_tokens=3), "there is no argument max_tokens: SamplingParams has"),
    (lambda llm: llm.chat("Hello"), 'messages is \'Hello\': give a list of {"role": "user", "content": '),
    (lambda llm: llm.chat(["Hello"]), "messages is ['Hello']: give a list of {\"role\""),
    (lambda llm: llm.chat(UNREAD), "messages is {'role': 'bot', 'content': 'a'}: give"),
    (lambda llm: llm.chat([UNREAD]), "messages: role is 'bot': give system, developer, user"),
    (lambda _: tiny_llm_ref.LLM(gpu_mem=0.5), "there is no argument gpu_mem: do you mean gpu_memory_util"),
    (lambda _: tiny_llm_ref.LLM(quantize="4bit"), "there is no argument quantize: do you mean quantization?"),
    (lambda _: SamplingParams(temprature=1), "there is no argument temprature: do you mean temperature?"),
    (lambda _: SamplingParams(temperature="0.5"), "temperature is '0.5': give 0 (greedy) or a number of"),
]


def test_a_wrong_call_is_one_line_that_says_what_to_give(make):
    llm = make()
    for call, says in WRONG_CALLS:
        with pytest.raises((ValueError, TypeError)) as error:
            call(llm)
        assert str(error.value).startswith(says) and "\n" not in str(error.value)
    assert SamplingParams(top_k=0) == SamplingParams(top_k=-1) == SamplingParams(top_k=None), "off"
    for package in (tiny_llm, tiny_llm_ref):
        assert package.StructuredOutputsParams(choice=["a"]).choice


def test_variables_of_the_template_reach_it(make, monkeypatch):
    llm = make()
    template = ChatTemplate({"default": "{{ tools | tojson }}{{ enable_thinking }}"}, Path("a"), {})
    monkeypatch.setattr(llm.get_tokenizer(), "_chat_template", template)
    [output] = llm.chat(
        [{"role": "user", "content": "a"}], SIX, tools=[5], chat_template_kwargs={"enable_thinking": 1}
    )
    assert output.prompt == "[5]1"


def test_every_form_of_a_prompt_gives_the_same_answer(make):
    llm, [text, *_] = make(), PROMPTS
    ids = llm.get_tokenizer().encode(text)
    mappings = {"prompt": text}, [{"prompt_token_ids": ids}], {"prompt_token_ids": tuple(ids)}
    forms = [text, [text], ids, [ids], *mappings]
    outputs = [output for form in forms for output in llm.generate(form, SIX)]
    assert len(outputs) == len(forms)
    assert len({*texts(outputs)}) == 1 and texts(outputs)[0]
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert [output.prompt for output in outputs] == [text, text, None, None, text, None, None]


def test_it_answers_as_the_engine_of_week_2_does(make, loaded, two_layers):
    port, _, tokenizer = loaded
    network, _ = load_network(port, two_layers, "week2")
    generate = port.simple_generate_with_kv_cache
    prompts = map(tokenizer.encode, PROMPTS)
    expected = [generate(network, tokenizer, ids, None, max_tokens=6) for ids in prompts]
    assert texts(make().generate(PROMPTS, SIX)) == expected


def test_no_parameters_are_sixteen_greedy_tokens(make):
    [output] = make().generate(PROMPTS[2])
    [again] = make().generate(PROMPTS[2], SamplingParams(max_tokens=16))
    assert output.outputs == again.outputs
    [endless] = make().generate(PROMPTS[2], SamplingParams(ignore_eos=True))
    assert len(endless.outputs[0].token_ids) == 16 and endless.outputs[0].finish_reason == "length"


def test_a_conversation_goes_through_the_chat_template(make):
    llm = make()
    messages = [{"role": "user", "content": PROMPTS[0]}]
    prompt = llm.get_tokenizer().apply_chat_template(messages)
    [output] = llm.chat(messages, SIX)
    assert (output.prompt, texts([output])) == (prompt, texts(llm.generate(prompt, SIX)))
    assert texts(llm.chat([messages, messages], SIX)) == 2 * texts([output])
    [bare] = llm.chat(messages, SIX, add_generation_prompt=False)
    assert prompt.startswith(bare.prompt) and bare.prompt != prompt


def test_metrics_and_cached_tokens_tell_what_happened(make):
    ticks = iter(range(10**6))
    llm = make()
    llm.engine.clock = llm.engine.loop.clock = lambda: next(ticks)
    first, second = (llm.generate(PROMPTS[0], SIX)[0] for _ in range(2))
    times = first.metrics.arrival_time, first.metrics.first_token_time, first.metrics.finished_time
    assert times == tuple(sorted(set(times))) and first.metrics.ttft == times[1] - times[0]
    assert (first.request_id, second.request_id) == ("0", "1")
    full = (len(first.prompt_token_ids) - 1) // 8 * 8
    cached = (first.num_cached_tokens, second.num_cached_tokens)
    assert cached == (0, full), "the cache lives from call to call"
    llm.reset_prefix_cache()
    assert llm.generate(PROMPTS[0], SIX)[0].num_cached_tokens == 0


def test_logprobs_are_one_table_per_token(make):
    [output] = make().generate(PROMPTS[0], SamplingParams(max_tokens=4, logprobs=3, temperature=3.0, seed=4))
    answer = output.outputs[0]
    assert len(answer.logprobs) == len(answer.token_ids) == 4
    for token, table in zip(answer.token_ids, answer.logprobs, strict=True):
        assert token in table and len(table) in (3, 4)
        values = [each.logprob for each in table.values()]
        assert values[:3] == sorted(values[:3], reverse=True) and max(values) < 0
    chosen = [table[token] for token, table in zip(answer.token_ids, answer.logprobs, strict=True)]
    assert answer.cumulative_logprob == sum(each.logprob for each in chosen)
    assert "".join(each.decoded_token for each in chosen) == answer.text
    assert make().generate(PROMPTS[0], SIX)[0].outputs[0].logprobs is None


def test_a_special_token_in_a_table_of_logprobs_is_text(make):
    llm = make()
    [end] = llm.get_tokenizer().encode("<|im_end|>")
    forced = SamplingParams(max_tokens=1, logprobs=1, ignore_eos=True, logit_bias={end: 100.0})
    answer = llm.generate(PROMPTS[0], forced)[0].outputs[0]
    assert answer.text == "" and answer.logprobs[0][end].decoded_token == "<|im_end|>"


def test_a_stream_tells_the_text_of_each_token_once(make):
    llm = make(max_num_batched_tokens=16)
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    pieces = []
    text = llm.stream(ids, SIX, pieces.append)
    assert "".join(pieces) == text == texts(llm.generate([ids], SIX))[0] and len(pieces) == 6
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm.stream([], SIX, pieces.append)


@pytest.mark.parametrize(("is_wanted", "is_terminal"), [(True, True), (False, True), (True, False)])
def test_a_bar_is_drawn_for_those_who_want_it_and_on_a_terminal(make, monkeypatch, is_wanted, is_terminal):
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=is_terminal, width=80)
    monkeypatch.setattr(progress_bar, "Console", lambda **options: console)
    make().generate(PROMPTS, SIX, use_tqdm=is_wanted)
    shown = drawn.getvalue()
    assert ("4/4" in shown and "tokens/s" in shown) == (is_wanted and is_terminal) == bool(shown)


# ---- draws and ends

WARM = SamplingParams(temperature=1.5, max_tokens=8, seed=11, ignore_eos=True)


def test_without_a_seed_each_request_has_its_own_from_the_engines(make):
    params = replace(WARM, seed=None)
    first, second = (texts(make(seed=seed).generate([PROMPTS[0]] * 2, params)) for seed in (0, 0))
    assert first == second and first[0] != first[1]
    assert texts(make(seed=1).generate([PROMPTS[0]] * 2, params)) != first


# ---- what cannot be served


WRONG_PROMPTS = [
    ("", "the prompt is empty"),
    ([], "the prompt is empty"),
    ([3, 5000], "token id 5000 is not one of 0 to 3519"),
    ([1, -1], "token id -1 is not one of"),
    ([1.5], "token id 1.5 is not one of"),
    (["a"], "token id a is not one of"),
    (None, "neither a text nor token ids"),
    ({"text": "a"}, "neither a text nor token ids"),
    ([1] * 64, "has 64 tokens, but max_model_len is 64"),
    ([1] * 28, "a prompt of length 28 with an answer of 6 never fits into the 32 tokens of all KV blocks"),
]


@pytest.mark.parametrize(("bad", "says"), WRONG_PROMPTS)
def test_one_request_fails_in_one_line_and_the_others_are_served(make, bad, says):
    llm = make(num_blocks=4)
    good, failed, other = llm.generate([PROMPTS[2], bad, PROMPTS[2]], SIX)
    assert (failed.outputs[0].finish_reason, failed.outputs[0].text) == ("error", "")
    assert says in failed.error and "\n" not in failed.error
    assert good.error is None and good.outputs == other.outputs and good.outputs[0].text
    assert is_empty(llm)


def test_an_answer_ends_where_the_context_does(make):
    [output] = make().generate([[1] * 40], SamplingParams(max_tokens=None, ignore_eos=True))
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (24, "length")


class InTwoStages:
    """A runner as two stages: a batch is computed when it is submitted, and may be collected much later."""

    num_stages = 2

    def __init__(self, runner):
        self._runner, self.on_the_way = runner, deque()
        self.abandon = self.on_the_way.clear

    def __getattr__(self, name):
        return getattr(self._runner, name)

    def submit(self, batch):
        self.on_the_way.append(self._runner.run(batch))

    def collect(self):
        return self.on_the_way.popleft()


DRAFTS = {"method": "ngram", "num_speculative_tokens": 3}
WAYS = [
    *({"policy": name, "max_num_batched_tokens": 64} for name in ("separate", "static", "orca", "paced")),
    {},
    {"num_blocks": 12, "max_num_seqs": 5},
    {"scheduling_policy": "priority", "max_num_seqs": 2},
    {"speculative_config": DRAFTS},
    *({"async_scheduling": True, **options} for options in ({}, {"num_blocks": 12}, {"max_num_seqs": 2})),
    {"enable_chunked_prefill": False, "max_num_batched_tokens": None},
    *({"stages": 2, **options} for options in ({}, {"num_blocks": 12}, {"max_num_seqs": 2})),
]


@pytest.mark.parametrize(
    ("way", "loaded"), [*zip(WAYS, cycle(installed_backends()))], ids=str, indirect=["loaded"]
)
def test_wherever_a_run_is_interrupted_it_is_empty_and_right_afterwards(make, way):
    """After any step or event, also by a listener that raises ever after, or in the middle of a call of the model."""
    options = dict(way)
    llm = make(**{key: value for key, value in options.items() if key != "stages"}, enforce_eager=True)
    engine = llm.engine
    if "stages" in way:
        engine.runner = InTwoStages(engine.runner)
        engine.reset_prefix_cache()
    params = [SIX, replace(SIX, temperature=0.9, seed=3, n=2), SIX, SIX]
    expected, left, rng = texts(llm.generate(PROMPTS, params)), [0], random.Random(str(way))

    def count_down(error):
        left[0] -= 1
        if left[0] <= 0:
            raise error

    def interrupted_at(where, error):
        asked = zip(PROMPTS, params, strict=True)
        requests = [engine.request(text, llm.get_tokenizer().encode(text), each) for text, each in asked]
        run, submitted = engine.runner.run, getattr(engine.runner, "collect", None)
        if where == "model":
            name = "run" if submitted is None else "collect"
            call = getattr(engine.runner, name)
            setattr(engine.runner, name, lambda *batch: (call(*batch), count_down(error))[0])
        with engine.heard_by(lambda event: count_down(error) if where == "event" else None):
            try:
                engine.run(requests, lambda: count_down(error) if where == "step" else None)
            except type(error):
                return
            finally:
                engine.runner.run = run
                if submitted is not None:
                    engine.runner.collect = submitted

    for _ in range(4):
        where = rng.choice(["step", "event", "model"])
        left[0] = rng.randint(1, 60 if where == "event" else 9)
        interrupted_at(where, rng.choice([KeyboardInterrupt(), OSError("gone")]))
        assert is_empty(llm) and not engine.has_work_remaining() and not engine.num_waiting, (where, left)
        if rng.random() < 0.5:
            llm.reset_prefix_cache()
        assert texts(llm.generate(PROMPTS, params)) == expected, (where, left)


def test_an_engine_that_runs_ahead_is_closed_with_a_step_in_flight(make):
    llm = make(async_scheduling=True)
    requests = [llm.engine.request(None, [300, 301, 302 + n], SIX) for n in range(3)]
    for request in requests:
        llm.engine.add(request)
    runner = llm.engine.runner
    llm.engine.step()
    assert len(runner._submitted) == 1
    llm.close()
    assert not runner._submitted and {request.sequences[0].finish_reason for request in requests} == {"abort"}


NO_AHEAD = [
    ({"speculative_config": DRAFTS}, "speculative_config: drafts follow a token that is not known yet"),
    ({"pipeline_parallel_size": 2}, "pipeline_parallel_size: the stages have steps in flight already"),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size: only the first rank knows what it has drawn"),
    ({"policy": "separate"}, "policy=separate: this policy computes a step in two calls"),
]


@pytest.mark.parametrize(("others", "reason"), NO_AHEAD)
def test_what_excludes_running_ahead_is_named(others, reason):
    with pytest.raises(ValueError, match=f"^async_scheduling and {reason}; leave one of them out$"):
        EngineOptions(async_scheduling=True, **others)


def test_a_draw_that_fails_ends_its_requests_and_no_others(make, monkeypatch):
    """On whatever thread: the error comes when the step is collected."""
    llm = make(async_scheduling=True)
    expected, sampler = texts(llm.generate(PROMPTS, SIX)), llm.engine.runner.sampler
    launch, calls = sampler.launch, []

    def fails(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the device is gone")
        return launch(*arguments)

    monkeypatch.setattr(sampler, "launch", fails)
    with pytest.raises(RuntimeError, match="the device is gone"):
        llm.generate(PROMPTS, SIX)
    assert is_empty(llm) and texts(llm.generate(PROMPTS, SIX)) == expected


CALLS = {
    "generate": lambda llm: llm.generate(PROMPTS[:1], SIX, use_tqdm=False),
    "chat": lambda llm: llm.chat([{"role": "user", "content": "Hi"}], SIX, use_tqdm=False),
    "stream": lambda llm: llm.stream([5, 6], SIX, lambda text: None),
    "reset_prefix_cache": LLM.reset_prefix_cache,
    "close": LLM.close,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_on_another_thread_waits_until_the_first_has_returned(make, call):
    llm, threads, failures, reached = make(), [], [], threading.Event()
    expected = texts(llm.generate(PROMPTS[:2], SIX))
    lock = llm.engine._lock

    class Watched:
        """The engine's lock, which tells when the other thread has come to it."""

        def __enter__(self):
            reached.set()
            lock.acquire()

        def __exit__(self, *exception):
            lock.release()

    def other():
        try:
            call(llm)
        except BaseException as error:
            failures.append(error)
        reached.set()  # without a lock

    def on_event(event):
        threads.append(threading.current_thread())
        if len(threads) == 1:
            reached.clear()
            started.start()
            reached.wait()

    started, llm.engine._lock = threading.Thread(target=other), Watched()
    llm.engine.listeners.append(on_event)
    found = texts(llm.generate(PROMPTS[:2], SIX, use_tqdm=False))
    started.join()
    assert (found, failures) == (expected, [])
    first = threads.index(started) if started in threads else len(threads)
    assert set(threads[:first]) == {threading.current_thread()} and set(threads[first:]) <= {started}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_inside_a_call_is_refused_and_the_outer_one_goes_on(make, call):
    llm, refused = make(), []

    def inside(news):
        with pytest.raises(RuntimeError, match="this thread is inside a call of this LLM, in a"):
            call(llm)
        refused.append(news)

    with llm.engine.heard_by(inside):
        assert llm.stream([5, 6], SIX, inside) == "".join(each for each in refused if isinstance(each, str))
    assert len(refused) > 6
    call(llm)


def test_nothing_is_reset_while_a_request_waits_or_runs(make):
    llm = make()
    engine, request = llm.engine, llm.engine.request(None, [300, 301, 302], SIX)
    engine.add(request)
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"^answers wait or run \(1\): reset the prefix cache when they"
        ):
            llm.reset_prefix_cache()
        engine.step()
    engine.run([])
    llm.reset_prefix_cache()
    assert is_empty(llm) and len(request.sequences[0].tokens) == 6


def test_ctrl_c_takes_effect_between_two_steps(make, monkeypatch):
    """A real signal, in the middle of a call of the model: the call ends, and the step after it does not begin."""
    llm, calls = make(), []
    run, before = llm.engine.runner.run, signal.getsignal(signal.SIGINT)

    def pressed(batch):
        calls.append("begins")
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        calls.append("ends")
        return run(batch)

    monkeypatch.setattr(llm.engine.runner, "run", pressed)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, SIX)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the handler is put back"
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == ["begins", "ends"] * 2 and is_empty(llm)


def test_prompts_of_array_libraries_and_what_only_looks_like_ids(make):
    llm = make()
    ids = llm.get_tokenizer().encode(PROMPTS[0])
    [expected] = texts(llm.generate(ids, SIX))
    many = [np.array(ids), {"prompt_token_ids": np.array(ids)}, [*np.array(ids)], ids]
    outputs = llm.generate(many, SIX)
    assert texts(outputs) == [expected] * 4
    assert {type(token) for output in outputs for token in output.prompt_token_ids} == {int}
    assert texts(llm.generate(np.array(ids), SIX)) == [expected], "one prompt"
    assert texts(llm.generate(np.array([ids, ids]), SIX)) == [expected] * 2
    for bools in ([True, False], np.array([True, False])):
        served, failed = llm.generate([ids, bools], SIX)
        assert texts([served]) == [expected] and failed.error.startswith("token id True is not one of 0 to ")
        assert llm.generate(bools, SIX)[0].error == failed.error


def test_contents_of_messages_are_those_of_the_server(make):
    """One function reads them for both."""
    llm, part = make(), {"type": "text", "text": "Hello"}
    says = [[{"role": "user", "content": content}] for content in ("HelloHello", [part, part])]
    one, other = llm.chat(says, SIX, use_tqdm=False)
    assert one.prompt_token_ids == other.prompt_token_ids
    roles = [[{"role": role, "content": "a"}] for role in ("system", "developer")]
    one, other = llm.chat(roles, SIX, use_tqdm=False)
    assert one.prompt_token_ids == other.prompt_token_ids
    nothing = [[{"role": "user", "content": content, "name": "me"}] for content in (None, "")]
    one, other = llm.chat(nothing, SIX, use_tqdm=False)
    assert one.prompt_token_ids == other.prompt_token_ids
    template = llm.get_tokenizer().apply_chat_template
    assert template(says[0]) == template(says[1]), "the tokenizer reads them too"
    for message in ("Hello", {"content": "Hello"}, {"role": "user"}):
        with pytest.raises(ValueError, match=r"^messages: .*(give role and content|give a text)$"):
            llm.chat([[message]], SIX, use_tqdm=False)
    contents = [
        (5, "content is 5: give a text, or a list of text parts"),
        ([], "content is []: give a text"),
        ([{"type": "image_url"}], "a part of type image_url is not supported: give texts"),
        ([part, {"type": "text"}], "give a text, or a list of text parts"),
    ]
    for content, why in contents:
        with pytest.raises(ValueError, match=r"^messages: ") as refused:
            llm.chat([{"role": "user", "content": content}], SIX, use_tqdm=False)
        assert why in str(refused.value) and "\n" not in str(refused.value)


def test_generate_says_once_that_chat_applies_the_template(make, recwarn):
    llm = make()
    rendered = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "What is AI?"}])
    for prompts in (rendered, [[5, 6]], [rendered, "plain"], {"prompt_token_ids": [5]}):
        llm.generate(prompts, SIX)
    llm.chat([{"role": "user", "content": "What is AI?"}], SIX)
    assert not recwarn.list
    for _ in "ab":
        llm.generate(["What is AI?"], SIX)
    assert [str(each.message) for each in recwarn.list] == [PLAIN]


# How a prompt may be computed: in chunks, at once, in another plan, and again after a preemption.
CHUNKS_OF_7 = {"max_num_batched_tokens": 10, "long_prefill_token_threshold": 7, "max_num_seqs": 4}
WAYS = {
    "chunks of 7 beside others": CHUNKS_OF_7,
    "at once": {"max_num_batched_tokens": 128},
    "without chunks": {"enable_chunked_prefill": False, "max_num_batched_tokens": None},
    "in two calls": {"policy": "separate"},
    "again after a preemption": {"num_blocks": 8, "max_num_seqs": 3, "max_num_batched_tokens": 16},
    "with drafts": {"speculative_config": {"method": "ngram"}},
    "one step ahead": {"async_scheduling": True},
}


@pytest.fixture(scope="module")
def prompt_logprobs(loaded):
    """Of a prompt, and of each beginning of it: all log-probabilities of the token that comes next."""
    with LLM.of(*loaded, **SMALL) as llm:
        ids = llm.get_tokenizer().encode("What is chunked prefill? Chunked prefill is what")
        every = SamplingParams(max_tokens=1, logprobs=-1)
        outputs = llm.generate([ids[:count] for count in range(1, len(ids))], every)
    return ids, [{id: one.logprob for id, one in output.outputs[0].logprobs[0].items()} for output in outputs]


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_of_a_prompt_are_those_of_its_beginnings(make, prompt_logprobs, way):
    """Also where the prefix cache has all of it: what is not computed says nothing."""
    llm, (ids, expected) = make(**WAYS[way]), prompt_logprobs
    [plain] = llm.generate([ids], replace(SIX, n=2))
    asked = SamplingParams(max_tokens=6, n=2, prompt_logprobs=2)
    others = [replace(SIX, max_tokens=20)] * 2
    *_, output = llm.generate([*[[*range(30, 50)]] * 2, ids], [*others, asked])
    assert bool(output.metrics.num_preemptions) is ("preemption" in way)
    assert texts([output]) == texts([plain]) and output.num_cached_tokens == 0
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(ids)
    for token, right, found in zip(ids[1:], expected, output.prompt_logprobs[1:], strict=True):
        best = sorted(right, key=right.get, reverse=True)[:2]
        assert list(found) == list(dict.fromkeys([*best, token]))
        assert [one.logprob for one in found.values()] == pytest.approx([right[id] for id in found], abs=1e-4)
        assert found[token].decoded_token == llm.get_tokenizer().text_of(token)
    assert plain.prompt_logprobs is None


def test_log_probabilities_of_a_prompt_need_steps_that_are_not_padded(make):
    [output] = make(bucketing_strategy="linear").generate(["Hello"], SamplingParams(prompt_logprobs=1))
    assert output.error.startswith("prompt_logprobs needs steps of any number of sampled rows")
    assert make().generate([[5]], SamplingParams(prompt_logprobs=0, max_tokens=1))[0].prompt_logprobs == [
        None
    ]


def test_no_prompts_are_no_results(make):
    assert make().generate([]) == []


def test_closing_gives_the_memory_back(loaded, two_layers):
    with LLM.of(loaded[0], load_network(loaded[0], two_layers, "week3")[0], loaded[2], **SMALL) as llm:
        llm.generate(PROMPTS[0], SIX)
        held = [weakref.ref(llm.engine.runner), weakref.ref(llm.engine.network)]
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate(PROMPTS[0], SIX)


# ---- options

PUT_AWAY = ("kv_offloading_size", "kv_offloading_folder", "kv_offloading_folder_size", "num_quantized_blocks")
# Each option with another value, and what shows that it counts.
EFFECTS = {
    "enable_chunked_prefill": (False, lambda llm: llm.engine.loop.state.limits.enable_chunked_prefill),
    "max_num_batched_tokens": (32, lambda llm: llm.engine.loop.scheduler.max_num_batched_tokens),
    "long_prefill_token_threshold": (8, lambda llm: llm.engine.loop.scheduler.longest_chunk),
    "max_num_seqs": (3, lambda llm: llm.engine.loop.scheduler.max_num_seqs),
    "max_model_len": (50, lambda llm: len(llm.generate([[1] * 40], ENDLESS)[0].outputs[0].token_ids)),
    "block_size": (16, lambda llm: llm.engine.allocator.block_size),
    "num_blocks": (9, lambda llm: llm.engine.allocator.num_blocks),
    "gpu_memory_utilization": (0.5, lambda llm: llm.engine.allocator.num_blocks),
    "kv_cache_dtype": ("int8", None),  # in test_quantized_kv.py
    "enable_prefix_caching": (False, lambda llm: [llm.generate(20 * [1])[0].num_cached_tokens for _ in "ab"]),
    **dict.fromkeys(PUT_AWAY, (None, None)),  # in test_cold_store.py
    "scheduling_policy": ("priority", lambda llm: type(llm.engine.loop.waiting.queue)),
    "policy": ("separate", lambda llm: llm.engine.loop.state.limits.mixed_steps),
    "latency_target": (60.0, lambda llm: getattr(llm.engine.loop.scheduler, "latency_target", None)),
    "max_step_seconds": (0.5, None),  # in test_step_budget.py
    "scale_chunks_by_load": (True, lambda llm: [type(rule) for rule in llm.engine.loop.hooks.plan]),
    "enforce_eager": (False, lambda llm: llm.engine.extensions["shapes"].is_compiled),
    "bucketing_strategy": ("linear", lambda llm: llm.engine.runner.buckets),
    "cpu_products": ("usual", None),  # in test_products.py
    "activations": ("float", None),  # in test_native_quantized.py
    "seed": (1, lambda llm: texts(llm.generate(PROMPTS[0], replace(WARM, seed=None)))),
    "tensor_parallel_size": (2, None),  # in test_ranks.py
    "enable_expert_parallel": (True, None),  # in test_mixtures.py
    "pipeline_parallel_size": (2, None),  # in test_ranks.py
    "async_scheduling": (True, lambda llm: (type(llm.engine.loop.calls), type(llm.engine.runner))),
    "speculative_config": ({"method": "ngram"}, lambda llm: len(llm.engine.loop.hooks.commit)),
    "kv_transfer_config": (None, None),  # in kv_transfer/test_engines.py
}
ENDLESS = SamplingParams(max_tokens=99, ignore_eos=True)


def test_every_option_is_in_this_table():
    assert EFFECTS.keys() == {each.name for each in fields(EngineOptions)}


@pytest.mark.parametrize(
    "name", [name for name, (_, probe) in EFFECTS.items() if probe and name != "gpu_memory_utilization"]
)
def test_every_option_has_an_effect(make, quick_compiler, name):
    value, probe = EFFECTS[name]
    others = {"max_num_batched_tokens": None} if name == "enable_chunked_prefill" else {}
    given = {"policy": "slack"} if name == "latency_target" else others
    assert probe(make(**given, **{name: value})) != probe(make())


def test_the_pool_of_a_device_that_knows_its_memory_follows_a_profiling_run(make, monkeypatch, loaded):
    """The device is a stand-in of 64 MiB, half of it in use; the largest step needs what it really needed here."""
    port, MIB = loaded[0], 2**20
    peaks = []
    real = port.backend_module.peak_bytes
    monkeypatch.setattr(port.backend_module, "device_memory", lambda device: (32 * MIB, 64 * MIB))
    monkeypatch.setattr(
        port.backend_module, "peak_bytes", lambda run, device: peaks.append(real(run, device)) or peaks[-1]
    )
    block = 8 * 2 * 2 * 2 * 64 * 4
    for share in (0.9, 0.7):
        llm = make(num_blocks=None, gpu_memory_utilization=share)
        assert llm.engine.allocator.num_blocks == int((share * 64 - 32) * MIB - peaks[-1]) // block - 1
    assert texts(llm.generate(PROMPTS, SIX)) == texts(make().generate(PROMPTS, SIX))
    make(num_blocks=None, max_num_batched_tokens=512)
    assert peaks[2] > peaks[1] > 0, "a larger step needs more"


@pytest.mark.parametrize(("seqs", "budget"), [(4, 48), (1, 48), (1, 16)])
def test_the_slack_scheduler_with_padded_steps(make, seqs, budget):
    """The shapes allow for any number of prompts in progress, and for each step of the profile; no answer changes."""
    padded = {"bucketing_strategy": "exponential", "max_num_batched_tokens": budget}
    padded["enable_prefix_caching"] = False
    llm = make(policy="slack", latency_target=60.0, max_num_seqs=seqs, **padded)
    assert texts(llm.generate(PROMPTS, SIX)) == texts(make().generate(PROMPTS, SIX))


def test_a_measured_profile_is_one_of_this_machine(make):
    """Its lines rise, and the budget that follows from them holds when it is run."""
    engine = make(policy="slack", latency_target=60.0).engine
    assert engine.loop.scheduler.profile.math.b >= 0 and engine.loop.scheduler.profile.seconds(24, 2) > 0
    timer = StepTimer(engine.names, engine.runner, engine.options.block_size, 4)
    assert (
        engine.loop.scheduler.profile.token_budget(60.0, 8, most=24, decodes=1, measure=timer.seconds) == 24
    )


def test_the_pool_of_a_cpu_holds_what_its_requests_can_use(make):
    llm = make(num_blocks=None, max_num_seqs=3)
    assert llm.engine.allocator.num_blocks == 3 * 8


SCALED = {"scale_chunks_by_load": True, "max_num_batched_tokens": None}
WRONG_OPTIONS = [
    ({"policy": "other"}, "policy is 'other'"),
    ({"latency_target": 0.05}, "latency_target is for policy=\"slack\", and the policy is 'hybrid'"),
    ({"bucketing_strategy": "exp"}, "bucketing_strategy is 'exp': choose exponential, linear, padding-aware"),
    ({"scale_chunks_by_load": True, "max_num_seqs": 24}, "max_num_batched_tokens is 24: the chunker"),
    ({**SCALED, "enable_chunked_prefill": False}, "scale_chunks_by_load needs chunks"),
    ({**SCALED, "policy": "orca"}, "scale_chunks_by_load needs chunks"),
    ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ({"num_blocks": 1.5}, "num_blocks is 1.5"),
    ({"block_size": True}, "block_size is True"),
    ({"gpu_memory_utilization": 0}, "gpu_memory_utilization is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"max_model_len": 4097}, "max_model_len is 4097, but the model reads 4096"),
    ({"enable_chunked_prefill": False}, "max_num_batched_tokens is 24"),
]


@pytest.mark.parametrize(("options", "says"), WRONG_OPTIONS)
def test_an_option_that_cannot_be_is_one_line(make, options, says):
    with pytest.raises(ValueError) as refused:
        make(**options)
    assert str(refused.value).startswith(says) and "\n" not in str(refused.value)


def test_on_a_cpu_nothing_is_compiled_unless_somebody_asks(make):
    for options in ({}, {"enforce_eager": True}):
        shapes = make(**options).engine.extensions["shapes"]
        assert (shapes.is_compiled, shapes.num_shapes) == (False, 0)


def test_a_compiled_model_gives_the_same_answers(make, quick_compiler):
    """Every shape is run before the first request; torch's graphs take any number of rows, MLX's have buckets."""
    compiled, eager = make(enforce_eager=False), make(enforce_eager=True)
    assert compiled.engine.setup_seconds > eager.engine.setup_seconds
    assert compiled.engine.extensions["shapes"].num_shapes > 1
    assert texts(compiled.generate(PROMPTS, SIX)) == texts(eager.generate(PROMPTS, SIX))
    sizes = given_of(compiled.engine.port).fixed_sizes("cpu")
    assert (compiled.engine.runner.buckets is not None) == ("tokens" in sizes)
    assert compiled.padding_waste.page_share == 0
    free = compiled.engine.allocator
    assert free.num_free == free.num_blocks


@pytest.mark.parametrize("device", ["cuda", "hpu"])
def test_where_it_gains_most_a_model_is_compiled_by_default(loaded, monkeypatch, device):
    port = copy(loaded[0])
    monkeypatch.setattr(port, "device", device)
    monkeypatch.setattr(given_of(port), "cannot_compile", lambda device: None)
    assert will_compile(port, None) and will_compile(port, False) and not will_compile(port, True)


def test_a_missing_compiler_is_told_before_serving(make, loaded, monkeypatch):
    """With None the engine goes on without one, and says so."""
    port = copy(loaded[0])
    for each in (loaded[0], port):
        monkeypatch.setattr(
            given_of(each), "cannot_compile", lambda device: "a compiler is missing: install it"
        )
    with pytest.raises(ValueError) as refused:
        make(enforce_eager=False)
    assert "enforce_eager=False: a compiler is missing: install it" in str(refused.value)
    assert "\n" not in str(refused.value)
    monkeypatch.setattr(port, "device", "cuda")
    with pytest.warns(UserWarning, match="nothing is compiled, .* a compiler is missing: install it"):
        assert not will_compile(port, None)


def test_compiled_code_is_kept_in_a_folder_for_this_processor(monkeypatch, tmp_path):
    """Unless there is one already; and a home that cannot be written costs the next run its time, and no more."""
    port = Port("tiny_llm_ref", "torch", "cpu")
    for name in ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep_compiled(port)
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    folders = set()
    for units in ({"avx2": True}, {"avx512_f": True}):
        monkeypatch.setattr(
            port.backend_module.torch.cpu, "get_capabilities", lambda found=units: found, raising=False
        )
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
        keep_compiled(port)
        folders.add(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert len(folders) == 2 and all(folder.startswith(str(tmp_path / "tiny-llm")) for folder in folders)
    keep_compiled(port)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] in folders


@pytest.mark.parametrize("policy", ["hybrid", "separate"])
def test_padded_steps_change_no_answer(make, policy):
    llm, exact = make(bucketing_strategy="exponential", policy=policy, max_num_batched_tokens=48), make()
    assert texts(llm.generate(PROMPTS, SIX)) == texts(exact.generate(PROMPTS, SIX))
    assert llm.padding_waste.token_share > 0 and llm.padding_waste.page_share > 0
    assert exact.padding_waste.token_share == exact.padding_waste.page_share == 0


def test_a_warm_up_runs_every_shape_with_a_bar(make, monkeypatch):
    told = []

    def update(self, task, *, completed, total):
        told.append((completed, total))

    monkeypatch.setattr(progress_bar.Progress, "update", update)
    engine = make(bucketing_strategy="exponential", max_num_seqs=2, max_model_len=16).engine
    engine.extensions["shapes"].warm_up(engine.runner)
    count = len(engine.runner.buckets.warm_up_list())
    assert told == [(done, count) for done in range(1, count + 1)]


UNSHARED = {"enable_prefix_caching": False}
LIMITS = [
    ({}, (16, 16, None)),
    (UNSHARED, (1, 16, 60)),
    ({**UNSHARED, "policy": "separate"}, (1, 1, 60)),
    ({**UNSHARED, "enable_chunked_prefill": False}, (0, 0, 60)),
]


@pytest.mark.parametrize(("options", "limits"), LIMITS)
def test_the_list_of_shapes_follows_the_options(make, options, limits):
    """What no step can have without sharing, without chunks or in one call makes the warm-up shorter."""
    options = {"max_num_batched_tokens": 64, "bucketing_strategy": "linear", **options}
    buckets = make(**options).engine.runner.buckets
    assert (buckets.chunk_readers, buckets.decode_readers, buckets.num_pages) == limits


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_quantized_while_they_are_loaded(backend, bits):
    with tiny_llm_ref.LLM(quantization=f"{bits}bit", backend=backend, device="cpu", **SMALL) as llm:
        layer = llm.engine.network.layers[0]  # a native one, where that was faster
        weight = layer.wq if hasattr(layer, "wq") else layer.w_in[0][0]
        assert weight.bits == bits
        assert texts(llm.generate(PROMPTS, SIX))[0]


@pytest.mark.parametrize("backend", installed_backends())
def test_the_head_alone_is_quantized(backend):
    """Tied to the embedding, which stays plain: an error in the logits, smaller in 8 bits, and none in the layers."""
    logits = {}
    for bits in (None, "8bit", "4bit"):
        with tiny_llm_ref.LLM(head_quantization=bits, backend=backend, device="cpu", **SMALL) as llm:
            network, seen = llm.engine.network, []
            assert hasattr(network.w_lm_head, "bits") == (bits is not None)
            assert not hasattr(network.layers[0].wq, "bits") and not hasattr(network.embedding.weight, "bits")
            llm.engine.runner.on_logits = lambda rows, values, seen=seen: seen.append(values)
            llm.generate(PROMPTS[:1], SamplingParams(max_tokens=1))
            logits[bits] = seen[0]
    errors = [abs(logits[bits] - logits[None]).max() for bits in ("8bit", "4bit")]
    assert 0 < errors[0] < 0.2 < errors[1] < 2


@pytest.mark.parametrize("backend", installed_backends())
def test_weights_and_pool_have_the_type_that_is_asked_for(backend):
    with tiny_llm_ref.LLM(backend=backend, device="cpu", dtype="bfloat16", **SMALL) as llm:
        wanted = llm.engine.port.dtype("bfloat16")
        assert llm.engine.network.embedding.weight.dtype == llm.engine.runner.pools[0].keys.dtype == wanted


CANNOT_BE_LOADED = [
    ({"head_quantization": "2bit"}, "head_quantization is '2bit': choose 4bit or 8bit, or None"),
    ({"quantization": "3bit"}, "quantization is '3bit'"),
    ({"activations": "4bit"}, "activations is '4bit': give one of int8, int16, float"),
    ({"activations": "int8"}, 'activations is "int8", and no weight is quantised|kernel does not run'),
    ({"backend": "jax"}, "backend is 'jax'"),
    ({"device": "tpu"}, "device 'tpu'"),
    ({"dtype": "int8"}, "dtype 'int8'"),
    ({"model": "no-such-model"}, "no-such-model"),
]


@pytest.mark.parametrize(("options", "says"), CANNOT_BE_LOADED)
def test_what_cannot_be_loaded_is_one_line(options, says):
    with pytest.raises(ValueError, match=says):
        tiny_llm_ref.LLM(**options)


def test_the_environment_chooses_the_backend_where_nobody_does(monkeypatch):
    monkeypatch.setenv("TINY_LLM_BACKEND", "jax")
    with pytest.raises(ValueError, match="TINY_LLM_BACKEND is 'jax': choose auto, mlx or torch"):
        tiny_llm_ref.LLM()


@pytest.mark.parametrize("package", [tiny_llm, tiny_llm_ref])
def test_each_package_exports_the_engine_bound_to_itself(package, monkeypatch):
    """The reference the product's own, the learner's one that knows what is blank."""
    jobs = []
    monkeypatch.setattr("tiny_llm_extensions.llm.open_job", jobs.append)
    monkeypatch.setattr(capabilities, "blank_tasks", lambda solution, backend: {Task(3, 4, 1)})
    package.LLM(backend="torch", max_num_seqs=2)
    assert jobs[0].solution == package.__name__ and jobs[0].options.max_num_seqs == 2
    assert jobs[0].options.enforce_eager is (True if package is tiny_llm else None)
    assert (package.LLM is LLM) == (package is tiny_llm_ref) and issubclass(package.LLM, LLM)
    assert package.SamplingParams is SamplingParams, "one class, whichever solution runs"
    assert package.RequestOutput.__name__ == "RequestOutput"
    assert package.TokensPrompt(prompt_token_ids=[1]) == {"prompt_token_ids": [1]}
    assert package.TextPrompt(prompt="a") == {"prompt": "a"}
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        package.LLMs  # noqa: B018


def test_no_tokenizer_is_needed_for_ids(loaded):
    with LLM.of(*loaded[:2], EndlessTokenizer(), **SMALL) as llm:
        [output] = llm.generate([[1, 2, 3]], SIX)
    assert len(output.outputs[0].token_ids) == 6


def test_the_example_of_the_readme_answers_its_questions(monkeypatch, capsys):
    monkeypatch.setenv("TINY_LLM_BACKEND", installed_backends()[-1])
    [example] = re.findall(r"(?ms)^```python\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"))
    exec(example, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Chunked prefill splits") and second.startswith("A KV cache keeps")


LATER_DAYS = [
    ("serving", Task(4, 4, 2), {"async_scheduling": True}),
    ("torch", Task(4, 4, 6), {"async_scheduling": True}),
    ("torch", Task(4, 5, 1), {"kv_cache_dtype": "int8"}),
    ("serving", Task(4, 5, 4), {"kv_offloading_size": 0.5}),
    ("serving", Task(4, 5, 6), {"kv_offloading_folder": "blocks"}),
    ("serving", Task(4, 6, 4), {"kv_transfer_config": {"kv_role": "kv_both"}}),
]


@pytest.mark.parametrize(("part", "task", "options"), LATER_DAYS)
def test_a_learner_is_told_which_day_an_option_needs_when_the_engine_is_opened(
    monkeypatch, part, task, options
):
    blanks = {part: {task, Task(4, 3, 1)}}
    monkeypatch.setattr(capabilities, "blank_tasks", lambda solution, part: blanks.get(part, set()))
    monkeypatch.setattr("tiny_llm_extensions.llm.open_job", lambda job: None)
    day = f"{task.of_day}".replace(".", r"\.")
    with pytest.raises(
        ValueError, match=rf"^{next(iter(options))} is Day {day}, which has a blank task: .* out$"
    ):
        tiny_llm.LLM(backend="torch", **options)
    off = {"async_scheduling": False, "kv_cache_dtype": "fp8_e4m3", "kv_offloading_size": 0}
    tiny_llm.LLM(backend="torch", **off)


def test_a_learner_who_has_no_buckets_yet_runs_eagerly(monkeypatch):
    """On CUDA too, where `LLM` would otherwise compile and so ask for Day 3.4."""
    monkeypatch.setattr(capabilities, "blank_tasks", lambda solution, backend: {Task(3, 4, 1)})
    assert capabilities.engine_options("tiny_llm", "torch") == {"enforce_eager": True}
    monkeypatch.setattr(capabilities, "blank_tasks", lambda solution, backend: set())
    assert capabilities.engine_options("tiny_llm", "torch") == {}
