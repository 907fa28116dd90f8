"""What clients of vLLM and OpenAI send to the server: benchmark payloads, fields that change nothing, probes."""

import asyncio
import http.client
import json
import logging
import re
from collections.abc import Iterator

import pytest

from tiny_llm_extensions.llm import LLM
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api import middleware, server_log
from tiny_llm_server.openai_api.metrics import EngineMetrics
from tiny_llm_server.openai_api.middleware import RequestIds
from tiny_llm_server.openai_api.strict_body import ANYTHING, CHAT, COMPLETION, GENERATION
from tiny_llm_server.server import ServerOptions, create_app

from .asking import client_of, exchange

ENGINE = {"max_model_len": 128, "max_num_seqs": 4, "num_blocks": 64, "block_size": 16, "enforce_eager": True}


def user(content) -> dict:
    return {"role": "user", "content": content}


HELLO = [user("Hello")]
PATHS = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}


@pytest.fixture
def small_queue(server, monkeypatch):
    monkeypatch.setattr(server.app.state.service.loop, "max_open", 100)
    return server


@pytest.fixture(scope="module")
def server(loaded) -> Iterator[BackgroundServer]:
    app = create_app(lambda: LLM.of(*loaded, **ENGINE), ServerOptions(api_key="secret"))
    with BackgroundServer(app) as started:
        yield started


def send(server, method, path, body=None, **headers) -> tuple[int, http.client.HTTPMessage, str]:
    """A request with the key: status, headers and text of the answer."""
    return exchange(server, method, path, body, {"Authorization": "Bearer secret", **headers})


def ask(server, **body) -> tuple[int, dict]:
    """A completion or an answer to a conversation, as the body has a prompt or messages."""
    [path] = [path for field, path in PATHS.items() if field in body]
    status, _, text = send(server, "POST", path, {"max_tokens": 2, "temperature": 0, **body})
    return status, json.loads(text)


# ---- `vllm bench serve`

# The fields of vllm/benchmarks/lib/endpoint_request_func.py, and those that options of sampling add to them.
STREAMED = {"model": "tiny-qwen3", "stream": True, "stream_options": {"include_usage": True}}
PARTS = [user([{"type": "text", "text": "Hello"}])]
PLAIN = {"prompt": "Hello", "repetition_penalty": 1.0, "max_tokens": 6, "logprobs": None}
BENCHMARK = {"completions": PLAIN, "chat": {"messages": PARTS, "max_completion_tokens": 6}}
ADDED = {"temperature": 0.0, "min_p": 0.0, "top_k": -1, "frequency_penalty": 0.0, "presence_penalty": 0.0}


@pytest.mark.parametrize("kind", BENCHMARK)
@pytest.mark.parametrize("added", [{}, ADDED], ids=["plain", "sampling"])
def test_the_payloads_of_vllms_benchmark_are_answered(server, kind, added):
    body = {**BENCHMARK[kind], **STREAMED, "ignore_eos": True, **added}
    [path] = [path for field, path in PATHS.items() if field in body]
    status, headers, text = send(server, "POST", path, body, **{"x-request-id": "bench-1f-0"})
    assert status == 200, text
    assert headers["X-Request-Id"] == "bench-1f-0"
    *events, done = text.strip().split("\n\n")
    assert done == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert any(chunk["choices"] for chunk in chunks) and not chunks[-1]["choices"]
    assert chunks[-1]["usage"]["completion_tokens"] == 6 and chunks[-1]["usage"]["prompt_tokens"] > 0


def test_what_vllms_benchmark_asks_before_it_begins(server):
    """The name of the model and of its tokenizer; and whether client and server cut texts the same way."""
    [model] = json.loads(send(server, "GET", "/v1/models")[2])["data"]
    assert model["id"] == model["root"] == "tiny-qwen3"
    name, text = {"model": "tiny-qwen3"}, "Chunked prefill, é and 日本"
    body = {**name, "prompt": text, "add_special_tokens": False}
    tokens = json.loads(send(server, "POST", "/tokenize", body)[2])["tokens"]
    assert json.loads(send(server, "POST", "/detokenize", {**name, "tokens": tokens})[2]) == {"prompt": text}


# ---- known fields


