"""`bench-serve`: prompts as texts, figures of the clients, the search for the capacity; and a whole run."""

import asyncio
import json
import math
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from rich.console import Console

from benchmarks import report as common
from benchmarks import serve as command
from benchmarks.serve import ServingPlan
from benchmarks.serving import processes, report
from benchmarks.serving.capacity import RESOLUTION, capacity
from benchmarks.serving.client import ENDPOINTS, Client, ServedRequest, api_url, is_loopback, served_model
from benchmarks.serving.load import Load, Texts, figures, goodput_of, send
from benchmarks.serving.processes import Place, Server, our_server, running
from tiny_llm_kit.commands import serve
from tiny_llm_kit.engine.arguments import engine_options
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.model.tokenizer import load_tokenizer
from tiny_llm_kit.trace import provenance

PIECE = 0.002  # seconds per piece of the stand-in server


# How a stream may end that is no answer, by the name of the model.
BROKEN = {
    "cut": "data: {",
    "ends early": "",
    "a list": "data: [1, 2]\n\n",
    "a number": "data: 5\n\n",
    "choices": 'data: {"choices": 5}\n\n',
    "no delta": 'data: {"choices": [{"index": 0}]}\n\n',
    "usage": 'data: {"choices": [], "usage": {"prompt_tokens": "many", "completion_tokens": []}}\n\n',
    "no JSON": "data: {]\n\n",
    "bytes": "data: \udcff\n\n",
    "an error": 'data: {"error": "gone"}\n\n',
}


