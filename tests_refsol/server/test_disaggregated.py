"""A proxy in front of engines for prompts and engines that decode: fake ones, and real ones."""

import json
import os
import signal
from contextlib import ExitStack, contextmanager

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tiny_llm_course import capabilities
from tiny_llm_course.address import Task
from tiny_llm_course.commands import serve
from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_extensions.llm import LLM
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.disaggregated.client_request import ClientRequest
from tiny_llm_server.disaggregated.engines import DECODE, PREFILL, ProxiedEngine, started
from tiny_llm_server.disaggregated.proxy_app import create_proxy_app
from tiny_llm_server.openai_api.draining_server import DrainingServer
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.server import create_app

from .asking import ask, client_of, exchange, until
from .fake_engine import FakeEngine

LONG = "What is a KV cache? " * 60  # 300 numbers
TEXTS = {
    "/v1/completions": {"prompt": LONG},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": LONG}]},
}


# What each gets.


def request(path="/v1/completions", **fields):
    return ClientRequest("POST", path, {}, json.dumps(fields).encode())


@pytest.mark.parametrize("path", [*TEXTS, "/v1/responses?x=1"])
def test_the_engine_for_prompts_computes_one_token_of_one_answer(path):
    asked = request(path, max_completion_tokens=9, n=2, stream=True, stream_options={}, seed=1, best_of=2)
    limit = "max_output_tokens" if "responses" in path else "max_tokens"
    wanted = {"seed": 1, "stream": False, limit: 1, "kv_transfer_params": {"a": 1}}
    assert json.loads(asked.for_prefill({"a": 1})) == wanted


def test_the_engine_that_decodes_gets_the_request_and_no_host_of_the_client():
    asked = request(prompt="a", kv_transfer_params={"remote_host": "evil"})
    assert json.loads(asked.for_decode(None)) == {"prompt": "a"}
    assert json.loads(asked.for_decode({"a": 1})) == {"prompt": "a", "kv_transfer_params": {"a": 1}}


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"[" * 99999, b'{"prompt": "a"}', b"9" * 9999])
def test_a_body_for_an_engine_alone_is_sent_as_it_is(body):
    asked = ClientRequest("POST", "/v1/completions", {}, body)
    assert asked.for_decode(None) == body and len(asked.prompt) == (4 if b"a" in body else 0)


def test_prompts_that_begin_alike_share_their_numbers():
    one, other = (request(prompt=LONG + end, model=end).prompt for end in ("x", "y"))
    assert len(one) > 256 and one[:300] == other[:300] and one != other
    chat = [{"role": "user", "content": "a"}]
    assert request(messages=chat).prompt == request(messages=chat, max_tokens=3).prompt


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [({}, None), ({"max_tokens": 3}, 3), ({"max_tokens": -1}, None), ({"max_tokens": "3"}, None)],
)
def test_the_limit_of_an_answer_counts_as_far_as_it_is_one(fields, tokens):
    assert request(**fields).max_tokens == tokens
    assert request("/v1/models").max_tokens == 0


# The proxy, in front of fakes.


@contextmanager
def proxy_of(prefill, decode, least=256, **options):
    engines = [ProxiedEngine(PREFILL, one.address) for one in prefill] + [
        ProxiedEngine(DECODE, one.address) for one in decode
    ]
    app = create_proxy_app(ServerOptions(**options), engines, least)
    with BackgroundServer(app) as server:
        until(lambda: all(engine.is_ready for engine in engines))
        service, order = server.app.state.service, [one.address for one in decode]
        # Those that were ready first would be chosen first: choose in the order of the command.
        server.server._loop.call_soon_threadsafe(
            lambda: (service.loads.set_engines((), ()), service.update())
        )
        until(lambda: service.loads.decode.replicas == order)
        yield server


@pytest.fixture
def fakes():
    """One engine for prompts and two that decode, and a proxy in front of them."""
    with ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(text)) for text in ("P", "abc", "abc")]
        yield *engines, stack.enter_context(proxy_of(engines[:1], engines[1:]))


def complete(server, prompt=LONG, **fields):
    return ask(server, "POST", "/v1/completions", {"prompt": prompt, **fields})


def counts(server):
    """The counter of the proxy, by event."""
    text = exchange(server, "GET", "/metrics")[2]
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    return {
        one.labels["event"]: one.value
        for one in found["tiny_llm:proxy_requests"]
        if one.name.endswith("_total")
    }


