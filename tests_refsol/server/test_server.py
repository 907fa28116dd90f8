"""The server as its clients meet it: OpenAI's client, raw sockets, clients that leave, overload, failures, the end.

Oracle for every answer: the same request alone, by `LLM.generate`.
"""

import asyncio
import base64
import hashlib
import itertools
import json
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest

from tiny_llm_course.commands import serve
from tiny_llm_course.trace.timeline.live import LiveTimeline
from tiny_llm_engine.loop_state import Piece
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.chat_template import ChatTemplate
from tiny_llm_engine.packed_model import Sampled
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_ref import SamplingParams
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.listener import listen, url_of
from tiny_llm_server.openai_api import draining_server, live_page, live_tabs
from tiny_llm_server.openai_api.completion_format import CompletionFormat
from tiny_llm_server.openai_api.formats import ChatFormat
from tiny_llm_server.openai_api.http_responses import event, json_parts
from tiny_llm_server.openai_api.schemas import StreamOptions
from tiny_llm_server.server import ServerOptions, create_app

from .asking import JSON, PATIENCE, ask, client_of, exchange, read_to_end, until

QUESTIONS = ["What is chunked prefill?", "What is a KV cache?", "Hello", "What is RoPE?"]
SMALL = {"block_size": 16, "num_blocks": 200, "max_num_seqs": 4}
SMALL |= {"max_num_batched_tokens": 64, "enforce_eager": True}


@pytest.fixture(scope="module")
def alone(loaded):
    """What a prompt, a text or ids, is answered when nothing else runs."""
    llm = LLM.of(*loaded, **{**SMALL, "max_num_seqs": 1, "enable_prefix_caching": False})

    def answered(prompt, **params) -> str:
        [output] = llm.generate([prompt], SamplingParams(**params), use_tqdm=False)
        return output.outputs[0].text

    return answered


@pytest.fixture
def serving(loaded):
    """A function that runs a server of its own, with these options of `ServerOptions` and of the engine."""

    @contextmanager
    def run(*, on_open=lambda llm: None, wait=True, engine=None, page=None, **options):
        def open_llm() -> LLM:
            llm = LLM.of(*loaded, **{**SMALL, **(engine or {})})
            on_open(llm)
            return llm

        app = create_app(open_llm, ServerOptions(**options), page)
        with BackgroundServer(app, wait) as server:
            yield server

    return run


@pytest.fixture(scope="module")
def server(loaded):
    """One server for the tests that only ask."""
    app = create_app(lambda: LLM.of(*loaded, **SMALL, scheduling_policy="priority"))
    with BackgroundServer(app) as started:
        yield started


@pytest.fixture
def client(server):
    return client_of(server)


def conversation(question):
    return [{"role": "user", "content": question}]


def completion(server, **body):
    return ask(server, "POST", "/v1/completions", {"temperature": 0, **body})


@contextmanager
def open_stream(server, **body):
    """A stream of `/v1/completions` that has sent its first token and is not read on."""
    connection = server.connection()
    asked = {"prompt": "Hello", "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": 2000}
    connection.request("POST", "/v1/completions", json.dumps({**asked, **body}), JSON)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    answer.first_line = answer.readline()
    assert answer.first_line.startswith(b"data: ")
    try:
        yield answer
    finally:
        answer.close()
        connection.close()


def engine_of(server):
    return server.app.state.service.llm.engine


def is_empty(server) -> bool:
    """Nobody waits or runs, and every block is free."""
    engine = engine_of(server)
    is_idle = server.app.state.service.loop.num_open == 0
    return is_idle and engine.allocator.num_free == engine.allocator.num_blocks


# ---- answers


@pytest.mark.parametrize("backend", installed_backends())
def test_the_official_client_gets_the_answer_of_the_request_alone(backend):
    """Streamed and not, on every port: the engine has a thread of its own, on which its model was loaded too.

    Of the stream the second token waits for a client that has read the first one.
    """
    port = Port("tiny_llm_ref", backend, "cpu", "float32")
    alone, may_decode = [], threading.Event()
    may_decode.set()

    def hold(event):
        if any(part.kind == "decode" for part in event.parts):
            assert may_decode.wait(PATIENCE)

    def open_llm() -> LLM:
        llm = LLM.of(port, *load_network(port, "tiny-qwen3", "week3"), **SMALL)
        alone.extend(llm.chat(conversation(QUESTIONS[0]), SamplingParams(max_tokens=12), use_tqdm=False))
        llm.engine.listeners.append(hold)
        return llm

    with BackgroundServer(create_app(open_llm)) as server:
        chat = client_of(server).chat.completions
        asked = {"model": "tiny-qwen3", "messages": conversation(QUESTIONS[0]), "temperature": 0}
        whole = chat.create(**asked, max_completion_tokens=12)
        may_decode.clear()
        chunks = []
        for chunk in chat.create(**asked, max_tokens=12, stream=True, stream_options={"include_usage": True}):
            chunks.append(chunk)
            if chunk.choices and chunk.choices[0].delta.content:
                may_decode.set()
    [expected] = alone
    [answer] = expected.outputs
    assert whole.choices[0].message.content == answer.text
    assert whole.choices[0].finish_reason == answer.finish_reason == "length"
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == answer.text
    usage = chunks[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(expected.prompt_token_ids), 12)
    assert {chunk.id for chunk in chunks} == {chunks[0].id} != {whole.id}


def test_many_clients_at_once_get_their_own_answers(server, client, alone):
    """More than run at a time, of several lengths; some leave in the middle."""
    cases = [(QUESTIONS[number % 4], 3 + 5 * (number % 3)) for number in range(12)]
    expected = [alone(prompt, max_tokens=count) for prompt, count in cases]

    def one(number):
        prompt, count = cases[number]
        stream = client.completions.create(
            model="tiny-qwen3", prompt=prompt, max_tokens=count, temperature=0, stream=True
        )
        if number % 4 == 3:
            next(iter(stream))
            stream.close()
            return expected[number]
        return "".join(chunk.choices[0].text for chunk in stream)

    with ThreadPoolExecutor(len(cases)) as pool:
        assert list(pool.map(one, range(len(cases)))) == expected
    until(lambda: is_empty(server), "blocks of clients that have left are still taken")