class StandIn:
    """A server that streams a word per token, and remembers what it was asked."""

    def __init__(self):
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []
        self.headers: list[dict] = []
        self.paths: list[str] = []
        self.open = self.most_open = 0
        self.models: list[str] | None = ["stand-in"]  # None: nobody says
        self.app = FastAPI()
        self.app.post("/v1/completions")(self.complete)
        self.app.post("/v1/chat/completions")(self.complete)
        self.app.get("/v1/models")(self.list_models)

    async def list_models(self, request: Request):
        if request.headers["authorization"] == "Bearer wrong":
            return JSONResponse({"error": {"message": "a key is needed"}}, status_code=401)
        if self.models == ["starting"]:
            return JSONResponse({"error": {"message": "the server is starting"}}, status_code=503)
        if self.models == ["no JSON"]:  # mlx-lm's server, where nothing was ever downloaded
            return Response("", media_type="application/json")
        if self.models is None:
            return JSONResponse({"detail": "Not Found"}, status_code=404)
        return {"object": "list", "data": [{"id": each, "object": "model"} for each in self.models]}

    async def complete(self, request: Request):
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization"))
        self.headers.append(dict(request.headers))
        self.paths.append(request.url.path)
        if body["model"] == "full":
            return JSONResponse({"error": {"message": "the queue is full"}}, status_code=429)
        return StreamingResponse(
            self.stream(body, "chat" in request.url.path), media_type="text/event-stream"
        )

    async def stream(self, body: dict, is_chat: bool):
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        model = body["model"]
        for number in range(body["max_tokens"]):
            await asyncio.sleep(PIECE)
            choice = self.choice(" x", is_chat)
            if number < 2 and model in ("reasoning", "reasoning_content"):
                choice["delta"] = {model: " x"}
            yield self.event(choices=[choice])
        if model in BROKEN:
            self.open -= 1
            yield BROKEN[model]
            if model == "cut":
                raise RuntimeError("the connection is cut")
            return
        if body["model"] == "ends":
            yield self.event(choices=[{**self.choice("", is_chat), "finish_reason": "stop"}])
        self.open -= 1
        usage = {"prompt_tokens": 11, "completion_tokens": body["max_tokens"], "total_tokens": 12}
        yield self.event(choices=[], usage=usage)
        yield "data: [DONE]\n\n"

    @staticmethod
    def choice(text: str, is_chat: bool) -> dict:
        return {"index": 0, **({"delta": {"content": text}} if is_chat else {"text": text})}

    @staticmethod
    def event(**values) -> str:
        return f"data: {json.dumps({'id': '1', 'object': 'x', 'created': 0, 'model': 'm', **values})}\n\n"


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(made.app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield made
        server.should_exit = True
        thread.join()


def load_of(count: int, answer: int = 4, gap: float = 0.0) -> Load:
    return Load("", ("hello",) * count, (answer,) * count, tuple(gap * number for number in range(count)))


@pytest.mark.parametrize("name", ["random", "sharegpt-like", "shared-prefix"])
def test_prompts_are_texts_of_as_many_tokens_as_were_asked_for(name):
    tokenizer = load_tokenizer("tiny-qwen3")
    load = Texts(tokenizer).load(name, (12, 60, 5), 8.0, 1.0, seed=4)
    lengths = [len(tokenizer.encode(text)) for text in load.prompts]
    assert f"{sum(lengths):,} tokens of prompts" in load.says
    assert name == "sharegpt-like" or lengths == [60] * 12
    assert load == Texts(tokenizer).load(name, (12, 60, 5), 8.0, 1.0, seed=4)
    assert load.prompts != Texts(tokenizer).load(name, (12, 60, 5), 8.0, 1.0, seed=5).prompts


def test_prompts_of_a_file_are_sent_as_they_are(tmp_path):
    (tmp_path / "prompts.txt").write_text("What is RoPE?\nWhat is a KV cache?\n", encoding="utf-8")
    load = Texts(load_tokenizer("tiny-qwen3")).load(str(tmp_path / "prompts.txt"), (2, 1, 7), 1.0, 1.0, 0)
    assert load.prompts == ("What is RoPE?", "What is a KV cache?")
    assert load.answers == (7, 7)


def seen(due: float, sent: float, pieces: list[float], end: float) -> ServedRequest:
    made = ServedRequest(sent, finished_time=end, due=due, prompt_tokens=10, output_tokens=len(pieces))
    made.add_tokens(pieces)
    return made


def test_figures_of_three_requests_one_of_which_failed():
    requests = [
        seen(0.0, 0.0, [0.1, 0.2, 0.4], 0.5),
        seen(0.5, 0.51, [1.01, 1.06, 1.11], 1.2),
        ServedRequest(1.0, due=1.0, error="APIError: gone"),
    ]
    found = figures(requests, {"ttft": 200, "tbt": 150})
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, {"APIError: gone": 1})
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    assert found["duration"] == pytest.approx(1.2)
    assert found["output_throughput"] == pytest.approx(5.0)
    assert found["ttft_p50_ms"] == pytest.approx(100) and found["ttft_p99_ms"] == pytest.approx(500)
    assert found["tpot_p99_ms"] == pytest.approx(150) and found["e2el_p99_ms"] == pytest.approx(690)
    assert found["tbt_p50_ms"] == pytest.approx(50) and found["longest_gap_ms"] == pytest.approx(200)
    assert found["send_delay_p99_ms"] == pytest.approx(10)


def test_goodput_counts_requests_all_of_whose_targets_are_met_and_failures_are_not():
    requests = [
        seen(0.0, 0.0, [0.1, 0.2, 0.4], 1.0),  # a gap of 200 ms
        seen(0.0, 0.0, [0.1, 0.2, 0.3], 1.0),
        seen(0.0, 0.0, [0.3, 0.4, 0.5], 1.0),  # TTFT 300 ms
        ServedRequest(0.0, due=0.0, error="APIError: gone"),
    ]
    found = figures(requests, {"ttft": 200, "tbt": 150})
    assert found["attainment"] == 0.25
    assert found["request_goodput"] == pytest.approx(1.0)


