"""Replicas without Ray: the HTTP side in front of engines that die, what it retries, and the options of the command."""

import asyncio
import importlib
import pickle
import re
import sys
from types import ModuleType, SimpleNamespace

import openai
import pytest

from tiny_llm_course.commands import serve
from tiny_llm_engine.loop_state import Piece
from tiny_llm_engine.packed_model import Sampled
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api.errors import ApiError, overloaded
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.openai_api.service_contract import ServiceRequest
from tiny_llm_server.replicas import replica_options
from tiny_llm_server.replicas.engine_replica import EngineReplica
from tiny_llm_server.replicas.replica_metrics import ReplicaMetrics
from tiny_llm_server.replicas.replica_options import INSTALL, ReplicaOptions, not_started, one_line
from tiny_llm_server.replicas.replica_request import ReplicaPieces
from tiny_llm_server.replicas.replica_stream import LOST, ReplicaStream
from tiny_llm_server.replicas.replicated_service import ReplicatedService
from tiny_llm_server.server import app_around

from .asking import client_of, until


class Died(Exception):
    """What a call raises when its replica has died."""


class Call:
    """An open call of a fake replica: these messages, then the end, or a death."""

    def __init__(self, messages, dies=False):
        self.messages, self.dies, self.is_cancelled = list(messages), dies, False

    async def __anext__(self):
        if self.messages:
            return self.messages.pop(0)
        raise Died if self.dies else StopAsyncIteration

    def cancel(self):
        self.is_cancelled = True


ACCEPTED = ReplicaPieces((), ())
REQUEST = ServiceRequest([[1, 2, 3]], SamplingParams(max_tokens=4), "interactive", ["prompt"])


def gain(text, reason=None, cached=0):
    return ReplicaPieces([Piece(0, text, [Sampled(ord(text))], reason)], [cached])


def stream_of(*calls, streamed=True, losses=None):
    waiting = list(calls)
    on_loss = (lambda retried: None) if losses is None else losses.append
    return ReplicaStream(REQUEST, lambda request: waiting.pop(0), (Died,), streamed, on_loss)


async def read(stream):
    await stream.accepted()
    return ["".join(piece.text for piece in pieces) async for pieces in stream]


def test_pieces_come_as_the_replica_sends_them():
    stream = stream_of(Call([ACCEPTED, gain("a"), gain("b", "length", cached=2)]))
    assert asyncio.run(read(stream)) == ["a", "b"]
    [counts] = stream.sequences
    assert (counts.num_prompt_tokens, len(counts.tokens), counts.num_cached) == (3, 2, 2)


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("before", [[], [ACCEPTED]], ids=["sent", "accepted"])
def test_a_request_whose_replica_dies_before_its_first_piece_is_sent_again(before, streamed):
    losses = []
    calls = Call(before, dies=True), Call([ACCEPTED, gain("a", "stop")])
    stream = stream_of(*calls, streamed=streamed, losses=losses)
    assert asyncio.run(read(stream)) == ["a"] and losses == [True]


def test_a_client_that_has_received_a_piece_gets_an_error_and_no_second_beginning():
    losses = []
    stream = stream_of(Call([ACCEPTED, gain("a")], dies=True), Call([]), losses=losses)

    async def run():
        await stream.accepted()
        assert (await anext(aiter(stream)))[0].text == "a"
        with pytest.raises(ApiError, match=LOST) as raised:
            await anext(aiter(stream))
        return raised.value

    error = asyncio.run(run())
    assert error.status == 503 and losses == [False]
    assert error.body()["error"]["type"] == "server_error"


def test_a_client_without_a_stream_has_received_nothing_so_its_request_is_sent_again():
    first = Call([ACCEPTED, gain("a"), gain("b")], dies=True)
    second = Call([ACCEPTED, gain("x"), gain("y", "stop")])
    stream = stream_of(first, second, streamed=False)
    assert asyncio.run(read(stream)) == ["xy"], "nothing of the first answer is in the second"
    assert len(stream.sequences[0].tokens) == 2, "the tokens of the first answer do not count"


