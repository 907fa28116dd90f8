"""Schemathesis sends the server what its own schema allows, and what it does not."""

import warnings
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port, installed_backends
from tiny_llm_kit.server.background_server import BackgroundServer
from tiny_llm_kit.server.openai_api.service import ServerOptions
from tiny_llm_kit.server.server import create_app

# The longest answer that a request may ask for fills the context: here it is short.
ENGINE = {"max_model_len": 32, "max_num_seqs": 4, "num_blocks": 32, "block_size": 4}
# A schema cannot say how long a prompt is in tokens: of what it allows, some is refused with 400.
BEYOND_SCHEMA = [positive_data_acceptance]
SCHEMA = schemathesis.openapi.from_dict(create_app(lambda: None).openapi())
OPERATIONS = {f"{each.ok().method} {each.ok().path}": each.ok() for each in SCHEMA.get_all_operations()}


@pytest.fixture(scope="module")
def served() -> Iterator[BackgroundServer]:
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu", "float32")
    app = create_app(
        lambda: LLM.of(port, *load_network(port, "tiny-qwen3", "week3"), **ENGINE),
        ServerOptions(max_queue=300),
    )
    with BackgroundServer(app) as made:
        yield made


def served_ones(case):
    """The same case with a prompt that fits: few random ones do."""
    for name, value in {
        "prompt": "hello",
        "messages": [{"role": "user", "content": "hello"}],
        "n": 2,
    }.items():
        if name in case.body:
            case.body[name] = value
    if "n" not in case.body and "prompt" in case.body:  # /tokenize takes one of them
        case.body.pop("messages", None)
    return case


def test_the_schema_has_every_endpoint():
    assert {"post /v1/completions", "post /v1/chat/completions", "post /tokenize"} < OPERATIONS.keys()
    assert {"get /health", "get /ready", "get /metrics", "get /v1/models"} < OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_one_that_the_schema_documents(name, served):
    operation, seen = OPERATIONS[name], set()
    cases = operation.as_strategy()
    if name.startswith("post"):
        cases |= operation.as_strategy().map(served_ones) | operation.as_strategy(GenerationMode.NEGATIVE)

    @settings(
        max_examples=15, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases)
    def fuzz(case):
        response = case.call(base_url=served.url)
        seen.add(response.status_code)
        case.validate_response(response, excluded_checks=BEYOND_SCHEMA)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fuzzer
        fuzz()
    assert not name.startswith("post") or {200, 400} <= seen


@pytest.mark.parametrize("name", ["post /v1/completions", "post /v1/chat/completions"])
def test_every_event_of_a_stream_is_one_that_the_schema_documents(name, served):
    asked = {
        "prompt": "hello",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": 2,
    }
    other = {"post /v1/completions": "messages", "post /v1/chat/completions": "prompt"}[name]
    case = OPERATIONS[name].Case(body={key: value for key, value in asked.items() if key != other})
    response = case.call(base_url=served.url)
    case.validate_response(response)
    assert response.headers["content-type"][0].startswith("text/event-stream")


def test_nothing_is_left_of_all_these_requests(served):
    service = served.server.service
    assert service.loop.state == "ready" and service.loop.num_open == 0
    allocator = service.llm.engine.allocator
    assert allocator.num_free == allocator.num_blocks