def test_several_prompts_and_answers_come_in_their_order(client, alone):
    """Texts and ids; `n` answers to each, the first as if it were the only one."""
    made = client.completions.create(
        model="tiny-qwen3", prompt=QUESTIONS[:3], n=2, max_tokens=5, temperature=0.9, seed=7
    )
    texts = [choice.text for choice in sorted(made.choices, key=lambda choice: choice.index)]
    assert len(texts) == 6
    assert texts[::2] == [alone(each, max_tokens=5, temperature=0.9, seed=7) for each in QUESTIONS[:3]]
    ids = client.completions.create(model="tiny-qwen3", prompt=[[64, 65], [66]], max_tokens=2, temperature=0)
    expected = [alone([64, 65], max_tokens=2), alone([66], max_tokens=2)]
    assert [choice.text for choice in ids.choices] == expected
    assert ids.usage.prompt_tokens == 3 and ids.usage.completion_tokens == 4


def test_stop_strings_and_log_probabilities_of_both_endpoints(client, alone):
    whole = alone(QUESTIONS[0], max_tokens=8)
    stop = whole.split()[2]
    made = client.completions.create(
        model="tiny-qwen3", prompt=QUESTIONS[0], max_tokens=8, temperature=0, stop=[stop], logprobs=2
    )
    [choice] = made.choices
    assert choice.text == whole[: whole.index(stop)] and choice.finish_reason == "stop"
    found = choice.logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    both = zip(found.top_logprobs, found.token_logprobs, strict=True)
    assert all(max(top.values()) == value for top, value in both)
    asked = {"messages": conversation("Hello"), "temperature": 0, "max_tokens": 4}
    chat = client.chat.completions.create(model="tiny-qwen3", **asked, logprobs=True, top_logprobs=3)
    [choice] = chat.choices
    content = choice.logprobs.content
    assert b"".join(bytes(each.bytes) for each in content).decode() == choice.message.content
    assert all(len(each.top_logprobs) == 3 and each.top_logprobs[0].token == each.token for each in content)


def written(kind, tokenizer, sampled):
    """The log-probabilities of an answer as its client reads them."""
    form, piece = kind("m", tokenizer, True), Piece(0, "", sampled)
    asyncio.run(form.write_logprobs(piece))
    return json.loads(b"".join(json_parts(form.choice(piece))))["logprobs"]


def test_the_bytes_of_a_token_are_its_own_and_not_those_of_its_text(loaded):
    """A token may be a part of a character: its text is U+FFFD, its bytes are not."""
    tokenizer = loaded[2]
    ids = tokenizer.encode("\U0001f3b2")
    assert len(ids) > 1
    content = written(ChatFormat, tokenizer, [Sampled(id, -1.0, {id: -1.0}) for id in ids])["content"]
    assert b"".join(bytes(each["bytes"]) for each in content) == "\U0001f3b2".encode()
    assert all(each["bytes"] == each["top_logprobs"][0]["bytes"] for each in content)


def test_a_special_token_beside_its_log_probability_is_text_as_in_vllm(loaded):
    tokenizer = loaded[2]
    [end] = tokenizer.encode("<|im_end|>")
    sampled = [Sampled(end, -1.0, {end: -1.0})]
    found = written(CompletionFormat, tokenizer, sampled)
    assert found["tokens"] == ["<|im_end|>"] and found["top_logprobs"] == [{"<|im_end|>": -1.0}]
    [entry] = written(ChatFormat, tokenizer, sampled)["content"]
    assert entry["token"] == "<|im_end|>" and bytes(entry["bytes"]) == b"<|im_end|>"


def test_log_probabilities_of_characters_of_several_tokens(client, loaded):
    """Offsets count the characters of the text, and of tokens that look alike no value is lost."""
    form = {"structured_outputs": {"regex": "[\U0001f600-\U0001f60e]{3} end"}}
    asked = {"model": "tiny-qwen3", "prompt": "Smile: ", "temperature": 0, "max_tokens": 40, "logprobs": 5}
    [choice] = client.completions.create(**asked, extra_body=form).choices
    found, text = choice.logprobs, choice.text
    assert len(found.tokens) > len(text) - 3, "several tokens are a character"
    assert found.text_offset[0] == 0 and found.text_offset == sorted(found.text_offset)
    assert found.text_offset[-1] == len(text) - len(found.tokens[-1])
    whole = [place for place, token in enumerate(found.tokens) if "\ufffd" not in token]
    for place in whole:
        assert text[found.text_offset[place] :].startswith(found.tokens[place])
    best = list(zip(found.top_logprobs, found.tokens, found.token_logprobs, strict=True))
    assert all(top[token] == value for top, token, value in best)
    assert all(len(top) in (5, 6) for top in found.top_logprobs)


def test_bytes_that_are_no_character_are_one_in_offsets(loaded):
    tokenizer = loaded[2]
    smile, word = tokenizer.encode("\U0001f600"), tokenizer.encode(" end")
    tokens = [smile[0], *word, *smile, *word]
    found = written(CompletionFormat, tokenizer, [Sampled(id, -1.0, {id: -1.0}) for id in tokens])
    text = tokenizer.decode(tokens)
    assert text.startswith("\ufffd end\U0001f600 end")
    assert found["text_offset"] == [0, *[1] * len(word), *[5] * len(smile), *[6] * len(word)]


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "clock"}}]])
def test_no_text_stands_beside_the_reason_to_finish(client, tools):
    """OpenAI gives the reason a chunk of its own, and clients that rely on it would lose the last token."""
    asked = {"model": "tiny-qwen3", "messages": [{"role": "user", "content": QUESTIONS[1]}], "max_tokens": 5}
    asked |= {"temperature": 0, "logprobs": True} | ({"tools": tools} if tools else {})
    [whole] = client.chat.completions.create(**asked).choices
    *begun, last = (chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True))
    assert whole.finish_reason == last.finish_reason == "length"
    assert not last.delta.content and last.logprobs is None
    assert "".join(choice.delta.content or "" for choice in begun) == whole.message.content
    entries = [entry for choice in begun if choice.logprobs for entry in choice.logprobs.content]
    assert entries == whole.logprobs.content and {choice.finish_reason for choice in begun} == {None}