def counted(*calls, leaves=False) -> dict[str, float]:
    """The metrics after one request whose messages come a second apart."""
    seconds, waiting = iter(range(100)), list(calls)
    metrics = ReplicaMetrics("m", lambda: float(next(seconds)))

    async def run():
        stream = ReplicaStream(
            REQUEST, lambda request: waiting.pop(0), (Died,), True, metrics.count_loss, metrics.on_answer
        )
        try:
            await stream.accepted()
            assert (metrics.value("num_requests_running"), metrics.value("num_requests_waiting")) == (1, 0)
            async for _ in stream:
                if leaves:
                    break
        except ApiError:
            pass
        finally:
            stream.close()

    asyncio.run(run())
    text = metrics.text().decode()
    assert metrics.value("num_requests_running") == metrics.value("num_requests_waiting") == 0
    values = re.findall(r"^vllm:(\w+)\{.*\} (\S+)$", text, re.M)
    return {name: float(value) for name, value in values if float(value) and not name.endswith("_created")}


def test_metrics_of_replicas_have_the_names_of_vllm():
    found = counted(Call([ACCEPTED, gain("a"), gain("b", "length", cached=2)]))
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (3, 2)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (3, 2)
    assert found["request_success_total"] == found["time_to_first_token_seconds_count"] == 1
    assert (found["time_to_first_token_seconds_sum"], found["e2e_request_latency_seconds_sum"]) == (2, 4)
    assert found["request_params_max_tokens_sum"] == 4 and found["inter_token_latency_seconds_sum"] == 1


def test_metrics_of_a_request_that_begins_again_or_is_left_or_refused():
    again = counted(Call([ACCEPTED], dies=True), Call([ACCEPTED, gain("a"), gain("b", "stop")]))
    assert (again["prompt_tokens_total"], again["generation_tokens_total"]) == (3, 2)
    left = counted(Call([ACCEPTED, gain("a"), gain("b")]), leaves=True)
    assert left["request_success_total"] == 1 and left["generation_tokens_total"] == 1
    assert not any("success" in name or "tokens" in name for name in counted(Call([overloaded("full", 1)])))


def test_a_request_that_kills_two_replicas_is_not_sent_to_a_third():
    losses = []
    stream = stream_of(Call([], dies=True), Call([ACCEPTED], dies=True), Call([]), losses=losses)
    with pytest.raises(ApiError, match=LOST):
        asyncio.run(read(stream))
    assert losses == [True, False]


def test_a_refusal_of_the_replica_is_raised_here_and_is_not_retried():
    losses = []
    with pytest.raises(ApiError, match="too many") as raised:
        asyncio.run(read(stream_of(Call([overloaded("too many", 7)]), losses=losses)))
    assert raised.value.status == 429 and raised.value.headers == {"Retry-After": "7"} and losses == []


def test_an_error_survives_pickle():
    error = ApiError(400, "no", code="c", param="p", headers={"A": "b"})
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.status, copy.body(), copy.headers) == (400, error.body(), {"A": "b"})


def test_a_reader_that_leaves_cancels_the_call_once_and_does_not_retry():
    call = Call([ACCEPTED, gain("a")], dies=True)
    stream = stream_of(call, Call([]))
    stream.close()
    assert call.is_cancelled
    call.is_cancelled = False
    stream.close()
    assert not call.is_cancelled


def test_a_reader_that_closes_after_the_end_cancels_nothing():
    call = Call([ACCEPTED, gain("a", "stop")])
    stream = stream_of(call)
    asyncio.run(read(stream))
    stream.close()
    assert not call.is_cancelled


# The whole HTTP side, in front of a real engine in this process.

ENGINE = {"block_size": 16, "num_blocks": 100, "max_num_seqs": 4, "enforce_eager": True}
QUESTION = [{"role": "user", "content": "What is a KV cache?"}]