def last_values(table) -> dict:
    """Of each field of a table the last value that changes nothing."""
    return {
        name: {"any": 1} if values is ANYTHING else values[-1] if values else None
        for name, values in table.items()
    }


@pytest.mark.parametrize("shape", ["prompt", "messages"])
def test_known_fields_are_accepted_where_they_change_nothing(server, shape):
    """Every row of the tables at its last value and as null: together, in one request."""
    table = GENERATION | (COMPLETION if shape == "prompt" else CHAT)
    asked = {"prompt": "Hello"} if shape == "prompt" else {"messages": HELLO}
    status, plain = ask(server, **asked)
    assert status == 200
    for fields in (last_values(table), dict.fromkeys(table)):
        status, found = ask(server, **fields, **asked)
        assert status == 200, found
        assert found["usage"] == plain["usage"]
        assert found["choices"] == plain["choices"]


CONTINUOUS = {"stream": True, "stream_options": {"continuous_usage_stats": False}}


@pytest.mark.parametrize("fields", [{"response_format": {"type": "text"}}, CONTINUOUS], ids=str)
def test_a_completion_with_a_field_that_changes_nothing(server, fields):
    """Which is not a row of the tables."""
    path, body = PATHS["prompt"], {"prompt": "Hello", "max_tokens": 1, **fields}
    status, _, text = send(server, "POST", path, body)
    assert status == 200, text


TAG = {"regex": "a", "structural_tag": "{}"}
NOT_SUPPORTED = [  # the last field is the one that the answer names
    ({"prompt": "a", "best_of": 2}, "best_of is 2: every answer is returned; leave it out, or give n"),
    ({"prompt": "a", "best_of": True}, "best_of: Input should be a valid integer"),
    ({"prompt": "a", "max_tokens": 0}, "greater than or equal to 1; 0 is for echo: true"),
    ({"prompt": "a", "prompt_logprobs": 1}, "not supported: prompt_logprobs: leave it out"),
    ({"prompt": "a", "priority": "low"}, "'interactive' or 'batch', or a valid integer"),
    ({"prompt": "a", "best_off": 1}, "unknown parameter best_off: leave it out"),
    ({"messages": HELLO, "modalities": ["audio"]}, 'leave it out, or send ["text"]'),
    ({"messages": HELLO, "functions": [{}]}, "not supported: functions: leave it out, or send []"),
    (
        {"prompt": "a", "structured_outputs": TAG},
        "not supported: structured_outputs.structural_tag: leave it out",
    ),
]


@pytest.mark.parametrize(("fields", "says"), NOT_SUPPORTED, ids=str)
def test_other_values_of_known_fields_are_not_supported(server, fields, says):
    status, found = ask(server, **fields)
    assert status == 400 and says in found["error"]["message"], found
    assert found["error"]["param"] == [*fields][-1]


@pytest.mark.parametrize("path", PATHS.values())
def test_numbers_of_tokens_in_every_chunk(server, path):
    """What GuideLLM asks for."""
    asked = {"prompt": "Hello"} if path == PATHS["prompt"] else {"messages": HELLO}
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {**asked, "max_tokens": 4, "ignore_eos": True, "stream": True, "stream_options": options}
    status, _, text = send(server, "POST", path, body)
    assert status == 200, text
    usages = [json.loads(event.removeprefix("data: "))["usage"] for event in text.strip().split("\n\n")[:-1]]
    counts = [usage["completion_tokens"] for usage in usages]
    assert counts == sorted(counts) and counts[-2:] == [4, 4] and counts[0] < 4
    assert {usage["prompt_tokens"] for usage in usages} == {usages[-1]["prompt_tokens"]}


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"type": "strange"}}}
WRONG_FIELDS = [  # the last field is the one that the answer names
    {"prompt": "a", "guided_regex": "("},
    {"prompt": "a", "guided_grammar": "("},
    {"prompt": "a", "guided_json": {"type": "strange"}},
    {"messages": HELLO, "response_format": SCHEMA},
    {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]},
    {"messages": HELLO, "max_tokens": None, "max_completion_tokens": 2, "min_tokens": 3},
    {"messages": HELLO, "n": 128},
    {"prompt": "a", "n": 128},
]


