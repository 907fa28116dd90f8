"""The server against clients that send too much, or nothing; and a page of another name.

One server for all of them: few connections, short deadlines.
"""

import asyncio
import http.client
import itertools
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from types import SimpleNamespace

import pytest
from fastapi import Request
from openai._constants import DEFAULT_CONNECTION_LIMITS
from pydantic import ValidationError

from tiny_llm_course.commands import serve
from tiny_llm_engine.models import template_process
from tiny_llm_engine.models.chat_template import ChatTemplate, ChatTemplateError
from tiny_llm_extensions.llm import LLM
from tiny_llm_server import arguments
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api import draining_server, middleware
from tiny_llm_server.openai_api.draining_server import ConnectionLimits, OncePerMinute
from tiny_llm_server.openai_api.schemas import CompletionBody, Message
from tiny_llm_server.openai_api.service import LATEST, ReturnTimes
from tiny_llm_server.openai_api.submission import chat_ids
from tiny_llm_server.openai_api.text_work import TextWork
from tiny_llm_server.server import ServerOptions, create_app

from .asking import JSON, PATIENCE, ask, read_to_end, until

ENGINE = {"block_size": 16, "num_blocks": 100, "max_num_seqs": 4, "max_num_batched_tokens": 64}
ENGINE |= {"max_model_len": 512, "enforce_eager": True}
MOST = 8  # connections


@pytest.fixture(scope="module")
def server(loaded_last):
    hosts = ("127.0.0.1", "localhost", "::1")
    options = ServerOptions(max_queue=16, max_request_logprobs=10_000, allowed_hosts=hosts)
    app = create_app(lambda: LLM.of(*loaded_last, **ENGINE), options)
    with BackgroundServer(app, limits=ConnectionLimits(MOST, 64)) as started:
        yield started


@contextmanager
def dialled(server, *sent: bytes):
    """A connection on which this was sent, and no more."""
    with socket.create_connection((server.host, server.port), PATIENCE) as made:
        for each in sent:
            made.sendall(each)
        yield made


# ---- too much


def texts_seen(server, monkeypatch) -> list[str]:
    """The texts that the tokenizer encodes from now on."""
    seen, tokenizer = [], server.server.service.engine.tokenizer
    encode = type(tokenizer).encode
    monkeypatch.setattr(type(tokenizer), "encode", lambda self, text: seen.append(text) or encode(self, text))
    return seen


LONG = "hello wo " * 10_000
TURN = {"role": "user", "content": "Hi"}


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MANY_PROBABILITIES = {"prompt": [5] * 110, "n": 4, "logprobs": 20, "echo": True, "max_tokens": 10}
TOO_MANY = (
    "logprobs: the answers may have 10080 log-probabilities, and this server returns at most 10000 (--max-req"
)
PARTS = {"role": "user", "content": [{"type": "text", "text": ""}] * 9000}
NEVER_SERVED = [
    (COMPLETIONS, {"prompt": ["a"] * 50_000}, "prompt: 50000 prompts: give at most 10000"),
    (COMPLETIONS, {"prompt": ["a"] * 21}, "prompt: 21 answers at once: this server takes at most 20"),
    (COMPLETIONS, {"prompt": ["a"] * 11, "n": 2}, "prompt: 22 answers at once"),
    (COMPLETIONS, MANY_PROBABILITIES, TOO_MANY),
    (COMPLETIONS, {"prompt": LONG}, "prompt has 90000 characters: max_model_len is 512 tokens"),
    (COMPLETIONS, {"prompt": ["a", LONG]}, "prompt[1] has 90000 characters: max_model_len is 512"),
    (CHAT, {"messages": [{"role": "user", "content": LONG}]}, "messages has 90000 characters"),
    (CHAT, {"messages": [TURN] * 20_000}, "messages: 20000 messages: give at most 10000"),
    (CHAT, {"messages": [PARTS] * 2}, "messages: 18000 parts: give at most 10000"),
    (COMPLETIONS, {"prompt": "a", **{f"k{i}": 1 for i in range(200)}}, "201 fields: give at most 100"),
    ("/tokenize", {"prompt": LONG}, "prompt has 90000 characters"),
]


