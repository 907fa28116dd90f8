"""Schemathesis sends the server what its own schema allows, and what it does not."""

import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tiny_llm_extensions.llm import LLM
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api import schemas, strict_body
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.server import create_app

# The longest answer that a request may ask for fills the context: here it is short.
ENGINE = {"max_model_len": 32, "max_num_seqs": 4, "num_blocks": 32, "block_size": 4}
# A schema cannot say how long a prompt is in tokens: of what it allows, some is refused with 400.
BEYOND_SCHEMA = [positive_data_acceptance]
SCHEMA = schemathesis.openapi.from_dict(create_app(lambda: None).openapi())
OPERATIONS = {f"{each.ok().method} {each.ok().path}": each.ok() for each in SCHEMA.get_all_operations()}
HELLO = [{"role": "user", "content": "hello"}]


def is_known(body):
    """Whether this is a class of bodies that have known fields."""
    return isinstance(body, type) and issubclass(body, schemas.StrictBody) and bool(body.known)


@pytest.fixture(scope="module")
def served(loaded_last) -> Iterator[BackgroundServer]:
    app = create_app(lambda: LLM.of(*loaded_last, **ENGINE), ServerOptions(max_queue=300))
    with BackgroundServer(app) as made:
        yield made


def served_ones(case):
    """The same case with a prompt that fits: few random ones do."""
    for name, value in {"prompt": "hello", "messages": HELLO, "n": 2}.items():
        if name in case.body:
            case.body[name] = value
    if "n" not in case.body and "prompt" in case.body:  # /tokenize takes one of them
        case.body.pop("messages", None)
    return case


def test_the_schema_has_every_endpoint():
    assert {"post /v1/completions", "post /v1/chat/completions", "post /tokenize"} < OPERATIONS.keys()
    assert {"get /health", "get /ready", "get /metrics", "get /v1/models"} < OPERATIONS.keys()


def test_the_schema_has_every_route_and_method():
    page = SimpleNamespace(html="")
    app = create_app(lambda: None, ServerOptions(live_controls=True), page)
    routes = [route for route in app.routes if route.path != app.openapi_url]
    served = {(route.path_format, method.lower()) for route in routes for method in route.methods}
    paths = app.openapi()["paths"].items()
    documented = {(path, method) for path, operations in paths for method in operations}
    assert served == documented and ("/ping", "post") in served


@pytest.mark.parametrize("body", [body for body in vars(schemas).values() if is_known(body)])
def test_the_schema_allows_exactly_the_known_fields_that_change_nothing(body):
    properties = body.model_json_schema()["properties"]
    allowed = {name: jsonschema_rs.validator_for(properties[name]) for name in body.known}
    for name, values in body.known.items():
        accepted = ["any", 3] if values is strict_body.ANYTHING else values
        assert all(allowed[name].is_valid(value) for value in (None, *accepted)), name
        other = "no value of this field"
        assert allowed[name].is_valid(other) == strict_body.changes_nothing(other, values), name


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_one_that_the_schema_documents(name, served):
    operation, seen = OPERATIONS[name], set()
    cases, has_body = operation.as_strategy(), bool(list(operation.body))
    if has_body:
        cases |= operation.as_strategy().map(served_ones) | operation.as_strategy(GenerationMode.NEGATIVE)

    options = {"phases": [Phase.generate], "suppress_health_check": list(HealthCheck)}

    @settings(max_examples=15, deadline=None, database=None, derandomize=True, **options)
    @given(cases)
    def fuzz(case):
        response = case.call(base_url=served.url)
        seen.add(response.status_code)
        case.validate_response(response, excluded_checks=BEYOND_SCHEMA)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the fuzzer
        fuzz()
    assert {200, 400} <= seen or not has_body


STREAMS = {"post /v1/completions": {"prompt": "hello"}, "post /v1/chat/completions": {"messages": HELLO}}


@pytest.mark.parametrize(("name", "asked"), STREAMS.items())
def test_every_event_of_a_stream_is_one_that_the_schema_documents(name, asked, served):
    case = OPERATIONS[name].Case(body={**asked, "stream": True, "max_tokens": 2})
    response = case.call(base_url=served.url)
    case.validate_response(response)
    assert response.headers["content-type"][0].startswith("text/event-stream")


def test_another_method_is_told_all_methods_of_a_path_with_two_routes(served):
    response = OPERATIONS["post /ping"].Case(method="OPTIONS").call(base_url=served.url)
    assert response.status_code == 405 and response.headers["allow"] == ["GET, HEAD, POST"]


def test_nothing_is_left_of_all_these_requests(served):
    service = served.server.service
    assert service.loop.state == "ready" and service.loop.num_open == 0
    allocator = service.llm.engine.allocator
    assert allocator.num_free == allocator.num_blocks