def test_log_probabilities_of_a_stream_are_those_of_the_whole_answer(client):
    asked = {"model": "tiny-qwen3", "prompt": QUESTIONS[1], "max_tokens": 6, "temperature": 0, "logprobs": 1}
    [whole] = client.completions.create(**asked).choices
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    for name in ("tokens", "token_logprobs", "text_offset"):
        assert [x for each in chunks for x in getattr(each, name)] == getattr(whole.logprobs, name), name


@pytest.mark.parametrize("kind", [ChatFormat, CompletionFormat])
@pytest.mark.parametrize("with_usage", [False, True])
def test_an_event_of_a_stream_is_its_chunk_as_json(kind, with_usage):
    """Whatever the text: what surrounds it is written once per answer, and used again."""
    form = kind('name of "quotes"', None, False)
    written = form.events(StreamOptions(include_usage=with_usage), 3)
    extra = {"usage": None} if with_usage else {}
    texts = ["a", 'say "x"', "\\", "\0", "é\ud800\n", "b"]
    pieces = [Piece(index, text) for text in texts for index in (0, 1)] + [Piece(1, "end", [], "stop")]
    for piece in pieces:
        assert written(piece) == "".join(event({**chunk, **extra}) for chunk in form.chunks(piece))
    assert written(Piece(0, "")) == "", "half a character is nothing to read"


def test_models_and_tokenize(server, client, loaded):
    tokenizer = loaded[2]
    assert [model.id for model in client.models.list()] == ["tiny-qwen3"]
    assert client.models.retrieve("tiny-qwen3").id == "tiny-qwen3"
    status, _, found = ask(server, "POST", "/tokenize", {"prompt": QUESTIONS[0]})
    assert status == 200 and found["tokens"] == tokenizer.encode(QUESTIONS[0])
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == engine_of(server).max_model_len
    messages = conversation("Hello")
    _, _, found = ask(server, "POST", "/tokenize", {"messages": messages, "add_generation_prompt": False})
    assert found["tokens"] == tokenizer.encode(tokenizer.apply_chat_template(messages, False))


def test_roles_and_parts_of_a_message(client, loaded):
    """ "developer" is a system message; text may come in parts, and null is an empty text."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
    messages += [{"role": "assistant", "content": None}]
    made = client.chat.completions.create(model="tiny-qwen3", messages=messages, max_tokens=1)
    plain = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}]
    plain += [{"role": "assistant", "content": ""}]
    tokenizer = loaded[2]
    assert made.usage.prompt_tokens == len(tokenizer.encode(tokenizer.apply_chat_template(plain)))


def test_a_templates_own_reason_reaches_the_client_and_the_log(server, monkeypatch, caplog):
    """Without the name of its file, which is for the log alone."""
    source = "{{ raise_exception('roles must alternate') }}"
    template = ChatTemplate({"default": source}, Path("/secret/chat_template.jinja"), {})
    monkeypatch.setattr(engine_of(server).tokenizer, "_chat_template", template)
    reason = "messages: the chat template refuses these messages: 'roles must alternate'; change them"
    for path in ("/v1/chat/completions", "/tokenize"):
        status, _, found = ask(server, "POST", path, {"messages": conversation("Hello")})
        assert (status, found["error"]["message"], found["error"]["param"]) == (400, reason, "messages"), path
    assert caplog.text.count("/secret/chat_template.jinja: the chat template refuses these messages") == 2


@pytest.mark.parametrize(("low", "high"), [("batch", None), (1, 0), (7, -7)])
def test_interactive_requests_go_before_batch_requests(serving, low, high):
    """One row: while it is busy, a batch request comes first, and an interactive one after it; also vLLM's numbers."""
    order = []

    def hear(event):
        if event.kind == "prefill":
            order.append(event.request.priority)

    engine = {"max_num_seqs": 1, "scheduling_policy": "priority"}
    on_open = lambda llm: llm.engine.listeners.append(hear)  # noqa: E731
    with serving(engine=engine, on_open=on_open) as server, ThreadPoolExecutor(2) as pool:
        with open_stream(server):
            loop = server.app.state.service.loop
            batch = pool.submit(completion, server, prompt="a", max_tokens=1, priority=low)
            until(lambda: loop.num_open == 2)
            other = pool.submit(completion, server, prompt="b", max_tokens=1, priority=high)
            until(lambda: loop.num_open == 3)
        assert batch.result()[0] == other.result()[0] == 200
    assert order == ["interactive", "interactive", "batch"]


# ---- errors