@pytest.mark.parametrize("fields", WRONG_FIELDS, ids=str)
def test_a_refusal_names_the_field_that_the_client_has_used(small_queue, fields):
    status, found = ask(small_queue, **fields)
    *_, param = fields
    assert (status, found["error"]["param"]) == (400, param), found
    assert param in found["error"]["message"], "also in what people read"


IMAGE = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]
WRONG_FORMS = [
    ({"prompt": "a", "stop": ["x"] * 17}, "stop: List should have at most 16 items, not 17"),
    ({"prompt": "a", "stop": ["x", ""]}, "stop[1]: String should have at least 1 character"),
    ({"prompt": "a", "stop": 5}, "stop: Input should be a valid string, or a valid list"),
    ({"prompt": [5, -1]}, "prompt[1]: Input should be greater than or equal to 0"),
    ({"prompt": [[1], [2, -3]]}, "prompt[1][1]: Input should be greater than or equal to 0"),
    ({"prompt": []}, "prompt: List should have at least 1 item, not 0"),
    ({"prompt": ["a", [5]]}, "prompt[1]: Input should be a valid string"),
    (
        {"prompt": "a", "structured_outputs": {"json": 5}},
        "structured_outputs.json: Input should be an object,",
    ),
    ({"prompt": "a", "logit_bias": {"secret": 5}}, "logit_bias: String should match"),
    ({"messages": [user([])]}, "messages[0].content: List should have at least 1 item"),
    ({"messages": [user("a"), user([{"type": "text"}])]}, "messages[1].content[0].text: Field"),
    ({"messages": [{"role": "usr", "content": "a"}]}, "messages[0].role: Input should be 'system',"),
    ({"messages": [5]}, "messages[0]: Input should be an object"),
    ({"messages": [{"role": "function", "content": "5"}]}, "messages[0]: the role function is not supported"),
    ({"messages": [*HELLO, {"role": "user"}]}, "messages[1]: content is missing: give a text"),
    ({"messages": [user(IMAGE)]}, "messages[0]: a part of type image_url is not supported: give texts"),
    ({"messages": HELLO, "tool_choice": {"type": "function"}}, "tool_choice.function: Field required"),
]


@pytest.mark.parametrize(("body", "says"), WRONG_FORMS, ids=str)
def test_of_several_forms_the_one_that_was_meant_says_what_is_wrong(server, body, says):
    status, found = ask(server, **body)
    assert status == 400 and found["error"]["message"].startswith(says), found
    assert found["error"]["param"] == re.match("[a-z_]+", says)[0]


OLDER_NAMES = {"guided_json": {"const": "ok"}, "guided_regex": '"ok"', "guided_choice": ['"ok"']}
OLDER_NAMES["guided_grammar"] = 'start: "\\"ok\\""'


@pytest.mark.parametrize(("field", "form"), OLDER_NAMES.items(), ids=OLDER_NAMES)
def test_older_names_of_structured_outputs(server, field, form):
    status, found = ask(server, prompt="a", max_tokens=9, **{field: form, "guided_decoding_backend": "auto"})
    assert status == 200 and found["choices"][0]["text"] == '"ok"', found


def test_as_many_answers_as_the_best_of(server):
    assert len(ask(server, prompt="a", n=2, best_of=2)[1]["choices"]) == 2


def test_the_official_client_may_spell_its_defaults_out(server):
    defaults = {"store": False, "metadata": {"run": "1"}, "service_tier": "auto", "tools": [], "user": "me"}
    defaults |= {"response_format": {"type": "text"}, "modalities": ["text"], "parallel_tool_calls": True}
    defaults |= {"logprobs": False, "presence_penalty": 0, "max_completion_tokens": 2, "tool_choice": "auto"}
    with client_of(server, api_key="secret") as client:
        made = client.chat.completions.create(model="tiny-qwen3", messages=HELLO, **defaults)
        assert made.usage.completion_tokens == 2
        assert made._request_id


# ---- probes, ids of requests, metrics


def test_probes_that_load_balancers_know(server):
    status, _, text = send(server, "GET", "/version")
    assert status == 200 and re.fullmatch(r"\d+\.\d+\S*", json.loads(text)["version"])
    assert [send(server, method, "/ping", Authorization="")[0] for method in ("GET", "POST")] == [200, 200]