class LocalReplicas:
    """One engine in this process; each call in `deaths` ends after so many messages."""

    def __init__(self, loaded_last):
        self.replica = EngineReplica(lambda: LLM.of(*loaded_last, **ENGINE), ServerOptions())
        self.deaths = []

    async def facts(self):
        await self.replica.open()
        return self.replica.facts()

    def call(self, request):
        messages = self.replica.generate(pickle.loads(pickle.dumps(request)))
        left = self.deaths.pop(0) if self.deaths else None

        async def until_death():
            number = 0
            async for message in messages:
                if number == left:
                    await messages.aclose()
                    raise Died
                yield pickle.loads(pickle.dumps(message))
                number += 1

        return LocalCall(until_death())


class LocalCall:
    """An open call of a replica in this process."""

    def __init__(self, messages):
        self.messages, self.cancelling = messages, None

    def __anext__(self):
        return self.messages.__anext__()

    def cancel(self):
        self.cancelling = asyncio.ensure_future(self.messages.aclose())


@pytest.fixture(scope="module")
def replicas(loaded_last):
    return LocalReplicas(loaded_last)


def service_of(replicas, tokenizer, facts, metrics) -> ReplicatedService:
    return ReplicatedService(ServerOptions(), tokenizer, facts, replicas.call, (Died,), metrics)


@pytest.fixture(scope="module")
def client(replicas, loaded_last):
    metrics = ReplicaMetrics("tiny-qwen3")

    def make_service(app):
        return service_of(replicas, loaded_last[2], replicas.facts, metrics)

    with BackgroundServer(app_around(make_service, ServerOptions(), metrics)) as server:
        yield client_of(server)


@pytest.fixture(scope="module")
def alone(client):
    return client.chat.completions.create(model="tiny-qwen3", messages=QUESTION, max_tokens=16, temperature=0)


def ask(client, **options):
    return client.chat.completions.create(
        model="tiny-qwen3", messages=QUESTION, max_tokens=16, temperature=0, **options
    )


def test_the_answer_and_its_usage_are_those_of_the_engine(alone, loaded_last):
    ids = loaded_last[2].encode(loaded_last[2].apply_chat_template(QUESTION))
    [output] = LLM.of(*loaded_last, **ENGINE).generate([ids], SamplingParams(max_tokens=16), use_tqdm=False)
    assert alone.choices[0].message.content == output.outputs[0].text
    assert alone.usage.prompt_tokens == len(ids)
    assert alone.usage.completion_tokens == len(output.outputs[0].token_ids)


def test_a_stream_has_the_same_text(client, alone):
    chunks = [*ask(client, stream=True, stream_options={"include_usage": True})]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == alone.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == alone.usage.completion_tokens


def test_a_whole_answer_survives_the_death_of_its_replica(client, replicas, alone):
    replicas.deaths.append(5)
    assert ask(client).choices[0].message.content == alone.choices[0].message.content
    assert not replicas.deaths


def test_a_prompt_that_comes_back_has_the_log_probabilities_of_its_replica(client):
    """They travel once, with the first tokens of the answer."""
    asked = {"model": "tiny-qwen3", "prompt": "What is KV?", "max_tokens": 3, "logprobs": 1, "echo": True}
    [whole] = client.completions.create(**asked, temperature=0).choices
    values = whole.logprobs.token_logprobs
    assert whole.text.startswith(asked["prompt"]) and values[0] is None and None not in values[1:]
    stream = client.completions.create(**asked, temperature=0, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in stream]
    assert [value for each in chunks for value in each.token_logprobs] == pytest.approx(values)


class Late:
    """A stream whose reader comes late: the engine has the second token before the first is read."""

    sequences = (SimpleNamespace(num_cached=0, tokens=[7, 8], prompt_sampled={1: Sampled(5)}),)

    async def __aiter__(self):
        yield [Piece(0, "a", [Sampled(7)])]
        yield [Piece(0, "b", [Sampled(8)], "length")]

    def close(self):
        pass


def test_the_log_probabilities_of_a_prompt_come_once_although_the_engine_is_ahead(replicas, monkeypatch):
    async def submit(request):
        return Late()

    async def messages():
        return [message.prompt_sampled async for message in replicas.replica.generate(REQUEST)]

    fake = SimpleNamespace(check_room=lambda *counts: None, submit=submit)
    monkeypatch.setattr(replicas.replica, "service", fake)
    assert asyncio.run(messages()) == [{}, {0: {1: Sampled(5)}}, {}]