def test_targets_of_goodput():
    assert goodput_of(["ttft:500", "tpot:50.5"]) == {"ttft": 500, "tpot": 50.5}
    for wrong in ("ttft", "ttft:", "ttft:0", "latency:3", "tbt:x"):
        with pytest.raises(ValueError, match="NAME:MILLISECONDS"):
            goodput_of([wrong])


@pytest.mark.parametrize("start", [0.1, 3.0, 50.0])
def test_capacity_is_the_highest_rate_that_meets_the_target(start):
    found = capacity(lambda rate: 1.0 if rate <= 3.7 else 0.89, 0.9, start)
    assert 3.7 / RESOLUTION <= found <= 3.7


def test_a_server_that_never_meets_the_target_has_no_capacity():
    assert capacity(lambda rate: 0.5, 0.9, 1.0) == 0.0


def test_requests_that_may_come_all_at_once_are_too_few_to_find_a_capacity():
    asked = []
    assert capacity(lambda rate: asked.append(rate) or 1.0, 0.9, 1.0) == math.inf
    assert asked == [math.inf]


def test_each_piece_has_its_time_and_tokens_are_those_that_the_server_counts(stand_in):
    [one] = asyncio.run(send(Client(stand_in.url, "m"), load_of(1, 6)))
    assert (one.error, len(one.token_times), one.prompt_tokens, one.output_tokens) == (None, 6, 11, 6)
    assert one.ttft >= PIECE and min(one.gaps) > 0 and one.latency >= 6 * PIECE
    [body] = stand_in.bodies
    assert (body["prompt"], body["max_tokens"], body["temperature"]) == ("hello", 6, 0)
    assert body["stream"] is True and body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_an_address_may_have_the_path_that_clients_want(url):
    assert api_url(url) == "http://h:1/v1"


def test_chat_completions_key_and_further_fields(stand_in):
    client = Client(stand_in.url, "m", "secret", "/v1/chat/completions", {"ignore_eos": True})
    [one] = asyncio.run(send(client, load_of(1)))
    assert len(one.token_times) == 4
    assert stand_in.bodies[0]["messages"] == [{"role": "user", "content": "hello"}]
    assert stand_in.bodies[0]["ignore_eos"] is True
    assert stand_in.keys == ["Bearer secret"]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_an_answer_that_ends_at_once_is_complete_and_one_without_an_end_is_not(stand_in, endpoint):
    for model, pieces, error in (("ends", 1, None), ("m", 0, "the answer had neither text nor an end")):
        [one] = asyncio.run(send(Client(stand_in.url, model, endpoint=endpoint), load_of(1, 0)))
        assert (len(one.token_times), one.error) == (pieces, error)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("model", BROKEN)
def test_a_stream_that_breaks_is_one_failed_request(stand_in, model, endpoint, caplog):
    """Whatever it breaks with; the figures of the others stay."""
    requests = asyncio.run(both(stand_in, model, endpoint))
    errors = [one.error for one in requests]
    assert errors[1:] == [None, None] and errors[0], errors
    found = figures(requests)
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (2, 1, 8)


async def both(stand_in, model, endpoint) -> list[ServedRequest]:
    """One request of a model that breaks, and two of another one."""
    broken, whole = (send(Client(stand_in.url, name, endpoint=endpoint), load_of(count))
                     for name, count in ((model, 1), ("ends", 2)))  # fmt: skip
    return [each for listed in await asyncio.gather(broken, whole) for each in listed]


@pytest.mark.parametrize("choices", [None, []])
def test_a_last_chunk_without_choices_has_the_numbers_of_tokens(choices):
    seen, client = ServedRequest(0.0, due=0.0), Client("http://h", "m")
    usage = SimpleNamespace(prompt_tokens=3, completion_tokens=None)
    client._note(seen, SimpleNamespace(choices=choices, usage=usage))
    assert (seen.prompt_tokens, seen.output_tokens, seen.has_end) == (3, 0, True)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_what_a_model_thinks_is_text_of_its_answer(stand_in, field):
    """Its first token is the first that the client sees."""
    [one] = asyncio.run(send(Client(stand_in.url, field, endpoint=ENDPOINTS[1]), load_of(1, 6)))
    assert (one.error, len(one.token_times), len(one.gaps)) == (None, 6, 5)


