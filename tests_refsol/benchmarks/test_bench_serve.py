"""`bench-serve`: prompts as texts, figures of the clients, the search for the capacity; and a whole run."""

import asyncio
import json
import math
import sys
from types import SimpleNamespace

import pytest
from fastapi.responses import Response

from benchmarks import serve as command
from benchmarks.serve import ServingPlan
from benchmarks.serving import processes, report
from benchmarks.serving.capacity import RESOLUTION, capacity
from benchmarks.serving.client import ENDPOINTS, Client, ServedRequest, api_url, is_loopback, served_model
from benchmarks.serving.load import Load, Texts, figures, goodput_of, send
from benchmarks.serving.processes import Place, Server, our_server, running
from tests_refsol.benchmarks.stand_in import BROKEN, PIECE, StandIn, failure
from tiny_llm_course.commands import serve
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_extensions.arguments import engine_options


def sent(server: StandIn, model: str, count: int, answer: int = 4, gap: float = 0.0, most=None, **client):
    """The results of some requests, a gap between each two."""
    times = tuple(gap * number for number in range(count))
    load = Load("", ("hello",) * count, (answer,) * count, times)
    return asyncio.run(send(Client(server.url, model, **client), load, most))


# ---- prompts and figures


@pytest.mark.parametrize("name", ["random", "sharegpt-like", "shared-prefix"])
def test_prompts_are_texts_of_as_many_tokens_as_were_asked_for(name):
    """Random lengths lie within a share of them, after a common prefix."""
    texts = Texts(load_tokenizer("tiny-qwen3"))
    load, same, other = (texts.load(name, (12, 60, 5), 8.0, 1.0, seed=seed) for seed in (4, 4, 5))
    ids = [texts.tokenizer.encode(text) for text in load.prompts]
    assert f"{sum(map(len, ids)):,} tokens of prompts" in load.says
    assert name == "sharegpt-like" or {*map(len, ids)} == {60}
    assert load == same and load.prompts != other.prompts
    load = texts.load("random", (200, 40, 10), 8.0, 1.0, seed=4, prefix_len=6, range_ratio=0.5)
    ids = [texts.tokenizer.encode(text) for text in load.prompts]
    assert (min(map(len, ids)), max(map(len, ids))) == (6 + 20, 6 + 60)
    assert (min(load.answers), max(load.answers)) == (5, 15) and len({tuple(each[:6]) for each in ids}) == 1


def seen(due: float, pieces: list[float], end: float, sent: float | None = None) -> ServedRequest:
    made = ServedRequest(due if sent is None else sent, finished_time=end, due=due)
    made.prompt_tokens, made.output_tokens = 10, len(pieces)
    made.add_tokens(pieces)
    return made


def test_figures_are_of_what_was_answered_and_goodput_counts_failures_too():
    gone = ServedRequest(1.0, due=1.0, error="APIError: gone")
    slow_gap, late = seen(0.0, [0.1, 0.2, 0.4], 0.5), seen(0.5, [1.01, 1.06, 1.11], 1.2, sent=0.51)
    found = figures([slow_gap, late, gone], {}, (50, 99))
    assert (found["completed"], found["failed"], found["errors"]) == (2, 1, {"APIError: gone": 1})
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (20, 6)
    names = "ttft_p50 ttft_p99 tpot_p99 e2el_p99 tbt_p50 longest_gap send_delay_p99"
    expected = [100, 500, 150, 690, 50, 200, 10]
    assert [found[f"{name}_ms"] for name in names.split()] == pytest.approx(expected)
    assert (found["duration"], found["output_throughput"]) == pytest.approx((1.2, 5.0))
    late_start, good = seen(0.0, [0.3, 0.4, 0.5], 1.0), seen(0.0, [0.1, 0.2, 0.3], 1.0)
    found = figures([slow_gap, good, late_start, gone], goodput_of(["ttft:200", "tbt:150.5"]), (50,))
    assert found["attainment"] == 0.25 and found["request_goodput"] == pytest.approx(1.0)
    plan = {"plan": {"max_concurrency": 2}, "capacity": {"server": [math.inf]}}
    shown = report.remarks({**plan, "runs": {"server": [found]}})
    assert shown[0].endswith("give more --num-prompts") and shown[1] == "server: 1 request: APIError: gone"