def test_a_stream_that_has_begun_ends_with_an_error_of_the_api(client, replicas, alone):
    replicas.deaths.append(5)
    text = ""
    with pytest.raises(openai.APIError, match="has died") as raised:
        for chunk in ask(client, stream=True):
            text += chunk.choices[0].delta.content or ""
    assert text and alone.choices[0].message.content.startswith(text)
    assert raised.value.body["code"] == "service_unavailable"


def test_two_deaths_are_a_503_with_the_body_of_the_api(client, replicas):
    replicas.deaths += [0, 1]
    with pytest.raises(openai.InternalServerError) as raised:
        ask(client)
    assert raised.value.status_code == 503 and raised.value.body["type"] == "server_error"


def test_a_request_that_a_replica_refuses_has_the_error_of_one_server(client):
    with pytest.raises(openai.BadRequestError, match="prompt") as raised:
        client.completions.create(model="tiny-qwen3", prompt=[5] * 5000)
    assert raised.value.body["param"] == "prompt"
    with pytest.raises(openai.BadRequestError, match="a replica takes at most"):
        client.completions.create(model="tiny-qwen3", prompt="a", n=128, extra_body={"prompt": ["a"] * 500})


def test_the_endpoints_without_an_engine_work(client, loaded_last):
    assert client.models.list().data[0].max_model_len > 0
    address = str(client.base_url).removesuffix("/v1/")
    get = openai.DefaultHttpxClient().get
    assert get(f"{address}/health").json() == {"status": "ready"}
    assert 'outcome="retried"' in get(f"{address}/metrics").text


def test_during_a_drain_requests_are_refused_in_json_and_open_ones_end(replicas, loaded_last):
    """Before Ray takes the path away, after which everything is a plain 404."""
    metrics, made = ReplicaMetrics("tiny-qwen3"), []

    async def facts():
        return replicas.replica.facts()

    def make_service(app):
        made.append(service_of(replicas, loaded_last[2], facts, metrics))
        return made[0]

    with BackgroundServer(app_around(make_service, ServerOptions(), metrics)) as server:
        [service], loop = made, server.server._loop
        with client_of(server) as other:
            stream = ask(other, stream=True, extra_body={"ignore_eos": True})
            next(iter(stream))
            draining = asyncio.run_coroutine_threadsafe(service.drain(), loop)
            until(lambda: service.state == "stopping")
            with pytest.raises(openai.InternalServerError) as refused:
                ask(other)
            error = refused.value
            assert (error.status_code, error.body["message"]) == (503, "the server is stopping")
            assert list(stream)[-1].choices[0].finish_reason == "length"
            draining.result(60)


def test_a_ray_that_does_not_start_is_one_line():
    said = not_started(TimeoutError("Timed out waiting for file x\n"))
    assert said.startswith("Ray did not start: Timed out waiting for file x; ") and "\n" not in said
    assert all(name in said for name in replica_options.PATIENCE) and len(replica_options.PATIENCE) == 2
    lines = "Traceback:\n  at x\nValueError: no such device\n\n"
    assert one_line(RuntimeError(lines)) == "ValueError: no such device"
    assert one_line(RuntimeError("")) == "RuntimeError"


def test_a_replica_whose_engine_cannot_open_says_why():
    def open_llm():
        raise ValueError("num_blocks is too large")

    async def run():
        await EngineReplica(open_llm, ServerOptions()).open()

    with pytest.raises(ValueError, match="num_blocks is too large"):
        asyncio.run(run())


def test_a_dead_engine_is_unhealthy_and_a_live_one_is_not(loaded_last):
    async def run():
        replica = EngineReplica(lambda: LLM.of(*loaded_last, **ENGINE), ServerOptions())
        await replica.open()
        replica.check_health()
        replica.service.loop.state = "dead"
        with pytest.raises(RuntimeError, match="the engine is dead"):
            replica.check_health()
        replica.service.loop.state = "ready"
        await replica.close()

    asyncio.run(run())