def test_requests_are_sent_at_their_times_and_not_more_than_are_allowed(stand_in):
    client = Client(stand_in.url, "m")
    spread = asyncio.run(send(client, load_of(4, 1, gap=0.05)))
    assert [one.due - spread[0].due for one in spread] == pytest.approx([0, 0.05, 0.1, 0.15])
    assert all(one.arrival_time >= one.due for one in spread)
    stand_in.most_open = 0
    asyncio.run(send(client, load_of(9), max_concurrency=2))
    assert stand_in.most_open == 2


def test_a_server_that_refuses_is_a_result_and_is_not_asked_twice(stand_in):
    [one] = asyncio.run(send(Client(stand_in.url, "full"), load_of(1)))
    assert one.error.startswith("RateLimitError") and len(stand_in.bodies) == 1


def test_a_whole_run_against_a_server_that_runs_already(stand_in, tmp_path, capsys):
    file = tmp_path / "found.json"
    line = f"--base-url {stand_in.url} --api-key secret --num-prompts 6 --input-len 9 --output-len 3 --request-rate"
    command.main([*line.split(), "200", "inf", "--goodput", "ttft:600000", "--capacity", "--json", str(file)])
    result, said = json.loads(file.read_text(encoding="utf-8")), capsys.readouterr().out
    assert [run["rate"] for run in result["runs"]["server"]] == [200, float("inf")]
    assert all(run["completed"] == 6 and run["attainment"] == 1 for run in result["runs"]["server"])
    assert result["capacity"] == {"server": [math.inf]}
    assert {body["model"] for body in stand_in.bodies} == {"stand-in"}
    assert len({body["prompt"] for body in stand_in.bodies}) == len(stand_in.bodies)  # nothing is cached
    assert "secret" not in file.read_text(encoding="utf-8") + said
    assert "100%" in said and "give more --num-prompts" in said
    assert said.startswith("stand-in, an OpenAI-compatible server") and "float32" not in said, said


def test_a_command_line_of_vllms_benchmark(stand_in, tmp_path, capsys):
    line = (
        f"--backend openai-chat --endpoint /v1/chat/completions --base-url {stand_in.url} --dataset-name random "
        "--random-input-len 9 --random-output-len 3 --random-range-ratio 0.5 --random-prefix-len 4 --num-prompts 5 "
        "--num-warmups 0 --request-rate inf --burstiness 1.0 --max-concurrency 2 --ignore-eos --seed 1 "
        "--header x-run=7 x-note=a=b --percentile-metrics ttft,itl,e2el --metric-percentiles 25,99.5 "
        f"--save-result --result-dir {tmp_path}/new --result-filename one.json --extra-body"
    )
    command.main([*line.split(), '{"min_p": 0.1}'])
    said = capsys.readouterr().out
    assert len(stand_in.bodies) == 5 and stand_in.most_open <= 2
    assert set(stand_in.paths) == {"/v1/chat/completions"}
    assert all(body["min_p"] == 0.1 and body["ignore_eos"] is True for body in stand_in.bodies)
    assert all(body["skip_special_tokens"] is False for body in stand_in.bodies), "each token has a time"
    assert all((each["x-run"], each["x-note"]) == ("7", "a=b") for each in stand_in.headers)
    assert len({body["messages"][0]["content"][:10] for body in stand_in.bodies}) == 1, "the prefix"
    words = said.split()  # headings are broken into lines
    assert [words.count(each) for each in ("TTFT", "ITL", "E2EL", "p25", "p99.5")] == [2, 2, 2, 3, 3]
    assert "TPOT" not in said
    found = json.loads((tmp_path / "new/one.json").read_text(encoding="utf-8"))
    assert (found["backend"], found["num_prompts"], found["completed"], found["model_id"]) == (
        "openai-chat",
        5,
        5,
        "stand-in",
    )
    for name in ("ttft", "tpot", "itl", "e2el"):
        least, middle, most = (found[f"{statistic}_{name}_ms"] for statistic in ("p25", "median", "p99.5"))
        # One fast request of five puts the mean below the 25th percentile; none puts it above the last.
        assert 0 < least <= middle <= most and 0 < found[f"mean_{name}_ms"] <= most
        assert found[f"std_{name}_ms"] >= 0
    assert found["total_token_throughput"] == pytest.approx(
        (found["total_input_tokens"] + found["total_output_tokens"]) / found["duration"]
    )