@pytest.mark.parametrize(("path", "body", "says"), NEVER_SERVED)
def test_what_can_never_be_served_is_refused_unread(server, monkeypatch, path, body, says):
    seen = texts_seen(server, monkeypatch)
    status, _, found = ask(server, "POST", path, body)
    assert status == 400, found
    assert says in found["error"]["message"], found["error"]["message"]
    assert seen == []


LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{{ print }}{% endfor %}{% endfor %}"
HOSTILE = [
    LOOP,
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}",
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% for a in range(9999) %}{{ 'x' * 99 }}{% endfor %}",
    "{{ 'x' * 10 ** 12 }}",
    "{{ '%1000000000000d' % 1 }}",
    "{{ 10 ** (10 ** 9) }}",
]


@pytest.fixture
def templates(server, monkeypatch):
    """Uses another chat template, until the test has ended, and little time for it; gives the process."""
    tokenizer, texts = server.server.service.engine.tokenizer, server.server.service.texts
    monkeypatch.setattr(tokenizer, "_chat_template", tokenizer._chat_template)
    monkeypatch.setattr(template_process, "SECONDS", 0.05)
    return SimpleNamespace(use=tokenizer.use_chat_template, process=texts._templates)


@pytest.mark.parametrize("template", HOSTILE)
def test_a_hostile_template_is_one_400_and_the_next_one_is_rendered(server, templates, template):
    body = {"messages": [TURN], "max_tokens": 1}
    templates.use(template)
    status, _, found = ask(server, "POST", "/v1/chat/completions", body)
    assert status == 400 and found["error"]["message"].startswith("messages: the chat template ")
    templates.use("{{ messages[0].content }}")
    assert ask(server, "POST", "/v1/chat/completions", body)[0] == 200


def test_others_are_served_while_a_template_loops(server, templates, monkeypatch):
    monkeypatch.setattr(template_process, "SECONDS", 1e6)  # only the test ends it
    templates.use(LOOP)
    with ThreadPoolExecutor() as pool:
        looping = pool.submit(ask, server, "POST", "/tokenize", {"messages": [TURN]})
        answered = {"/v1/completions": {"prompt": "a", "max_tokens": 1}, "/tokenize": {"prompt": "a " * 2000}}
        for path, body in answered.items():
            assert ask(server, "POST", path, body)[0] == 200
        assert not looping.done()
        while not looping.done():
            templates.process.end()
    assert looping.result()[0] == 400


def test_conversations_that_wait_for_a_template_are_told_that_the_server_stops(monkeypatch):
    """The first one is being rendered, the second one must not start another process."""
    monkeypatch.setattr(template_process, "SECONDS", 0.5)  # only a server that does not stop takes as long
    tokenizer = SimpleNamespace(template=ChatTemplate({"default": LOOP}, None, {}), longest_token=9)
    model = SimpleNamespace(tokenizer=tokenizer, max_model_len=512)

    async def run():
        service = SimpleNamespace(texts=TextWork(), model=model, state="ready")
        asked = [asyncio.create_task(chat_ids(service, [Message(**TURN)])) for _ in range(2)]
        while service.texts._templates._process is None:
            await asyncio.sleep(0)
        service.state = "stopping"
        service.texts.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [error.status for error in found] == [503, 503]
        assert service.texts._templates._process is None

    asyncio.run(run())


def test_variables_that_are_nested_too_deep_for_the_process_are_refused(templates):
    template, deep = ChatTemplate({"default": "a"}, None, {}), []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="send less"):
        templates.process.render(template, 9, [TURN], True, {"deep": deep})
    assert templates.process.render(template, 9, [TURN], True, {}) == "a"


def test_a_process_of_templates_that_was_killed_while_nobody_asked_costs_no_request(templates):
    for _ in range(2):
        template = ChatTemplate({"default": "a"}, None, {})
        assert templates.process.render(template, 9, [TURN], True, {}) == "a"
        templates.process._process.kill()
        templates.process._process.wait()