@pytest.mark.parametrize("start", [0.1, 3.0, 50.0])
def test_capacity_is_the_highest_rate_that_meets_the_target(start):
    """0 if none does. Requests that may come all at once are too few to find it."""
    found, asked = capacity(lambda rate: 1.0 if rate <= 3.7 else 0.89, 0.9, start), []
    assert 3.7 / RESOLUTION <= found <= 3.7 and capacity(lambda rate: 0.5, 0.9, start) == 0.0
    assert capacity(lambda rate: asked.append(rate) or 1.0, 0.9, start) == math.inf and asked == [math.inf]


def test_a_run_with_drafts_shows_the_time_per_token():
    """TBT is the time between pieces, and a piece has all tokens of a step."""
    without, drafts = ({"speculative_config": config} for config in (None, {"method": "ngram"}))
    headings = [[heading for heading, _, _ in report.columns(plan)] for plan in ({}, without, drafts)]
    assert headings[0] == headings[1] == ["tokens/s", "TTFT p50", "p99", "TBT p50", "p99", "gap"]
    assert headings[2] == ["tokens/s", "TTFT p50", "p99", "TPOT p50", "TBT p50", "p99", "gap"]


# ---- one client


@pytest.mark.parametrize("model", ["m", "reasoning", "reasoning_content"])
def test_each_piece_has_its_time_and_tokens_are_those_that_the_server_counts(stand_in, model):
    """What a model thinks is text, too."""
    is_chat = model != "m"
    client = {"api_key": "secret", "endpoint": ENDPOINTS[is_chat], "extra_body": {"min_p": 0.1}}
    [one] = sent(stand_in, model, 1, 6, **client)
    assert (one.error, len(one.token_times), one.prompt_tokens, one.output_tokens) == (None, 6, 11, 6)
    assert one.ttft >= PIECE and min(one.gaps) > 0 and one.latency >= 6 * PIECE
    text = {"messages": [{"role": "user", "content": "hello"}]} if is_chat else {"prompt": "hello"}
    expected = {"model": model, **text, "max_tokens": 6, "temperature": 0, "stream": True, "min_p": 0.1}
    assert stand_in.bodies == [{**expected, "stream_options": {"include_usage": True}}]
    assert stand_in.heads[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_only_an_answer_that_ends_is_complete(stand_in, endpoint, caplog):
    """Whatever a stream breaks with is one failed request, and nothing is asked twice."""
    for model, pieces, error in (("ends", 1, None), ("m", 0, "the answer had neither text nor an end")):
        [one] = sent(stand_in, model, 1, 0, endpoint=endpoint)
        assert (len(one.token_times), one.error) == (pieces, error)
    broken = [one for model in BROKEN for one in sent(stand_in, model, 1, 1, endpoint=endpoint)]
    assert all(one.error for one in broken), dict(zip(BROKEN, broken, strict=True))
    [one] = sent(stand_in, "full", 1, endpoint=endpoint)
    assert one.error.startswith("RateLimitError") and len(stand_in.bodies) == 2 + len(BROKEN) + 1


def test_requests_are_sent_at_their_times_and_not_more_than_are_allowed(stand_in):
    spread = sent(stand_in, "m", 4, 1, gap=0.05)
    assert [one.due - spread[0].due for one in spread] == pytest.approx([0, 0.05, 0.1, 0.15])
    assert all(one.arrival_time >= one.due for one in spread)
    stand_in.most_open = 0
    sent(stand_in, "m", 9, most=2)
    assert stand_in.most_open == 2


def test_requests_carry_the_name_that_the_server_has(stand_in):
    """Our server has the last part of a path, and some servers say nothing."""
    names = ["Qwen/Qwen3-0.6B", "Qwen3-0.6B", "tiny-qwen3"]
    cases = [(name, names, name) for name in names] + [("models/tiny-qwen3/", names, "tiny-qwen3")]
    # The last one is mlx-lm's, where nothing was ever downloaded.
    silent = [], failure(404, "Not Found"), Response("", media_type="application/json")
    cases += [(None, ["one"], "one"), *(("x", each, "x") for each in silent)]
    for wanted, stand_in.models, name in cases:
        assert served_model(wanted, stand_in.url, None, {}) == name


def test_this_machine_is_never_asked_through_a_proxy(stand_in, monkeypatch):
    """The environment's proxy does not exist here: what goes through it fails, or waits for minutes."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert served_model(None, stand_in.url, None, {}) == "stand-in"
    assert [one.error for one in sent(stand_in, "m", 1)] == [None]
    ready = SimpleNamespace(poll=lambda: None)
    assert processes._becomes_ready(ready, f"{stand_in.url}/openapi.json")
    hosts = "localhost:8000/v1", "127.0.0.2", "[::1]:80", "10.0.0.1", "example.org", "localhost.example.org"
    assert [is_loopback(f"http://{host}") for host in hosts] == [True] * 3 + [False] * 3
    urls = "http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"
    assert {api_url(url) for url in urls} == {"http://h:1/v1"}, "the path that clients want may be there"


# ---- the command


def test_a_whole_run_against_a_server_that_runs_already(stand_in, bench):
    line = f"--base-url {stand_in.url} --api-key secret --num-prompts 6 --input-len 9 --output-len 3"
    said, result = bench(command.main, line, "--request-rate 200 inf --goodput ttft:600000 --capacity")
    assert [run["rate"] for run in result["runs"]["server"]] == [200, float("inf")]
    assert all(run["completed"] == 6 and run["attainment"] == 1 for run in result["runs"]["server"])
    assert result["capacity"] == {"server": [math.inf]}
    assert {body["model"] for body in stand_in.bodies} == {"stand-in"}
    assert len({body["prompt"] for body in stand_in.bodies}) == len(stand_in.bodies)  # nothing is cached
    assert "secret" not in json.dumps(result) + said
    assert "100%" in said and "give more --num-prompts" in said
    assert said.startswith("stand-in, an OpenAI-compatible server") and "float32" not in said, said


def test_a_command_line_of_vllms_benchmark(stand_in, bench, tmp_path):
    line = (
        f"--backend openai-chat --endpoint /v1/chat/completions --base-url {stand_in.url} --dataset-name random "
        "--random-input-len 9 --random-output-len 3 --random-range-ratio 0.5 --random-prefix-len 4 --num-prompts 5 "
        "--num-warmups 0 --request-rate inf --burstiness 1.0 --max-concurrency 2 --ignore-eos --seed 1 "
        "--header x-run=7 x-note=a=b --percentile-metrics ttft,itl,e2el --metric-percentiles 25,99.5 "
        f'--save-result --result-dir {tmp_path}/new --extra-body {{"min_p":0.1}}'
    )
    said, _ = bench(command.main, line)
    assert len(stand_in.bodies) == 5 and stand_in.most_open <= 2
    assert set(stand_in.paths) == {"/v1/chat/completions"}
    fields = {"min_p": 0.1, "ignore_eos": True, "skip_special_tokens": False}  # so that each token has a time
    assert all(body.items() >= fields.items() for body in stand_in.bodies)
    assert all((each["x-run"], each["x-note"]) == ("7", "a=b") for each in stand_in.heads)
    assert len({body["messages"][0]["content"][:10] for body in stand_in.bodies}) == 1, "the prefix"
    words = said.split()  # headings are broken into lines
    counts = {"TTFT": 2, "ITL": 2, "E2EL": 2, "TPOT": 0, "p25": 3, "p99.5": 3}
    assert {each: words.count(each) for each in counts} == counts
    [file] = (tmp_path / "new").iterdir()
    assert file.name.startswith("openai-chat-infqps-stand-in-") and file.suffix == ".json"
    found = json.loads(file.read_text(encoding="utf-8"))
    expected = {"backend": "openai-chat", "num_prompts": 5, "completed": 5, "model_id": "stand-in"}
    assert found.items() >= expected.items()
    for name in ("ttft", "tpot", "itl", "e2el"):
        least, middle, most = (found[f"{statistic}_{name}_ms"] for statistic in ("p25", "median", "p99.5"))
        # One fast request of five puts the mean below the 25th percentile; none puts it above the last.
        assert 0 < least <= middle <= most and 0 < found[f"mean_{name}_ms"] <= most
        assert found[f"std_{name}_ms"] >= 0
    tokens = found["total_input_tokens"] + found["total_output_tokens"]
    assert found["total_token_throughput"] == pytest.approx(tokens / found["duration"])


def test_servers_that_are_compared_get_the_same_prompts_in_turns(stand_in, started, bench, monkeypatch):
    monkeypatch.setattr(processes, "find_spec", lambda name: True)
    line = "--num-prompts 2 --output-len 2 --request-rate inf --rounds 2 --compare unchunked transformers"
    _, result = bench(command.main, line)
    assert list(result["runs"]) == ["tiny-llm", "tiny-llm unchunked", "transformers serve"]
    assert all(len(runs) == 2 for runs in result["runs"].values())
    assert "--no-enable-chunked-prefill" in started[1].command and "serve" in started[2].command
    bodies = stand_in.bodies[-12:]  # after six for the warm-up: two rounds of three servers with two prompts
    assert [body.get("ignore_eos") for body in bodies[::2]] == [True, True, None, True, None, True]
    assert [body.get("skip_special_tokens") for body in bodies[:6:2]] == [False, False, None]
    assert all("eos_token_id" in body["generation_config"] for body in bodies if "ignore_eos" not in body)
    assert [len({body["prompt"] for body in bodies[start : start + 6]}) for start in (0, 6)] == [2, 2]


def test_backend_names_an_api_and_engine_backend_our_port():
    """Or our port, as in the other benchmarks."""
    lines = "", "--backend vllm --engine-backend torch", "--backend mlx"
    found = [command.parsed(line.split()) for line in lines]
    names = [("openai", "auto"), ("vllm", "torch"), ("openai", "mlx")]
    assert [(each.api, each.backend) for each in found] == names
    assert {each.endpoint for each in found} == {"/v1/completions"}


@pytest.mark.parametrize(
    ("options", "listed", "says"),
    [
        ("", ["a", "b"], "lists a, b; give --model"),
        ("", [], "lists no models; give --model"),
        ("--model models/c", ["a", "b"], "--model models/c: the server has a, b"),
        ("--api-key wrong", ["a"], "give its key, as --api-key"),
        ("", failure(503, "the server is starting"), "the server is starting"),
    ],
)
def test_a_server_that_cannot_be_asked_ends_with_one_line(stand_in, options, listed, says, refused):
    stand_in.models = listed
    said = refused(command.main, ["--base-url", stand_in.url, *options.split()])
    assert says in said and said.count("\n") == 1 and not stand_in.bodies


# ---- servers that are started


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('loading'); import sys; sys.exit('no such model')", "^no such model$"),
        ("raise RuntimeError('a defect')", "(?s): not ready\nTraceback .*RuntimeError: a defect\n$"),
    ],
)
def test_a_server_that_does_not_start_is_shown_with_what_it_said(program, says, capsys):
    """One that refuses, with its last line; one that has a defect, with all of it."""
    server = Server((sys.executable, "-c", program), "m", "/ready")
    with pytest.raises(ValueError, match=says), running(server):
        pass
    assert "waiting for the server on http://127.0.0.1:" in capsys.readouterr().err


def test_our_server_takes_every_option_of_the_plan_and_has_the_name_that_requests_carry():
    """Also where `--model` is a path."""
    shape = {"config": "qwen3-0.6b", "random_weights": True, "layers": 2, "enable_chunked_prefill": False}
    plan = ServingPlan(num_blocks=9, policy="slack", latency_target=0.5, **shape)
    options = plan.server_options()
    server = our_server(Place("ref", "torch", "cpu"), "models/tiny-qwen3", options)
    line = [*server.command[server.command.index("--solution") :], "--host", "h", "--port", "1"]
    taken = serve.parser().parse_args(line)
    assert {name: getattr(taken, name) for name in options} == options
    assert taken.model == server.model == "models/tiny-qwen3" and taken.served_model_name == [server.model]


def test_a_server_of_random_weights_reads_texts_and_answers_blanks():
    """In this process: what a command line makes, without HTTP."""
    line = "--config tiny-qwen3 --layers 1 --policy slack --max-num-seqs 2 --num-blocks 8 --enforce-eager"
    options = serve.parser().parse_args([*line.split(), "--backend", installed_backends()[0]])
    llm = serve.make_llm(options, engine_options(options))
    assert len(llm.engine.network.layers) == 1 and llm.engine.loop.scheduler.profile is not None
    params = llm.engine.names.SamplingParams(max_tokens=5)
    answers = [each.outputs[0].text for each in llm.generate(["Hello", "a b"], params, use_tqdm=False)]
    assert answers == [" " * 5] * 2