@pytest.mark.parametrize("path", TEXTS)
def test_both_engines_get_the_request_and_the_client_the_answer(fakes, path):
    prefill, decode, _, server = fakes
    status, headers, answer = ask(
        server, "POST", path, {**TEXTS[path], "seed": 3}, headers={"Authorization": "Bearer k"}
    )
    assert (status, answer["choices"][0]["text"]) == (200, "abc") and headers["X-Request-Id"]
    until(lambda: prefill.asked)
    [[there, prefill_headers, first]], [[here, decode_headers, second]] = prefill.asked, decode.asked
    params, source = first.pop("kv_transfer_params"), second.pop("kv_transfer_params")
    assert there == here == path and second == {**TEXTS[path], "seed": 3}
    assert first == {**second, "max_tokens": 1, "stream": False}
    assert params == {"do_remote_decode": True, "transfer_id": source["transfer_id"]}
    where = {"remote_host": "127.0.0.1", "remote_port": prefill.kv_port}
    assert source == {"do_remote_prefill": True, "transfer_id": params["transfer_id"], **where}
    for sent in (prefill_headers, decode_headers):
        assert (sent["Authorization"], sent["X-Request-Id"]) == ("Bearer k", headers["X-Request-Id"])


def test_a_stream_comes_as_it_is_made_and_requests_are_shared(fakes):
    prefill, decode, other, server = fakes
    decode.goes_on.clear()
    with client_of(server) as client:
        stream = client.completions.create(model="m", prompt=LONG, stream=True)
        assert next(stream).choices[0].text == "a"
        assert client.completions.create(model="m", prompt="short").choices[0].text == "abc"
        decode.goes_on.set()
        assert [chunk.choices[0].text for chunk in stream] == ["b", "c"]
    assert [len(one.asked) for one in (prefill, decode, other)] == [1, 1, 1]
    assert "kv_transfer_params" not in other.asked[0][2]
    found = counts(server)
    assert (found["elsewhere"], found["alone"], found["prefill_failed"]) == (1, 1, 0)


def test_whatever_is_no_answer_comes_from_an_engine_that_decodes(fakes):
    *_, server = fakes
    assert ask(server, "GET", "/v1/models?a=b")[0] == 200 and ask(server, "GET", "/v1/models")[2]["data"]
    status, _, body = complete(server, "a", wrong=1)
    assert (status, body["error"]["message"]) == (400, "unknown parameter wrong: leave it out")
    assert ask(server, "GET", "/elsewhere")[0] == 404