def test_a_run_with_drafts_shows_the_time_per_token():
    """TBT is the time between pieces, and a piece has all tokens of a step."""
    without, drafts = ({"speculative_config": config} for config in (None, {"method": "ngram"}))
    headings = [[heading for heading, _, _ in report.columns(plan)] for plan in ({}, without, drafts)]
    assert headings[0] == headings[1] == ["tokens/s", "TTFT p50", "p99", "TBT p50", "p99", "gap"]
    assert headings[2] == ["tokens/s", "TTFT p50", "p99", "TPOT p50", "TBT p50", "p99", "gap"]


def test_a_kept_result_has_no_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    line = "--rounds 2 --api-key secret --header a=secret b=secret --save x --seed 3 --api-key=secret --header=a=secret"
    result = {}
    provenance.keep(Console(), result, "one", line.split())
    assert result["options"] == "--rounds 2 --seed 3"


@pytest.mark.parametrize(
    ("line", "api", "backend"),
    [
        ("", "openai", "auto"),
        ("--backend vllm --engine-backend torch", "vllm", "torch"),
        ("--backend mlx", "openai", "mlx"),  # as in the other benchmarks
    ],
)
def test_backend_names_an_api_and_engine_backend_our_port(line, api, backend):
    options = command.parsed(line.split())
    assert (options.api, options.backend, options.endpoint) == (api, backend, "/v1/completions")