def test_ids_that_have_no_text_are_refused(server):
    for tokens in ([10**6], [-1], ["a"]):
        status, _, text = send(server, "POST", "/detokenize", {"tokens": tokens})
        assert status == 400 and json.loads(text)["error"]["param"] == "tokens"
    assert json.loads(send(server, "POST", "/detokenize", {"tokens": []})[2]) == {"prompt": ""}


def test_a_rendered_conversation_comes_back_from_its_ids(server):
    """With its special tokens, which answers leave out."""
    tokens = json.loads(send(server, "POST", "/tokenize", {"messages": HELLO})[2])["tokens"]
    prompt = json.loads(send(server, "POST", "/detokenize", {"tokens": tokens})[2])["prompt"]
    assert prompt.startswith("<|im_start|>") and "Hello<|im_end|>" in prompt


NEW_ID = "[0-9a-f]{32}"
IDS = [("my-id", "my-id"), (None, NEW_ID), ("x" * 200, NEW_ID), ("a\tb", NEW_ID)]
STATUSES = {"/ready": 200, "/v1/completions": 400, "/none": 404, "/v1/models": 401}


@pytest.mark.parametrize(("path", "status"), STATUSES.items())
@pytest.mark.parametrize(("given", "returned"), IDS)
def test_every_answer_has_the_id_of_its_request(server, path, status, given, returned):
    added = {"Authorization": ""} if status == 401 else {}
    added |= {"X-Request-Id": given} if given else {}
    method, body = ("POST", {"prompt": 1}) if path == "/v1/completions" else ("GET", None)
    got, found, _ = send(server, method, path, body, **added)
    assert got == status
    assert re.fullmatch(returned, found["X-Request-Id"]) and len(found.get_all("X-Request-Id")) == 1


def metrics(server) -> dict[str, float]:
    text = send(server, "GET", "/metrics")[2]
    return {name: float(value) for name, value in re.findall(r"^((?:vllm|tiny_llm):\S+) (\S+)$", text, re.M)}


def test_refusals_are_counted_by_status(server):
    before = metrics(server)
    send(server, "POST", "/v1/completions", {"prompt": 1})
    send(server, "GET", "/v1/models", Authorization="Bearer wrong")
    send(server, "GET", "/v1/models", Authorization="Bearer wrong")
    after = metrics(server)
    label = lambda status: f'tiny_llm:refused_requests_total{{model_name="tiny-qwen3",status="{status}"}}'  # noqa: E731
    grown = {status: after[label(status)] - before.get(label(status), 0) for status in (400, 401)}
    assert grown == {400: 1, 401: 2}


def test_probes_are_no_refused_requests():
    """A load balancer asks until the server is ready: alerts must not fire at every start."""
    refusals = []
    for path in ("/ready", "/health", "/ping", "/metrics", "/v1/models"):
        asyncio.run(answered(RequestIds(Answers(503), refusals.append), path))
    assert refusals == [503], "of the models"


class Answers:
    """An app whose every answer has this status; it counts two kinds of tokens."""

    def __init__(self, status: int):
        self.status, self.methods = status, []

    async def __call__(self, scope, receive, send):
        self.methods.append(scope["method"])
        scope["tokens"] = lambda: {"prompt": 3, "answer": 4}
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})


async def answered(app, path, method="GET", query=b"", headers=()) -> list:
    scope = {"type": "http", "path": path, "method": method, "query_string": query, "headers": headers}
    sent = []

    async def send(message):
        sent.append(message)

    await app({**scope, "client": ("10.0.0.7", 5)}, None, send)
    return sent


def test_the_access_log_has_what_an_operator_asks_for_and_no_query(monkeypatch):
    lines = []
    monkeypatch.setattr(middleware.ACCESS, "info", lines.append)
    app = RequestIds(Answers(200), print, logs=True)
    asyncio.run(answered(app, "/v1/x\n2", query=b"api_key=secret", headers=[(b"x-request-id", b"mine")]))
    [line] = lines
    assert re.fullmatch(r"10\.0\.0\.7 GET /v1/x\\n2 200 \d+\.\d{3} s 3 prompt 4 answer mine", line), line
    asyncio.run(answered(RequestIds(Answers(200), print), "/v1/x"))
    assert len(lines) == 1, "without the option there is none"