# Options, and the command where Ray is not installed.


def test_replicas_are_fixed_or_between_two_limits():
    assert ReplicaOptions(3).scaling == {"num_replicas": 3}
    scaling = ReplicaOptions(1, 4, target_ongoing_requests=16).scaling
    limits = {"min_replicas": 1, "max_replicas": 4, "target_ongoing_requests": 16}
    assert scaling["autoscaling_config"] == limits


@pytest.mark.parametrize(
    ("device", "reserves"),
    [("auto", {"num_cpus": 4}), ("cuda", {"num_gpus": 1}), ("hpu", {"resources": {"HPU": 1}})],
)
def test_each_replica_reserves_a_device(device, reserves):
    assert ReplicaOptions(device=device, cpus=4).actor_options == reserves


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--replicas 3 --max-replicas 2", "max_replicas is 2: give at least 3"),
        ("--replicas 2", INSTALL),
        ("--replicas 2 --api-key=", "api_key is empty"),
    ],
)
def test_the_command_ends_with_one_line(line, says, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    [said] = refused(serve.main, ["--port", "0", *line.split()]).splitlines()
    assert says in said


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_the_number_of_replicas_is_a_whole_number(value, refused):
    assert "--replicas" in refused(serve.main, ["--replicas", value])


def test_max_replicas_needs_replicas(refused):
    assert "--replicas" in refused(serve.main, ["--max-replicas", "2", "--port", "0"])


# The router of Ray, on a stand-in for its base class.


@pytest.fixture
def router(monkeypatch):
    names = ("PendingRequest", "ReplicaID", "RequestRouter", "RunningReplica")
    base = type("RequestRouter", (), {"on_replica_actor_died": lambda self, replica_id: None})
    module = ModuleType("ray.serve.request_router")
    for name in names:
        setattr(module, name, base if name == "RequestRouter" else object)
    for name in ("ray", "ray.serve"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.serve.request_router", module)
    name = "tiny_llm_server.replicas.token_router"
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module(name).TokenRouter()
    monkeypatch.delitem(sys.modules, name)
    made.initialize_state(solution="ref", block_size=4)
    return made


A, B = (SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab")


def pending(number, request):
    arguments = [] if request is None else [request]
    return SimpleNamespace(args=arguments, metadata=SimpleNamespace(internal_request_id=number))


def route(router, number, request, among=(A, B)):
    ranks = asyncio.run(router.choose_replicas(list(among), pending(number, request)))
    names = [one.replica_id.unique_id for rank in ranks for one in rank]
    assert sorted(names) == [one.replica_id.unique_id for one in among], "Ray may need the others"
    return ranks[0][0]


def test_the_router_counts_a_request_when_it_is_sent_and_until_it_is_completed(router):
    assert route(router, "1", REQUEST) is A
    assert router._loads.outstanding == {"a": 7, "b": 0}, "three tokens of the prompt, four of the answer"
    assert route(router, "2", REQUEST) is B
    router.on_request_completed(A.replica_id, "1")
    assert router._loads.outstanding == {"a": 0, "b": 7}


def test_every_prompt_and_every_answer_of_a_request_counts(router):
    params = SamplingParams(max_tokens=4, n=2)
    route(router, "1", ServiceRequest([[1], [2, 3]], params, "interactive", ["a", "b"]))
    assert router._loads.outstanding["a"] == 1 + 2 + 4 * 4


def test_the_end_of_a_lost_call_does_not_end_the_one_that_replaced_it(router):
    assert route(router, "1", REQUEST) is A
    assert route(router, "1", REQUEST, among=[B]) is B
    router.on_request_completed(A.replica_id, "1")
    assert router._loads.outstanding == {"b": 7}


def test_what_is_no_generation_goes_anywhere(router):
    assert asyncio.run(router.choose_replicas([A, B], pending("1", None))) == [[A, B]]
    assert asyncio.run(router.choose_replicas([A, B], None)) == [[A, B]]