def test_one_wrong_entry_of_a_long_list_is_enough(server):
    """With an error for each, 100,000 entries took a second, and every stream waited."""
    status, _, found = ask(server, "POST", "/v1/completions", {"prompt": ["a"] + [None] * 9000})
    assert status == 400 and found["error"]["param"] == "prompt"
    with pytest.raises(ValidationError) as wrong:
        CompletionBody.model_validate({"prompt": ["a"] + [None] * 9000})
    assert wrong.value.error_count() < 10


def test_a_prompt_that_is_too_long_names_its_place_and_max_model_len(server):
    status, _, found = ask(server, "POST", "/v1/completions", {"prompt": [[5], [5] * 600]})
    assert status == 400 and found["error"]["param"] == "prompt"
    assert found["error"]["message"].startswith(
        "prompt[1]: the prompt has 600 tokens, but max_model_len is 512"
    )


def test_long_texts_are_encoded_beside_the_event_loop(server, monkeypatch):
    """While one is encoded, others get their answers."""
    tokenizer = server.server.service.engine.tokenizer
    encode, times = type(tokenizer).encode, {}

    def slow(self, text):
        if len(text) > 4000:
            end = time.monotonic() + PATIENCE
            while "health" not in times and time.monotonic() < end:
                time.sleep(0.001)
            times["encoded"] = time.monotonic()
        return encode(self, text)

    monkeypatch.setattr(type(tokenizer), "encode", slow)
    with dialled(server, request_bytes("/tokenize", {"prompt": "a" * 5000})) as slow_one:
        assert ask(server, "GET", "/health")[0] == 200
        times["health"] = time.monotonic()
        assert slow_one.recv(12) == b"HTTP/1.1 200"
    assert times["health"] <= times["encoded"]