def test_the_id_of_a_request_is_sent_once():
    """Ray's proxy sends the id that it has given to the request: two headers are one list of two ids."""
    names = {}
    for sends in (True, False):
        [start, *_] = asyncio.run(answered(RequestIds(Answers(200), print, sends=sends), "/v1/x"))
        names[sends] = [name.lower() for name, _ in start["headers"]]
    assert names[True].count(b"x-request-id") == 1 and b"x-request-id" not in names[False]


def test_lines_of_the_log_have_a_time():
    formatter = logging.Formatter(server_log.TIMED["timed"]["format"])
    line = formatter.format(logging.makeLogRecord({"msg": "hello", "levelname": "INFO"}))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO hello", line)
    handlers = {
        name: server_log.LOGGERS[name]["handlers"] for name in ("uvicorn", "tiny_llm", "tiny_llm.access")
    }
    assert all(server_log.HANDLERS[name]["formatter"] == "timed" for [name] in handlers.values())


def test_the_line_about_throughput(server):
    values = {"prompt_tokens_total": 10.0, "generation_tokens_total": 5.0, "kv_cache_usage_perc": 0.25}
    values |= dict.fromkeys(("prefix_cache_queries_total", "prefix_cache_hits_total"), 0.0)
    values |= dict.fromkeys(("num_requests_running", "num_requests_waiting"), 0)
    times = iter([0.0, 2.0, 4.0, 6.0])
    log = server_log.ThroughputLog(values.__getitem__, lambda: next(times))
    assert log.line() is None, "nothing happened"
    values |= {"prompt_tokens_total": 30.0, "generation_tokens_total": 15.0, "num_requests_running": 2}
    values |= {"prefix_cache_queries_total": 30.0, "prefix_cache_hits_total": 15.0}
    assert log.line() == (
        "Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 tokens/s, Running: 2 reqs, "
        "Waiting: 0 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 50.0%"
    )
    assert "Running: 2 reqs" in log.line(), "a request is open"
    made = EngineMetrics("tiny-qwen3")
    made.watch(server.app.state.service.engine)
    assert {name: made.value(name) for name in values}.keys() == values.keys()
    names = re.findall("^vllm:([a-z_]+){", made.text().decode(), re.M)
    assert values.keys() <= set(names), "they are the names of metrics"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/v1/models", "/version", "/openapi.json"])
def test_the_headers_of_what_can_be_read(server, path):
    got, asked = (send(server, method, path) for method in ("GET", "HEAD"))
    assert asked[0] == got[0] == 200 and asked[2] == ""
    assert asked[1]["Content-Type"] == got[1]["Content-Type"]
    status, headers, _ = send(server, "HEAD", "/v1/completions")
    assert status == 405 and headers["Allow"] == "POST"


def test_metrics_of_whole_requests_have_vllms_names(server):
    """A prompt of two blocks, twice: the second time its first block is cached."""
    before = metrics(server)
    prompt = (
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
    )
    usage = [ask(server, prompt=prompt, max_tokens=5, ignore_eos=True)[1]["usage"] for _ in range(2)]
    cached = usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    after = metrics(server)

    def grown(name: str) -> float:
        labelled = f'vllm:{name}{{model_name="tiny-qwen3"}}'
        return after[labelled] - before.get(labelled, 0)

    assert (grown("request_params_max_tokens_count"), grown("request_params_max_tokens_sum")) == (2, 10)
    assert grown("request_prefill_kv_computed_tokens_sum") == 2 * usage[0]["prompt_tokens"] - cached
    assert grown("request_time_per_output_token_seconds_count") == 2
    gaps = grown("inter_token_latency_seconds_sum")
    assert grown("request_time_per_output_token_seconds_sum") == pytest.approx(gaps / 4)
    [config] = [name for name in after if name.startswith("vllm:cache_config_info")]
    assert after[config] == 1 and 'block_size="16"' in config and 'num_gpu_blocks="64"' in config
    assert 'enable_prefix_caching="True"' in config and 'cache_dtype="auto"' in config