def test_the_death_of_an_engine_for_prompts_fails_no_request(fakes):
    prefill, decode, other, server = fakes
    prefill.deaths.append(0)
    decode.goes_on.clear()
    with client_of(server) as client:
        stream = client.completions.create(model="m", prompt=LONG, stream=True)
        until(lambda: counts(server)["prefill_failed"] == 1)
        decode.goes_on.set()
        assert "".join(chunk.choices[0].text for chunk in stream) == "abc"
    decode.patience = other.patience = 0.1
    prefill.close()
    assert all(complete(server)[0] == 200 for _ in range(3)) and counts(server)["failed"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_engine_dies_before_its_answer_is_sent_again(fakes, stream):
    prefill, decode, other, server = fakes
    decode.deaths.append(0)
    text = exchange(server, "POST", "/v1/completions", {"prompt": LONG, "stream": stream})[2]
    assert text.count('"text"') == (3 if stream else 1) and "error" not in text
    until(lambda: len(prefill.asked) == 2)
    ids = [one.asked[0][2]["kv_transfer_params"]["transfer_id"] for one in (decode, other)]
    assert len(set(ids)) == 2 and counts(server)["retried"] == 1


def test_a_client_that_has_a_part_of_its_answer_gets_an_error_of_the_api(fakes):
    _, decode, _, server = fakes
    decode.deaths.append(2)
    with client_of(server) as client, pytest.raises(openai.APIError, match="has died") as raised:
        for chunk in client.completions.create(model="m", prompt=LONG, stream=True):
            text = chunk.choices[0].text
    assert text == "b" and raised.value.body["code"] == "service_unavailable"
    assert counts(server)["failed"] == 1


def test_two_deaths_are_a_503(fakes):
    _, decode, other, server = fakes
    for engine in (decode, other):
        engine.deaths += [0, 0]
    status, headers, body = complete(server)
    assert status == 503 and body["error"]["type"] == "server_error" and headers["Retry-After"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_its_request_on_both_engines(fakes, stream):
    prefill, decode, _, server = fakes
    decode.text = prefill.text = "a" * 10**6 if not stream else "a" * 50_000
    decode.goes_on.clear()
    prefill.goes_on.clear()
    connection = server.connection()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": LONG, "stream": stream}))
    until(lambda: decode.asked and prefill.asked)
    answer = connection.getresponse() if stream else connection
    connection.close()
    answer.close()
    service = server.app.state.service
    until(lambda: not service.open)
    assert not any(service.loads.decode.outstanding.values())
    if stream:
        decode.goes_on.set()
        until(lambda: decode.left)


def test_a_drain_refuses_requests_and_lets_the_open_ones_end(fakes):
    _, decode, _, server = fakes
    decode.goes_on.clear()
    with client_of(server) as client:
        stream = client.completions.create(model="m", prompt=LONG, stream=True)
        next(stream)
        server.server.stop()
        until(lambda: server.app.state.service.state == "stopping")
        assert complete(server)[0] == 503 and ask(server, "GET", "/ready")[0] == 503
        decode.goes_on.set()
        assert [chunk.choices[0].text for chunk in stream] == ["b", "c"]


def test_an_engine_that_stops_gets_nothing_and_without_any_there_is_no_health(fakes):
    _, decode, other, server = fakes
    decode.status = "stopping"
    until(lambda: decode.address not in server.app.state.service.loads.decode.replicas)
    assert complete(server)[0] == complete(server)[0] == 200 and len(other.asked) == 2
    other.close()
    until(lambda: ask(server, "GET", "/health")[0] == 503)
    assert complete(server)[2]["error"]["code"] == "service_unavailable"


def test_metrics_of_engines_have_their_names(fakes):
    prefill, *_, server = fakes
    text = exchange(server, "GET", "/metrics")[2]
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    assert {one.value for one in families["vllm:prompt_tokens"]} == {7.0} and text.count(
        "# TYPE vllm:prompt"
    ) == 1
    assert {one.labels["role"] for one in families["vllm:prompt_tokens"]} == {PREFILL, DECODE}
    assert {one.labels["engine"] for one in families["tiny_llm:outstanding_tokens"]} >= {prefill.address}


# Processes.

FAKE = ["-m", "tests_refsol.server.fake_engine"]


def test_a_process_that_is_killed_is_started_again_and_ends_with_the_proxy():
    engines = started(PREFILL, 1, FAKE, 1) + started(DECODE, 1, FAKE, 1)
    with BackgroundServer(create_proxy_app(ServerOptions(), engines, 256)) as server:
        first, decode = (engine.process for engine in engines)
        os.kill(first.pid, signal.SIGKILL)
        assert complete(server)[0] == 200
        until(lambda: engines[0].process is not first and engines[0].is_ready)
        assert complete(server)[0] == 200
    assert (engines[0].process.poll(), decode.poll()) == (0, 0)


def test_a_process_that_never_gets_ready_ends_the_proxy():
    engines = started(DECODE, 1, [*FAKE, "--fails"], 1)
    server = DrainingServer(create_proxy_app(ServerOptions(), engines, 256), "127.0.0.1", 0)
    server.run()
    failure = server.service.failure
    assert isinstance(failure, FatalError) and "ended before it was ready" in str(failure)


def test_a_learner_is_told_which_day_a_proxy_needs(monkeypatch, refused):
    monkeypatch.setattr(capabilities, "blank_tasks", lambda solution, part: {Task(4, 6, 6)})
    for option, value in (("--disaggregated", "1:1"), ("--decode-servers", "127.0.0.1:9")):
        line = refused(serve.main, ["--solution", "tiny_llm", "--port", "0", option, value])
        assert line == f"{option} is Day 4.6, which has a blank task: fill it, or leave {option} out\n"


# The fake and a real engine, held to the same.


@pytest.fixture(params=["fake", "real"])
def engine(request, loaded):
    if request.param == "fake":
        with FakeEngine() as fake:
            yield fake.address
    else:
        app = create_app(lambda: LLM.of(*loaded, block_size=16, num_blocks=200, enforce_eager=True))
        with BackgroundServer(app) as server:
            yield f"127.0.0.1:{server.port}"


def test_a_fake_answers_as_an_engine_does(engine):
    with BackgroundServer(
        create_proxy_app(ServerOptions(), [ProxiedEngine(DECODE, engine)], 10**6)
    ) as server:
        with client_of(server) as client:
            asked = {"model": "tiny-qwen3", "prompt": "a", "max_tokens": 3, "temperature": 0}
            whole = client.completions.create(**asked).choices[0].text
            stream = [chunk for chunk in client.completions.create(**asked, stream=True) if chunk.choices]
            assert "".join(chunk.choices[0].text for chunk in stream) == whole and len(stream) > 1
            assert client.models.list().data
        assert (
            complete(server, "a", wrong=1)[2]["error"]["message"] == "unknown parameter wrong: leave it out"
        )
        families = text_string_to_metric_families(exchange(server, "GET", "/metrics")[2])
        assert "vllm:prompt_tokens" in {family.name for family in families}


# The command.


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--disaggregated 0:1", "is not P:D"),
        ("--disaggregated 1:1 --replicas 2", "give one of --disaggregated"),
        ("--prefill-servers a:1", "--prefill-servers need --decode-servers"),
        ("--decode-servers a", "is not host:port"),
    ],
)
def test_wrong_options_are_one_line(line, says, refused):
    assert says in refused(serve.main, ["--port", "0", *line.split()]).splitlines()[-1]


def test_engines_get_the_options_of_the_command_but_for_those_of_the_proxy():
    own, given = (
        ["--disaggregated=1:2", "--port", "80", "--ssl-cert-reqs", "0"],
        ["--served-model-name", "a", "b"],
    )
    assert serve.engine_words([*own[:3], *given, *own[3:], "--n"]) == [*given, "--n"]