def test_a_file_without_a_name_is_called_by_its_run(stand_in, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = f"--base-url {stand_in.url} --model stand-in --num-prompts 2 --output-len 2 --request-rate inf --save-result"
    command.main(line.split())
    [file] = tmp_path.iterdir()
    assert file.name.startswith("openai-infqps-stand-in-") and file.suffix == ".json"


def test_lengths_of_random_prompts_lie_around_those_that_were_asked_for():
    tokenizer = load_tokenizer("tiny-qwen3")
    load = Texts(tokenizer).load("random", (200, 40, 10), 8.0, 1.0, seed=4, prefix_len=6, range_ratio=0.5)
    lengths = [len(tokenizer.encode(text)) for text in load.prompts]
    assert (min(lengths), max(lengths)) == (6 + 20, 6 + 60)
    assert (min(load.answers), max(load.answers)) == (5, 15)
    assert len({tuple(tokenizer.encode(text)[:6]) for text in load.prompts}) == 1


@pytest.mark.parametrize(
    ("wanted", "listed", "name"),
    [
        (None, ["one"], "one"),
        ("b", ["a", "b"], "b"),
        ("models/tiny-qwen3/", ["tiny-qwen3"], "tiny-qwen3"),  # our server has the last part of a path
        ("Qwen/Qwen3-0.6B", ["Qwen/Qwen3-0.6B", "Qwen3-0.6B"], "Qwen/Qwen3-0.6B"),
        ("any", [], "any"),
        ("any", None, "any"),
        ("any", ["no JSON"], "any"),
    ],
)
def test_requests_carry_the_name_that_the_server_has(stand_in, wanted, listed, name):
    stand_in.models = listed
    assert served_model(wanted, stand_in.url, None) == name


@pytest.mark.parametrize(
    ("options", "listed", "says"),
    [
        ("", ["a", "b"], "lists a, b; give --model"),
        ("", [], "lists no models; give --model"),
        ("--model models/c", ["a", "b"], "--model models/c: the server has a, b"),
        ("--api-key wrong", ["a"], "give its key, as --api-key"),
        ("", ["starting"], "the server is starting"),
    ],
)
def test_a_server_that_cannot_be_asked_ends_with_one_line(stand_in, options, listed, says, refused):
    stand_in.models = listed
    said = refused(command.main, ["--base-url", stand_in.url, *options.split()])
    assert says in said and said.count("\n") == 1 and not stand_in.bodies


def test_servers_that_are_compared_get_the_same_prompts_in_turns(stand_in, tmp_path, monkeypatch, capsys):
    started = []

    @contextmanager
    def running(server):
        started.append(server)
        yield stand_in.url

    monkeypatch.setattr(command, "running", running)
    monkeypatch.setattr(processes, "find_spec", lambda name: True)
    file = tmp_path / "found.json"
    line = (
        "--num-prompts 2 --output-len 2 --request-rate inf --rounds 2 --compare unchunked transformers --json"
    )
    command.main([*line.split(), str(file)])
    result = json.loads(file.read_text(encoding="utf-8"))
    assert list(result["runs"]) == ["tiny-llm", "tiny-llm unchunked", "transformers serve"]
    assert all(len(runs) == 2 for runs in result["runs"].values())
    assert "--no-enable-chunked-prefill" in started[1].command and "serve" in started[2].command
    bodies = stand_in.bodies[-12:]  # after six for the warm-up: two rounds of three servers with two prompts
    assert [body.get("ignore_eos") for body in bodies[::2]] == [True, True, None, True, None, True]
    assert [body.get("skip_special_tokens") for body in bodies[:6:2]] == [False, False, None]
    assert all("eos_token_id" in body["generation_config"] for body in bodies if "ignore_eos" not in body)
    assert [len({body["prompt"] for body in bodies[start : start + 6]}) for start in (0, 6)] == [2, 2]


def test_a_baseline_that_lacks_a_package_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(processes, "find_spec", lambda name: None if name == "accelerate" else True)
    with pytest.raises(ValueError, match="pip install --no-deps accelerate"):
        processes.transformers_server("tiny-qwen3", "float32", 4, 100, 16)


def test_failures_are_shown_with_their_reason(stand_in, capsys):
    plan = ServingPlan(num_prompts=2)
    requests = [
        seen(0, 0, [0.1, 0.2], 0.3),
        ServedRequest(0, due=0, error="RateLimitError: the queue is full"),
    ]
    lines = report.failures({"plan": plan.__dict__, "runs": {"server": [figures(requests)]}})
    assert lines == ["server: 1 request: RateLimitError: the queue is full"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--capacity", "--goodput"),
        ("--base-url http://127.0.0.1:1 --compare unchunked", "--base-url"),
        ("--attainment 1.5 --goodput ttft:3", "--attainment"),
        ("--goodput fast:3", "NAME:MILLISECONDS"),
        ("--base-url http://127.0.0.1:1", "no server answers at http://127.0.0.1:1/v1"),
        ("--percentile-metrics ttft,x", "choose from ttft,tpot,itl,e2el"),
        ("--metric-percentiles 50,101", "numbers from 0 to 100"),
        ("--header x", "NAME=VALUE"),
        ("--extra-body [1]", "no object in JSON"),
        ("--random-range-ratio 1", "from 0 to below 1"),
        ("--random-prefix-len 3 --dataset shared-prefix", "for --dataset random"),
        ("--save-result --request-rate 1 2", "one rate"),
        ("--layers 2", "--layers needs random weights"),
        ("--dataset decode-heavy", "arrive among our engine's steps; use bench-throughput"),
        ("--config tiny-qwen3 --compare transformers", "random weights are our server's alone"),
    ],
)
def test_what_cannot_be_measured_ends_with_one_line(options, says, refused):
    assert says in refused(command.main, options.split())


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('loading'); import sys; sys.exit('no such model')", "^no such model$"),
        ("raise RuntimeError('a defect')", "(?s): not ready\nTraceback .*RuntimeError: a defect\n$"),
    ],
)
def test_a_server_that_does_not_start_is_shown_with_what_it_said(program, says, capsys):
    """One that refuses, with its last line; one that has a defect, with all of it."""
    with (
        pytest.raises(ValueError, match=says),
        running(Server((sys.executable, "-c", program), "m", "/ready")),
    ):
        pass
    assert "waiting for the server on http://127.0.0.1:" in capsys.readouterr().err