def request_bytes(path, body, **headers) -> bytes:
    payload = json.dumps(body).encode()
    lines = {"Host": "127.0.0.1", **JSON, "Content-Length": len(payload), **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + payload


# ---- nothing, or slowly


def is_closed(connection) -> bool:
    """Whether the server closes it."""
    connection.settimeout(PATIENCE)
    with suppress(ConnectionResetError):
        read_to_end(connection)
    return True


def test_silent_connections_give_way(server):
    """Three times as many as there is room for; the oldest ones are closed."""
    with ExitStack() as stack:
        silent = [stack.enter_context(dialled(server)) for _ in range(3 * MOST)]
        for _ in range(3):
            assert ask(server, "GET", "/health")[0] == 200
        assert is_closed(silent[0])
        assert len(server.server.server_state.connections) <= MOST


def test_an_open_stream_is_never_closed_for_silent_ones(server):
    body = {"prompt": "Hello", "max_tokens": 150, "ignore_eos": True, "stream": True, "temperature": 0}
    with (
        ExitStack() as stack,
        dialled(server, request_bytes("/v1/completions", body, Connection="close")) as stream,
    ):
        assert stream.recv(12) == b"HTTP/1.1 200"
        for _ in range(2 * MOST):
            stack.enter_context(dialled(server))
        got = read_to_end(stream)
    assert b"[DONE]" in got and b'"length"' in got


@pytest.mark.parametrize(
    "sent", [b"", b"GET /hea", request_bytes("/v1/models", {}).replace(b"POST", b"GET") + b"GET"]
)
def test_headers_have_a_deadline(server, monkeypatch, sent):
    monkeypatch.setattr(draining_server, "HEADER_SECONDS", 0.1)
    with dialled(server, sent) as slow:
        assert is_closed(slow)


def test_a_connection_is_kept_for_longer_than_its_client_would_use_it(server, monkeypatch):
    """A request that arrives while its connection is closed is lost: the client reads a reset."""
    assert 2 * DEFAULT_CONNECTION_LIMITS.keepalive_expiry < draining_server.KEEP_ALIVE_SECONDS
    sent, connections = request_bytes("/tokenize", {"prompt": "a"}), server.server.server_state.connections
    with dialled(server, sent[:-1]) as kept, dialled(server, sent[:-1]) as other:
        until(lambda: sum(not each.is_idle for each in list(connections)) == 2)
        monkeypatch.setattr(draining_server, "HEADER_SECONDS", 0.0)  # it is for requests that have begun
        for each, rest in ((kept, sent[-1:]), (other, sent[-1:]), (kept, sent)):
            each.sendall(rest)
            assert status_on(each) == 200


def status_on(connection) -> int:
    """Read the next answer whole; its status."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def test_a_body_has_a_deadline_as_a_whole(monkeypatch):
    """A byte now and then does not prolong it."""
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.1)
    received = []

    async def receive():
        await asyncio.sleep(0.03)
        received.append(1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    limited = middleware.Guard(None, None, lambda: 1000)._limited(receive)

    async def read_all():
        while len(received) < 100:
            await limited()

    with pytest.raises(middleware.HTTPException) as ended:
        asyncio.run(read_all())
    assert ended.value.status_code == 408


def test_large_bodies_are_parsed_one_after_another_with_time_between_them(monkeypatch):
    """On no thread would it be otherwise: the parser of the standard library keeps the interpreter's lock."""
    order = []

    def loads(content):
        order.append("parsed")
        return json.loads(content)

    async def other():
        while order.count("parsed") < 3:
            order.append("other")
            await asyncio.sleep(0)

    async def run():
        turn, body = asyncio.Lock(), json.dumps(["x" * middleware.LARGE]).encode()

        async def receive():
            return {"type": "http.request", "body": body}

        requests = [Request({"type": "http", "headers": []}, receive) for _ in range(3)]
        reads = [middleware.SteppedRequest(each, turn).json() for each in requests]
        await asyncio.gather(*reads, other())

    monkeypatch.setattr("starlette.requests.json", SimpleNamespace(loads=loads))
    asyncio.run(run())
    places = [place for place, what in enumerate(order) if what == "parsed"]
    assert len(places) == 3 and all(b - a > 1 for a, b in itertools.pairwise(places)), order


def test_the_longest_body_follows_from_the_context(server):
    options = ServerOptions()
    assert options.body_limit(None) == 2**20 and options.body_limit(2**17) == 5 * 2**20
    assert ServerOptions(max_body_bytes=7).body_limit(2**17) == 7
    most = options.body_limit(ENGINE["max_model_len"])
    status, _, found = ask(server, "POST", "/v1/completions", {"prompt": "a" * most})
    assert status == 413 and f"more than {most} bytes" in found["error"]["message"]


def test_a_body_with_two_lengths_is_the_last_request_of_its_connection(server):
    """What a proxy takes for the rest of its body could be a request of somebody else (RFC 9112, 6.3)."""
    twice = request_bytes("/tokenize", {"prompt": "a"}, **{"Transfer-Encoding": "chunked"})
    head, _, body = twice.partition(b"\r\n\r\n")
    chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    once = request_bytes("/tokenize", {"prompt": "a"})
    for before in (b"", once):
        with dialled(server, before + head + b"\r\n\r\n" + chunk + once) as made:
            made.settimeout(PATIENCE)
            got = read_to_end(made)
        assert got.count(b"HTTP/1.1 200") == 1 + bool(before) and got.count(b"connection: close") == 1, got


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_another_protocol_is_one_quiet_line(server, monkeypatch, protocol):
    lines = []
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "warning", lambda *line: lines.append(line[0]))
    wanted = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": protocol}
    wanted["HTTP2-Settings"] = "AAMAAABkAAQAAP__"
    wanted |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    assert ask(server, "GET", "/health", headers=wanted)[0] == 200
    assert lines == ["upgrades to other protocols are not supported: answered in HTTP/1.1"]


def test_a_half_closed_connection_gets_its_answer(server):
    """Also one whose answer is still computed when the client closes its side."""
    for streams in (False, True):
        body = {"prompt": "Hello", "max_tokens": 60, "ignore_eos": True, "temperature": 0, "stream": streams}
        with dialled(server, request_bytes("/v1/completions", body)) as half:
            half.shutdown(socket.SHUT_WR)
            got = read_to_end(half)
        assert b'"finish_reason": "length"' in got, got[-300:]