NEVER_SERVED = [
    ({"prompt": "a", "max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens", "valid integer"),
    ({"prompt": "a", "temperature": 3}, "temperature", "less than or equal to 2"),
    ({"prompt": "a", "frequency_penalty": 2.5}, "frequency_penalty", "less than or equal to 2"),
    ({"prompt": "a", "repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
    ({"prompt": "a", "logit_bias": {"5": 101}}, "logit_bias", "less than or equal to 100"),
    ({"prompt": "a", "logit_bias": {"99999": 1}}, "logit_bias", "give ids from 0 to"),
    ({"prompt": "a", "stop_token_ids": [99999]}, "stop_token_ids", "give ids from 0 to"),
    ({"prompt": "a", "min_tokens": 17}, "min_tokens", "give at most max_tokens, 16"),
    ({"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    ({"prompt": "a", "structured_outputs": {"regex": "("}}, "structured_outputs", "has no grammar"),
    ({"prompt": "a", "stop": ""}, "stop", "at least 1 character"),
    ({"prompt": "a", "stop": ["a", "b" * 2000]}, "stop", "2000 characters: give at most 1024"),
    ({"prompt": "a", "stream_options": {}}, "stream_options", "needs stream: true"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": [10**6]}, "prompt", "not of this model"),
    ({"prompt": [5] * 5000}, "prompt", "4096"),
    ({"prompt": ["a", "b", "c"], "n": 128}, "prompt", "answers at once"),
    ({}, "prompt", "required"),
]


@pytest.mark.parametrize(("body", "param", "says"), NEVER_SERVED)
def test_a_request_that_can_never_be_served_is_400_with_the_fix(server, body, param, says):
    status, _, found = completion(server, **body)
    assert status == 400, found
    problem = found["error"]
    assert problem["type"] == "invalid_request_error" and problem["param"] == param
    assert says in problem["message"], problem["message"]


WRONG_REQUESTS = [
    ("GET", "/nothing", None, 404),
    ("PUT", "/v1/completions", {}, 405),
    ("POST", "/v1/completions", b"{", 400),
    ("POST", "/v1/completions", b"[1]", 400),
    ("POST", "/v1/completions", b'{"prompt": "a", "model": "\\ud800"}', 404),
    ("POST", "/v1/completions", b'{"prompt": "a", "temperature": NaN}', 400),
    ("GET", "/v1/models/other", None, 404),
    ("POST", "/v1/chat/completions", {"messages": []}, 400),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, 400),
    ("POST", "/tokenize", {}, 400),
    ("POST", "/step_budget", {"max_num_batched_tokens": 8}, 404),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), WRONG_REQUESTS)
def test_every_error_has_a_body_of_openais_form(server, method, path, body, status):
    """Also those of the framework, and of clients that send half a surrogate pair."""
    got, _, found = ask(server, method, path, body)
    assert got == status, found
    assert found["error"].keys() == {"message", "type", "param", "code"}
    assert str(ROOT) not in json.dumps(found)


def test_the_official_client_raises_its_own_errors(client):
    with pytest.raises(openai.NotFoundError, match="this server has tiny-qwen3"):
        client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="tiny-qwen3", prompt="a", max_tokens=0)


def test_a_body_that_is_too_long_is_413_whether_it_says_so_or_not(serving):
    with serving(max_body_bytes=1000) as server:
        status, _, found = completion(server, prompt="a" * 2000)
        assert status == 413 and found["error"]["code"] == "body_too_large"
        connection = server.connection()
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", iter([b'{"prompt": "', b"a" * 2000]), headers)
        assert connection.getresponse().status == 413, "a chunked body has no Content-Length"
        assert completion(server, prompt="a", max_tokens=1)[0] == 200


def test_a_key_is_asked_for_everywhere_but_at_the_probes(serving):
    with serving(api_key="secret") as server:
        with pytest.raises(openai.AuthenticationError):
            client_of(server, api_key="wrong").models.list()
        for header in ("Bearer secre", "Bearer secret2", "Bearer ", "Basic secret", "secret", ""):
            status, _, found = ask(server, "GET", "/v1/models", headers={"Authorization": header})
            assert status == 401 and found["error"]["code"] == "invalid_api_key", header
        assert ask(server, "GET", "/v1/models", headers={"Authorization": "Bearer secret"})[0] == 200
        assert [ask(server, "GET", path)[0] for path in ("/health", "/ready", "/metrics")] == [200] * 3
        assert ask(server, "GET", "/openapi.json")[0] == 401


def test_nothing_of_a_request_is_logged(serving, caplog, capfd):
    with caplog.at_level(logging.DEBUG), serving(api_key="topsecret") as server:
        headers = {"Authorization": "Bearer topsecret"}
        for body in ({"max_tokens": 1}, {"n": "x"}):
            ask(server, "POST", "/v1/completions", {"prompt": "my private words", **body}, headers)
    written = caplog.text + "".join(capfd.readouterr())
    assert "private" not in written and "topsecret" not in written


# ---- overload, failures, the end


def test_a_full_queue_is_429_with_the_time_to_come_again(serving, alone):
    with serving(max_queue=1, engine={"max_num_seqs": 1}) as server:
        loop = server.app.state.service.loop
        with ThreadPoolExecutor(1) as pool, open_stream(server):
            waiting = pool.submit(completion, server, prompt=QUESTIONS[0], max_tokens=3)
            until(lambda: loop.num_open == 2)
            status, headers, found = completion(server, prompt="late")
            assert status == 429 and found["error"]["code"] == "rate_limit_exceeded"
            assert int(headers["Retry-After"]) >= 1
        assert waiting.result()[2]["choices"][0]["text"] == alone(QUESTIONS[0], max_tokens=3)
        assert completion(server, prompt="a", max_tokens=1)[0] == 200, "there is room again"


def test_503_while_the_model_is_loading(serving):
    gate = threading.Event()
    with serving(wait=False, on_open=lambda llm: gate.wait(PATIENCE)) as server:
        reads = [("GET", path) for path in ("/health", "/ping", "/ready", "/v1/models")]
        for method, path in (*reads, ("POST", "/v1/completions")):
            status, headers, found = ask(server, method, path, {"prompt": "a"})
            assert status == 503 and "starting" in found["error"]["message"] and headers["Retry-After"]
        gate.set()
        until(lambda: ask(server, "GET", "/ready")[0] == 200)


def test_it_drains_and_answers_503_meanwhile(serving, alone):
    """An answer that has begun comes to its end; then the connection ends, and so does the server."""
    steps, may_go_on = itertools.count(), threading.Event()
    # The first step's token is sent; the second step is held.
    hold = lambda event: event.kind == "step" and next(steps) and may_go_on.wait(PATIENCE)  # noqa: E731
    with serving(on_open=lambda llm: llm.engine.listeners.append(hold)) as server:
        with open_stream(server, prompt=QUESTIONS[0], max_tokens=20) as answer:
            server.server.stop()
            until(lambda: server.app.state.service.loop.state == "stopping")
            status, _, found = completion(server, prompt="late")
            assert status == 503 and "stopping" in found["error"]["message"]
            assert ask(server, "GET", "/ready")[0] == 503
            may_go_on.set()
            lines = answer.read().decode().splitlines()
        assert lines[-2:] == ["data: [DONE]", ""] and '"length"' in lines[-4]


def test_a_blank_task_ends_the_server_without_a_traceback(serving, monkeypatch, caplog):
    """Also one that only a request, or the end, calls."""

    def blank(*arguments):
        raise NotImplementedError("week 3 day 6 task 2: EngineLoop.submit")

    with serving() as server:
        loop = server.app.state.service.loop
        monkeypatch.setattr(server.server, "stop", lambda: None)  # it stops by itself
        monkeypatch.setattr(loop, "submit", blank)
        monkeypatch.setattr(loop, "stop", blank)
        assert completion(server, prompt="a")[0] == 503
        until(lambda: not server._thread.is_alive())
        assert "task 2" in str(server.app.state.service.failure)
    assert caplog.records == []


def test_an_answer_that_does_not_end_in_time_is_told_so(serving):
    """The stream of a server that stops has an error for its last event; its blocks are free."""
    with serving(drain_timeout=0) as server, open_stream(server) as answer:
        server.server.stop()
        events = [line for line in answer.read().decode().splitlines() if line.startswith("data: ")]
        assert "the server is stopping" in events[-2] and events[-1] == "data: [DONE]"


def test_a_request_that_takes_too_long_is_given_up(serving):
    with serving(request_timeout=0.3) as server:
        status, _, found = completion(server, prompt="Hello", max_tokens=3000, ignore_eos=True)
        assert status == 503 and "longer than the server allows" in found["error"]["message"]
        with open_stream(server, max_tokens=3000) as answer:
            # On a busy machine the first line is the last.
            lines = (answer.first_line + answer.read()).decode().splitlines()
        assert "longer than the server allows" in [line for line in lines if line][-1]
        until(lambda: is_empty(server))


def failing(calls):
    """Makes the model of an engine raise in the next calls, `calls` of them."""

    def patch(llm):
        model = llm.engine.loop.model
        run = model.run

        def raising(batch):
            if calls:
                raise calls.pop()
            return run(batch)

        model.run = raising

    return patch


def test_a_failing_step_ends_its_requests_and_no_others(serving, alone, caplog):
    """The client learns that it failed, and the log why; nothing of the exception reaches the client."""
    calls = [RuntimeError(f"cannot open {ROOT}/secret/file")]
    with serving(on_open=failing(calls)) as server:
        status, _, found = completion(server, prompt="Hello", max_tokens=3)
        assert status == 500 and found["error"]["type"] == "server_error"
        assert "secret" not in json.dumps(found) and "secret" in caplog.text
        _, _, found = completion(server, prompt=QUESTIONS[1], max_tokens=5)
        assert found["choices"][0]["text"] == alone(QUESTIONS[1], max_tokens=5)
        assert ask(server, "GET", "/health")[0] == 200
        until(lambda: is_empty(server))


def test_a_dead_engine_fails_the_health_check(serving, caplog):
    calls = [RuntimeError("the device is gone")] * 3
    with serving(on_open=failing(calls)) as server:
        for _ in range(3):
            assert completion(server, prompt="Hello", max_tokens=3)[0] == 500
        assert ask(server, "GET", "/health")[0] == 503
        status, headers, found = completion(server, prompt="Hello")
        assert status == 503 and "dead" in found["error"]["message"]
        assert "Retry-After" not in headers, "it never comes back"


# ---- readers


class Recorded:
    """What the engine did, and a gate that holds it after a step.

    Args:
        llm: whose engine.
    """

    def __init__(self, llm):
        self.engine, self.steps, self.ends = llm.engine, [], []
        self.hold_at = None  # called with the parts of a step; True holds the engine after it
        self.held, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        llm.engine.listeners.append(self)

    def __call__(self, event):
        if event.kind == "finish":
            self.ends.append((len(self.steps), event.request))
        if event.kind != "step":
            return
        self.steps.append([(part.kind, [one.request_id for one in part.requests]) for part in event.parts])
        if self.hold_at is not None and self.hold_at(event.parts):
            self.hold_at = None
            self.held.release()
            assert self.gate.acquire(timeout=PATIENCE)


def test_streams_go_on_during_a_long_prefill_and_its_client_may_leave(serving, alone):
    """Two streams get a token in every step of a third one's prefill of 2,000 tokens. It leaves after ten chunks: its
    blocks are free before the next step.
    """
    recorded, chunks = [], []

    def both_decode(parts):
        return any(part.kind == "decode" and len(part.requests) == 2 for part in parts)

    def ten_chunks(parts):
        chunks.extend(part for part in parts if part.kind == "chunk" and part.tokens > 20)
        return len(chunks) == 10

    def watch(llm):
        recorded.append(Recorded(llm))
        recorded[0].hold_at = both_decode

    with serving(on_open=watch) as server:
        [record] = recorded
        loop = server.app.state.service.loop
        with ThreadPoolExecutor(2) as pool:
            short = {"max_tokens": 40, "ignore_eos": True}
            others = [pool.submit(completion, server, prompt=each, **short) for each in QUESTIONS[:2]]
            assert record.held.acquire(timeout=PATIENCE), "both decode"
            long = server.connection()
            body = json.dumps({"prompt": [5] * 2000, "max_tokens": 5})
            long.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            until(lambda: loop.num_open == 3, "the long one is there")
            record.hold_at = ten_chunks
            record.gate.release()
            assert record.held.acquire(timeout=PATIENCE), "ten chunks of the long prompt"
            [prefilling] = chunks[-1].requests
            begun = len(record.steps)
            assert prefilling.block_table.blocks and 0 < prefilling.num_computed < 2000
            long.close()
            until(lambda: loop._abandoned, "the server has seen that the client is gone")
            record.gate.release()
            texts = [each.result()[2]["choices"][0]["text"] for each in others]
        assert texts == [alone(each, **short) for each in QUESTIONS[:2]]
    together = record.steps[begun - 10 : begun]
    assert together == [[("chunk", [prefilling.request_id]), ("decode", [0, 1])]] * 10
    [(after, request)] = [end for end in record.ends if end[1] is prefilling]
    assert (request.finish_reason, request.block_table.blocks) == ("abort", [])
    assert after == begun, "it ended in the hand-over after the step that ran, before another one"


def test_a_reader_that_reads_nothing_holds_nobody_up(serving, alone):
    """Its socket's buffers are full; others are served, and it gets the whole answer when it reads."""
    body = {"prompt": [5, 6], "stream": True, "temperature": 0, "ignore_eos": True, "max_tokens": 150}
    body |= {"n": 3, "logprobs": 20}  # 450 large events: more than the small buffers on the way hold
    payload = json.dumps(body).encode()
    with serving() as server, socket.socket() as lazy:
        server.server.servers[0].sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy.settimeout(PATIENCE)
        lazy.connect((server.host, server.port))
        head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        lazy.sendall(f"{head}Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
        for question in QUESTIONS[:2]:
            _, _, found = completion(server, prompt=question, max_tokens=6)
            assert found["choices"][0]["text"] == alone(question, max_tokens=6)
        until(lambda: server.app.state.service.loop.num_open == 0, "the engine waits for the reader")
        got = read_to_end(lazy)
    events = re.findall(rb"data: (\{.*\})\n", got)
    choices = [json.loads(event)["choices"][0] for event in events]
    for index in range(3):
        text = "".join(choice["text"] for choice in choices if choice["index"] == index)
        assert text == alone([5, 6], max_tokens=150, ignore_eos=True)
    assert len(events) < 450, "pieces that waited for the reader were joined"


# ---- metrics and the page


def test_metrics_have_the_names_of_vllm_and_count_what_happened(serving):
    with serving() as server:
        completion(server, prompt="a b c", max_tokens=5, ignore_eos=True)
        with open_stream(server, prompt="d e f"):
            pass
        until(lambda: is_empty(server))
        _, headers, text = exchange(server, "GET", "/metrics")
    found = dict(re.findall(r"^(vllm:\S+) (\S+)$", text, re.M))
    label = 'model_name="tiny-qwen3"'
    assert headers["Content-Type"].startswith("text/plain")
    value = lambda name: float(found[f"vllm:{name}{{{label}}}"])  # noqa: E731
    assert value("prompt_tokens_total") > 0 and value("generation_tokens_total") > 5
    idle = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    assert [value(name) for name in idle] == [0, 0, 0]
    assert value("time_to_first_token_seconds_count") == value("request_queue_time_seconds_count") == 2
    assert value("inter_token_latency_seconds_count") == value("generation_tokens_total") - 2
    for reason in ("length", "abort"):
        assert float(found[f'vllm:request_success_total{{finished_reason="{reason}",{label}}}']) == 1


class TinyPage:
    html = "<!doctype html><title>page</title>"

    def hello(self, engine):
        return {"kind": "hello", "budget": engine.loop.scheduler.max_num_batched_tokens}

    def message(self, event, engine):
        return {"kind": event.kind} if event.kind in ("step", "finish") else None


@contextmanager
def feed_of(server, tab=""):
    """The messages of the page's feed, of a new tab or of this one."""
    connection = server.connection()
    connection.request("GET", "/events", headers={"X-Tab": tab})
    answer = connection.getresponse()
    lines = iter(answer.readline, b"")
    try:
        yield (json.loads(line[6:]) for line in lines if line.startswith(b"data"))
    finally:
        answer.close(), connection.close()


def metric(server, name) -> float:
    text = exchange(server, "GET", "/metrics")[2]
    [value] = re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)
    return float(value)


def test_the_page_sees_every_step_and_turns_one_knob(serving):
    """As long as it is open: then the budget is the engine's own again."""
    with serving(page=TinyPage(), live_controls=True) as server:
        _, headers, text = exchange(server, "GET", "/")
        assert "<title>page</title>" in text
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        with feed_of(server) as feed:
            hello = next(feed)
            tab = {"X-Tab": hello.pop("tab")}
            assert hello == {"kind": "hello", "budget": 64, "controls": True, "answers": []}
            completion(server, prompt="a", max_tokens=3, ignore_eos=True)
            assert [next(feed)["kind"] for _ in range(4)] == [*3 * ["step"], "finish"]
            for wrong in (3, 65):
                assert ask(server, "POST", "/step_budget", {"max_num_batched_tokens": wrong})[0] == 400
            assert ask(server, "POST", "/step_budget", {"max_num_batched_tokens": 16}, tab)[0] == 200
            assert metric(server, "tiny_llm:step_budget_tokens") == 16
            with feed_of(server) as other:
                next(other)
            assert metric(server, "tiny_llm:step_budget_tokens") == 16, "another page has left"
        until(lambda: metric(server, "tiny_llm:step_budget_tokens") == 64)


def ask_in_tab(server, tab, name, **body) -> int:
    headers = {"X-Tab": tab, "X-Request-Id": name}
    body = {"stream": True, "temperature": 0, "ignore_eos": True, **body}
    return ask(server, "POST", "/v1/completions", body, headers)[0]


def answers_of(feed):
    """The messages about answers, until one of them has ended."""
    for message in feed:
        if message["kind"] == "answer":
            yield message
            if message["done"]:
                return


def test_a_tab_reads_its_own_answers_alone_and_again_after_a_reload(serving, alone):
    asked = {"prompt": "a b", "max_tokens": 6}
    text = alone("a b", max_tokens=6, ignore_eos=True)
    with serving(page=TinyPage()) as server, feed_of(server) as feed, feed_of(server) as others:
        tab = next(feed)["tab"]
        assert ask_in_tab(server, tab, "one", **asked) == 202
        pieces = list(answers_of(feed))
        assert "".join(piece["text"] for piece in pieces) == text
        assert pieces[0]["anew"] and not any(piece["anew"] for piece in pieces[1:])
        with feed_of(server, tab) as again:
            hello = next(again)
            assert (hello["tab"], hello["answers"]) == (tab, ["one"])
            assert ask_in_tab(server, tab, "later", **asked) == 202
            whole = next(answers_of(again))
            assert (whole["answer"], whole["anew"], whole["text"]) == ("one", True, text)
            assert not list(answers_of(feed)), "the earlier reader has ended"
        assert ask_in_tab(server, next(others)["tab"], "two", **asked) == 202
        assert {piece["answer"] for piece in answers_of(others)} == {"two"}


def test_answers_of_a_tab_end_when_they_are_stopped_and_some_time_after_the_tab(serving, monkeypatch):
    monkeypatch.setattr(live_page, "KEPT_SECONDS", 0)
    endless = {"prompt": "a", "max_tokens": 2000}

    def lag(event) -> None:  # so that 2,000 tokens take longer than what is asked meanwhile, on any machine
        if event.kind == "step":
            time.sleep(0.01)

    with serving(page=TinyPage(), on_open=lambda llm: llm.engine.listeners.append(lag)) as server:
        with feed_of(server) as feed:
            tab = next(feed)["tab"]
            assert ask_in_tab(server, tab, "one", **endless) == 202
            assert ask(server, "DELETE", "/answers", headers={"X-Tab": tab})[0] == 200
            assert list(answers_of(feed))[-1]["error"] == "(stopped)"
            until(lambda: is_empty(server))
            assert ask_in_tab(server, tab, "two", **endless) == 202
        until(lambda: is_empty(server), "nobody comes back to this tab")
        assert ask_in_tab(server, tab, "three", **{**endless, "max_tokens": 1}) == 200, "as to any client"


def test_tabs_and_their_answers_are_bounded():
    async def run():
        tab = live_tabs.Tab()
        feed = live_page.LiveFeed(TinyPage(), None, asyncio.get_running_loop(), left.put)
        names = [str(name) for name in range(live_tabs.MOST_ANSWERS + 1)]
        for name in names:
            tab.start(SimpleNamespace(scope={"request_id": name}), lambda scope, receive, send: left.get())
        assert list(tab.answers) == names[1:]
        before = tab.answers["1"].task
        tab.start(SimpleNamespace(scope={"request_id": "1"}), lambda scope, receive, send: left.get())
        await asyncio.sleep(0)
        assert before.cancelled() and list(tab.answers) == [*names[2:], "1"], "its name is another one's now"
        readers = [feed.events({}, "") for _ in range(live_page.MOST_TABS + 1)]
        hellos = [await anext(reader) for reader in readers]
        assert len(set(hellos)) == len(readers), "each has a name of its own"
        assert await anext(readers[0], None) is None and left.qsize() == 1, "the oldest has ended"
        tab.stop()
        for reader in readers:
            await reader.aclose()

    left = asyncio.Queue()
    asyncio.run(run())


def test_the_page_may_be_asked_by_no_other_page(serving):
    """Nor by a form, which needs no permission of the browser, nor by a name that a stranger gave this machine."""
    budget = ("POST", "/step_budget", {"max_num_batched_tokens": 16})
    with serving(page=TinyPage(), live_controls=True, allowed_hosts=("127.0.0.1",)) as server:
        own, site = {"Origin": server.url}, "Sec-Fetch-Site"
        for headers in (own, {"Origin": "https://proxy", site: "same-origin"}):
            assert ask(server, *budget, headers)[0] == 200
        others = {"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {site: "cross-site"}
        for headers in (*others, {**own, site: "same-site"}):
            for asked in (budget, ("DELETE", "/answers", None), ("GET", "/events", None)):
                assert ask(server, *asked, headers)[0] == 403
        form, stranger = {"Content-Type": "text/plain"}, {"Host": "evil", "Origin": "http://evil"}
        for headers in (form, {"Content-Type": ""}, stranger):
            assert ask(server, *budget, headers)[0] == 400


def test_the_page_may_look_and_nothing_else_unless_it_is_allowed_to(serving):
    with serving(page=TinyPage()) as server:
        assert ask(server, "POST", "/step_budget", {"max_num_batched_tokens": 16})[0] == 404


def test_the_policy_of_a_page_names_its_scripts():
    """Another script, by whatever means it comes, does not run."""
    html = "<script>\nfirst()\n</script><p><script>second()</script>"
    digest = base64.b64encode(hashlib.sha256(b"second()").digest()).decode()
    policy = live_page.policy_of(html)
    assert f"'sha256-{digest}'" in policy and policy.count("sha256-") == 2
    assert "default-src 'none'" in policy and "script-src 'unsafe" not in policy
    assert live_page.policy_of(LiveTimeline("x").html).count("sha256-") == 1


# ---- options, and the command


OUT_OF_RANGE = [("max_queue", -1), ("api_key", ""), ("max_body_bytes", 0), ("request_timeout", 0)]
OUT_OF_RANGE += [("request_timeout", math.nan), ("drain_timeout", math.nan)]


@pytest.mark.parametrize(("option", "value"), OUT_OF_RANGE)
def test_options_out_of_range_name_the_fix(option, value):
    with pytest.raises(ValueError, match=r"give|leave it out"):
        ServerOptions(**{option: value})


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_signal_ends_a_server_at_once_that_loads_or_drains_already(monkeypatch, capsys, is_draining):
    """There is nothing to drain yet, or somebody does not want to wait. Native code on a thread cannot be stopped."""
    codes = []
    monkeypatch.setattr(draining_server.os, "_exit", codes.append)
    server = draining_server.DrainingServer(create_app(lambda: None), "127.0.0.1", 0)
    server._draining = object() if is_draining else None
    monkeypatch.setattr(server, "stop", lambda: None)
    server.handle_exit(signal.SIGTERM, None)
    assert codes == [128 + signal.SIGTERM]
    assert capsys.readouterr().err == "ended by SIGTERM, without waiting for open requests\n"


@pytest.mark.parametrize(
    ("failure", "has_opened", "ends"),
    [
        (ValueError("no such device"), False, True),
        (NotImplementedError("week 3 day 6 task 5: serve"), True, True),
        (RuntimeError("the device is gone"), True, False),
        (None, True, False),
    ],
)
def test_a_server_without_an_engine_ends_and_one_whose_engine_died_does_not(failure, has_opened, ends):
    server = draining_server.DrainingServer(create_app(lambda: None), "127.0.0.1", 0)
    server._app.state.service = standing(failure=failure, has_opened=has_opened)
    assert asyncio.run(server.on_tick(1)) is ends


def standing(state="ready", failure=None, has_opened=True):
    """What a server's ticks look at."""
    return SimpleNamespace(state=state, failure=failure, has_opened=has_opened)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--model no-such-model", "model 'no-such-model': no such folder"),
        ("--max-model-len 100000", "100000"),
        ("--policy foo --model no-such-model", "policy is 'foo': give one of hybrid, separate, static"),
        ("--num-blocks 1000000000", "num_blocks is 1000000000: the pool needs"),
        ("--max-connections 10000000", "--max-connections 10000000: this process may have"),
    ],
)
def test_an_engine_that_cannot_be_opened_ends_with_one_line(line, says, refused, caplog):
    """In this process: it ends before any client comes."""
    with switch_interval_kept():
        err = refused(serve.main, f"--port 0 --backend {installed_backends()[0]} --device cpu {line}".split())
    assert (err.count("\n"), caplog.records) == (1, [])
    assert says in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("why", "device", "says"),
    [("no C++ compiler", "cpu", 1), (None, "cpu", 0), ("no C++ compiler", "cuda", 0)],
)
def test_a_server_that_does_without_compiled_kernels_says_so(why, device, says, monkeypatch, capsys):
    llm = SimpleNamespace(engine=SimpleNamespace(port=SimpleNamespace(device=device), extensions={}))
    monkeypatch.setattr(serve, "opened", lambda options, engine: llm)
    monkeypatch.setattr(serve, "why_no_kernels", lambda: why)
    assert serve.make_llm(serve.parsed([]), {}) is llm
    err = capsys.readouterr().err
    assert err.count("\n") == says and (
        not says or ("no kernels in C++, so steps take" in err and why in err)
    )


def test_steps_begin_as_usual_and_the_slider_of_the_page_reaches_more(monkeypatch):
    def opened(options, engine):
        scheduler = SimpleNamespace(max_num_batched_tokens=engine["max_num_batched_tokens"])
        made = SimpleNamespace(loop=SimpleNamespace(scheduler=scheduler), new_loop=None)
        made.options = SimpleNamespace(max_num_seqs=engine["max_num_seqs"], max_step_seconds=0.0)
        return SimpleNamespace(most=engine["max_num_batched_tokens"], engine=made)

    def budgets(line):
        options = serve.parsed(line.split())
        llm = serve.llm_opener(options, serve.server_options(options))()
        return llm.most, llm.engine.loop.scheduler.max_num_batched_tokens

    monkeypatch.setattr(serve, "make_llm", opened)
    assert (budgets(""), budgets("--max-num-seqs 600")) == ((2048, 512), (2048, 600))
    assert budgets("--max-num-batched-tokens 64") == (64, 64)
    assert budgets("--scale-chunks-by-load") == (None, None)
    assert budgets("--host 0.0.0.0") == (None, 512), "no slider"


@contextmanager
def switch_interval_kept():
    """`serve` sets it for its process."""
    before = sys.getswitchinterval()
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_it_says_once_that_it_is_ready():
    said = []
    app = create_app(lambda: None)
    server = draining_server.DrainingServer(app, "127.0.0.1", 0, on_ready=lambda: said.append(app))
    counts = []
    for state in ("starting", "starting", "ready", "ready", "stopping", "ready"):
        app.state.service = standing(state)
        assert asyncio.run(server.on_tick(1)) is False
        counts.append(len(said))
    assert counts == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [([], "is taken: stop the server there, or choose another --port"), (["--host", "192.0.2.1"], "--host")],
)
def test_an_address_that_cannot_be_had_ends_with_one_line_before_anything_is_loaded(arguments, says, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(SystemExit) as ended:
        serve.main(["--port", str(taken.getsockname()[1]), *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (1, "", 1)
    assert says in err


def test_small_pieces_are_sent_at_once():
    """Nagle's algorithm keeps the first piece of an answer back until the client acknowledges the headers: 40 ms."""
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_an_address_of_ipv6_is_told_in_brackets():
    assert url_of("::1", 80) == "http://[::1]:80" and url_of("h", 80) == "http://h:80"


def test_the_command_serves_and_ends_at_sigterm():
    """A process of its own: signals and exit codes are what this is about."""
    line = "--solution ref --port 0 --max-num-seqs 2 --num-blocks 20 --enforce-eager"
    command = [sys.executable, "-m", "tiny_llm_course.commands.serve", *line.split()]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    try:
        loading, ready = process.stdout.readline(), process.stdout.readline()
        [url] = re.findall(r"^ready on (http://127\.0\.0\.1:\d+) ", ready) or [ready]
        assert loading.startswith("loading tiny-qwen3") and url in loading
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model="tiny-qwen3", prompt="Hello", max_tokens=30, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        process.send_signal(signal.SIGTERM)
        assert list(stream)[-1].choices[0].finish_reason == "length", "the answer comes to its end"
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
    assert process.stdout.read() == "", "it says nothing else"