def test_this_machine_is_never_asked_through_a_proxy(stand_in, monkeypatch):
    """The environment's proxy does not exist here: what goes through it fails, or waits for minutes."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    url = stand_in.url
    assert served_model(None, url, None) == "stand-in"
    client = Client(url, "stand-in")

    async def one():
        async with client.connect() as connection:
            return await client.ask(connection, "a", 2, 0.0)

    assert asyncio.run(one()).error is None
    assert processes._becomes_ready(SimpleNamespace(poll=lambda: None), f"{url}/openapi.json")


@pytest.mark.parametrize(
    ("url", "is_here"),
    [
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.2", True),
        ("http://[::1]:80", True),
        ("http://10.0.0.1", False),
        ("https://example.org", False),
        ("http://localhost.example.org", False),
    ],
)
def test_addresses_of_this_machine(url, is_here):
    assert is_loopback(url) is is_here


def test_the_command_line_of_our_server_has_every_option_that_is_set():
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": None, "max_num_seqs": 4}
    line = " ".join(our_server(Place("ref", "torch", "cpu"), "tiny-qwen3", options).command)
    assert line.endswith("--no-enable-chunked-prefill --max-num-seqs 4")


def test_our_server_has_the_name_that_requests_carry():
    """Also where `--model` is a path."""
    server = our_server(Place("ref", "torch", "cpu"), "models/tiny-qwen3", {})
    taken = serve.parser().parse_args(list(server.command[server.command.index("--solution") :]))
    assert taken.model == server.model == "models/tiny-qwen3" and taken.served_model_name == [server.model]


def test_our_server_takes_every_option_of_the_plan():
    plan = ServingPlan(
        num_blocks=9, policy="slack", latency_target=0.5, config="qwen3-0.6b", random_weights=True, layers=2
    )
    options = plan.server_options()
    line = our_server(Place("ref", "torch", "cpu"), "tiny-qwen3", options).command
    taken = serve.parser().parse_args([*line[line.index("--solution") :], "--host", "h", "--port", "1"])
    assert {name: getattr(taken, name) for name in options} == options


def test_a_server_of_random_weights_reads_texts_and_answers_blanks():
    """In this process: what a command line makes, without HTTP."""
    line = "--config tiny-qwen3 --layers 1 --policy slack --max-num-seqs 2 --max-num-batched-tokens 32"
    options = serve.parser().parse_args([*line.split(), "--num-blocks", "8", "--enforce-eager"])
    options.backend = installed_backends()[0]
    llm = serve.make_llm(options, engine_options(options))
    assert len(llm.engine.network.layers) == 1 and llm.engine.loop.scheduler.profile is not None
    params = llm.engine.names.SamplingParams(max_tokens=5)
    assert [llm.generate([text], params, use_tqdm=False)[0].outputs[0].text for text in ("Hello", "a b")] == [
        " " * 5
    ] * 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "tiny-qwen3"),
        ({"random_weights": True, "model": "qwen"}, "qwen, random weights"),
        ({"config": "qwen3-0.6b", "layers": 2}, "qwen3-0.6b, 2 layers, random weights"),
    ],
)
def test_a_result_says_which_shape_was_served(options, says):
    assert common.model_name(ServingPlan(**options).__dict__) == says