def test_a_client_that_has_closed_both_sides_is_gone(server, monkeypatch):
    """It is found out although nothing is written to it before the answer is complete: a step waits until then."""
    service, begun, may_go_on, ends = server.server.service, threading.Event(), threading.Event(), []
    loop = service.loop

    def hold(event):
        if event.kind == "step":
            begun.set()
            assert may_go_on.wait(PATIENCE)
        elif event.kind == "finish":
            ends.append(event.request.finish_reason)

    monkeypatch.setattr(service.llm.engine, "listeners", [*service.llm.engine.listeners, hold])
    body = {"prompt": "Hello", "max_tokens": 500, "ignore_eos": True, "temperature": 0}
    for streams in (False, True):
        with dialled(server, request_bytes("/v1/completions", {**body, "stream": streams})):
            assert begun.wait(PATIENCE)
        until(lambda: loop._abandoned)
        may_go_on.set()
        until(lambda: loop.num_open == 0)
        begun.clear()
        may_go_on.clear()
    assert ends == ["abort", "abort"]


def test_a_message_is_logged_once_a_minute():
    once, passed = OncePerMinute(), []
    for seconds in (0, 1, 59, 61, 62):
        record = logging.LogRecord(
            "asyncio", logging.ERROR, "", 0, f"out of files\nsocket {seconds}", (), None
        )
        record.created = 1000.0 + seconds
        passed.append(once.filter(record))
    assert passed == [True, False, False, True, False]
    record.msg = "another"
    assert once.filter(record)


def test_connections_stay_below_the_limit_of_open_files(monkeypatch):
    monkeypatch.setattr(draining_server, "raised_file_limit", lambda: 256)
    limits = ConnectionLimits.within(None)
    assert limits.connections + limits.backlog <= 256 - 64 and limits.connections >= 100
    assert ConnectionLimits.within(10).connections == 10
    with pytest.raises(
        ValueError, match="--max-connections 1000: this process may have 144; raise `ulimit -n`"
    ):
        ConnectionLimits.within(1000)


# ---- the time to come again


def refused(times, count, missing=1):
    return [times.refuse(1, missing) for _ in range(count)]


def test_each_refused_client_gets_its_own_time():
    """After those refused before it, at the pace at which answers end."""
    now = [100.0]
    times = ReturnTimes(lambda: now[0])
    for _ in range(11):
        times(SimpleNamespace(kind="finish"))
        now[0] += 0.5
    now[0] -= 0.5
    seconds = refused(times, 40)
    assert seconds == sorted(seconds) and seconds[0] == 1
    assert seconds[19] >= 0.5 * 20, "20 places are free after 10 s"
    assert seconds[19] <= 2 * 0.5 * 20
    now[0] += 200
    assert times.refuse(1, 1) == 1, "all of them have come again"


def test_nobody_waits_longer_than_clients_do():
    times = ReturnTimes(lambda: 0.0)
    assert max(refused(times, 3000)) == LATEST


# ---- hosts


HOSTS = {"evil.example": 400, "127.0.0.1:80": 200, "LocalHost": 200, "[::1]:8000": 200, "": 400, "[": 400}


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_only_requests_for_this_server_are_served(server, host, status):
    """A page whose name leads to this address sends its own name."""
    found, _, body = ask(server, "GET", "/health", headers={"Host": host})
    assert found == status
    assert status == 200 or "--allowed-hosts" in body["error"]["message"]


def test_hosts_are_checked_by_default_on_loopback_alone():
    assert arguments.allowed_hosts("127.0.0.1", None) == ("127.0.0.1", "127.0.0.1", "localhost", "::1")
    assert arguments.allowed_hosts("0.0.0.0", None) is None
    assert "box.local" in arguments.allowed_hosts("0.0.0.0", ["Box.local"])
    assert arguments.allowed_hosts("127.0.0.1", ["*"]) is None


def test_controls_of_the_page_are_on_where_nobody_else_reaches_it(monkeypatch):
    def are_on(line):
        return arguments.server_options(serve.parsed(line.split())).live_controls

    assert all(
        map(are_on, ("", "--host ::1", "--host 0.0.0.0 --live-controls", "--api-key k --live-controls"))
    )
    others = ["--host 0.0.0.0", "--api-key k", "--allowed-hosts *", "--uds /tmp/s", "--root-path /llm"]
    others.append("--no-live-controls")
    assert not any(map(are_on, others))
    monkeypatch.setenv(arguments.API_KEY, "k")
    assert not are_on("")
