"""The HTTP server: OpenAI's API, probes, metrics and a live page around one engine.

Knows requests and answers as JSON. What serves them is the `EngineLoop` of a solution; the page comes from outside.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import metadata
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, Response

from ..engine.llm import LLM
from ..engine.llm_engine import LLMEngine
from ..model.files import Json
from .openai_api import schemas
from .openai_api.echo import Echo
from .openai_api.errors import ApiError, ApiErrorBody, add_error_handlers, not_serving
from .openai_api.event_stream import EventStream
from .openai_api.formats import ChatFormat, CompletionFormat
from .openai_api.generation import Generation, check_body, check_ready, sampling_params
from .openai_api.guard import Guard
from .openai_api.live_feed import LiveFeed, LivePage
from .openai_api.metrics import CONTENT_TYPE, EngineMetrics, ServerMetrics
from .openai_api.prompts import chat_ids, names_of, prompt_ids, prompts_of, text_of
from .openai_api.request_ids import HEADER, RequestIds
from .openai_api.responses import ResponseBody, ResponsesFormat
from .openai_api.server_log import ThroughputLog
from .openai_api.server_options import ServerOptions
from .openai_api.service import EngineService
from .openai_api.service_contract import ModelService, ServiceRequest
from .openai_api.step_budget import StepBudget
from .openai_api.stepped_route import SteppedRoute
from .openai_api.tool_use import (
    NewReader,
    ToolUse,
    begins_inside_thought,
    may_think,
    new_plain_reader,
    template_names,
    template_variables,
)

WRONG = {"model": ApiErrorBody}
ERRORS = dict.fromkeys((400, 401, 404, 405, 408, 413), WRONG)
BUSY = {**ERRORS, **dict.fromkeys((429, 500, 503), WRONG)}
# Each event, as OpenAPI 3.2 describes streams: a chunk in JSON, or [DONE].
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
STREAM = {200: {"content": {"text/event-stream": {"itemSchema": EVENT}}}}


def create_app(
    open_llm: Callable[[], LLM], options: ServerOptions | None = None, page: LivePage | None = None
) -> FastAPI:
    """The server as an ASGI application. Its lifespan opens the engine and closes it.

    Args:
        open_llm: makes the `LLM`; called on the engine's thread.
        options: see `ServerOptions`.
        page: what `GET /` shows, with `/events` and `/step_budget`; without it these endpoints do not exist.
    """
    options = options or ServerOptions()
    metrics = EngineMetrics(options.model_name)

    def make_service(app: FastAPI) -> EngineService:
        loop = asyncio.get_running_loop()

        def listeners(engine: LLMEngine) -> list[Any]:
            metrics.watch(engine)
            app.state.feed = app.state.budget = None
            if page is None:
                return [metrics]
            app.state.budget = StepBudget(engine)
            app.state.feed = LiveFeed(page, engine, loop, partial(page_leaves, app))
            return [metrics, app.state.feed]

        return EngineService(open_llm, options, listeners)

    return app_around(make_service, options, metrics, page)


def app_around(
    make_service: Callable[[FastAPI], Any],
    options: ServerOptions,
    metrics: ServerMetrics,
    page: LivePage | None = None,
    sends_ids: bool = True,
) -> FastAPI:
    """The server around a service of any kind: one engine, or several replicas.

    Args:
        make_service: makes what serves, an `EngineService` or a `ReplicatedService`; called on the event loop.
        options, page: as for `create_app`.
        metrics: what `GET /metrics` shows.
        sends_ids: see `RequestIds`.
    """

    async def report(service: Any) -> None:
        """Write about throughput, once there are requests to serve."""
        while options.log_stats and service.context is None:
            await asyncio.sleep(1)
        if options.log_stats:
            await ThroughputLog(metrics.value).run()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service = app.state.service = make_service(app)
        running, reporting = asyncio.create_task(service.run()), asyncio.create_task(report(service))
        yield
        await service.stop()
        reporting.cancel()
        if service.failure is not None:
            running.cancel()  # a blank task may have kept it from ending
        await asyncio.gather(running, return_exceptions=True)

    app = FastAPI(
        title="tiny-llm",
        lifespan=lifespan,
        docs_url=None,  # their scripts would come from the network
        redoc_url=None,
        redirect_slashes=False,
        root_path=options.root_path,
    )
    app.router.route_class, app.state.turn = SteppedRoute, asyncio.Lock()
    app.add_middleware(
        Guard,
        api_key=options.api_key,
        max_body_bytes=lambda: options.body_limit(service_context(app)),
        allowed_hosts=options.allowed_hosts,
    )
    app.add_middleware(RequestIds, on_refusal=metrics.count_refusal, logs=options.access_log, sends=sends_ids)
    if options.allowed_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods or ("*",),
            allow_headers=options.allowed_headers or ("*",),
            allow_credentials=options.allow_credentials,
            expose_headers=(HEADER,),
        )
    add_error_handlers(app)
    add_probes(app, metrics)
    add_models(app)
    add_completions(app)
    if page is not None:
        add_page(app, page)
    if page is not None and options.live_controls:
        add_live_controls(app)
    app.openapi = partial(openapi_schema, app)
    return app


def service_context(app: FastAPI) -> int | None:
    """Tokens of a prompt and its answer; None while that is not known."""
    service = getattr(app.state, "service", None)
    return service and service.context


def openapi_schema(app: FastAPI) -> Json:
    """The schema of the API, with OpenAI's 400 for a wrong body instead of the framework's own error."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in app.openapi_schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
    return app.openapi_schema


def service_of(request: Request) -> ModelService:
    return request.app.state.service


def add_probes(app: FastAPI, metrics: ServerMetrics) -> None:
    """Add the probes for liveness and readiness, and the metrics."""

    @app.get("/version", responses={401: WRONG})
    async def version() -> schemas.Version:
        return schemas.Version(version=metadata.version("tiny-llm"))

    @app.get("/ping", responses={503: WRONG})
    @app.post("/ping", responses={413: WRONG, 503: WRONG})
    @app.get("/health", responses={503: WRONG})
    async def health(request: Request) -> dict[str, str]:
        """200 once the engine is ready, and until it is dead: whoever waits for 200 may send requests."""
        state = service_of(request).state
        if state in ("starting", "dead"):
            raise not_serving(state)
        return {"status": state}

    @app.get("/ready", responses={503: WRONG})
    async def ready(request: Request) -> dict[str, str]:
        """200 while requests are taken."""
        check_ready(service_of(request))
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def read_metrics() -> Response:
        """Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def add_models(app: FastAPI) -> None:
    """Add the endpoints for the served model and its tokenizer."""

    def card(request: Request, name: str) -> schemas.ModelCard:
        service = service_of(request)
        root, limit = service.options.model_name, service.model.max_model_len
        return schemas.ModelCard(id=name, root=root, created=service.created, max_model_len=limit)

    @app.get("/v1/models", responses={401: WRONG, 503: WRONG})
    async def models(request: Request) -> schemas.ModelList:
        names = service_of(request).options.model_names
        return schemas.ModelList(data=[card(request, name) for name in names])

    @app.get("/v1/models/{name:path}", responses={401: WRONG, 404: WRONG, 503: WRONG})
    async def model(request: Request, name: str) -> schemas.ModelCard:
        if name not in service_of(request).options.model_names:
            raise ApiError(404, "there is no such model", param="model", code="model_not_found")
        return card(request, name)

    @app.post("/tokenize", responses={**ERRORS, 503: WRONG})
    async def tokenize(request: Request, body: schemas.TokenizeBody) -> schemas.TokenizeAnswer:
        service = service_of(request)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages")
        limit = service.model.max_model_len
        if body.messages is not None:
            names = {**service.options.chat_template_kwargs, **template_variables(body)}
            ids = await chat_ids(service, body.messages, body.add_generation_prompt, names)
        else:
            [ids] = await prompt_ids(service, [body.prompt], body.add_special_tokens is not False)
        return schemas.TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids)

    @app.post("/detokenize", responses={**ERRORS, 503: WRONG})
    async def detokenize(request: Request, body: schemas.DetokenizeBody) -> schemas.DetokenizeAnswer:
        return schemas.DetokenizeAnswer(prompt=await text_of(service_of(request), body.tokens))


def add_completions(app: FastAPI) -> None:
    """Add the two endpoints that generate."""

    @app.post("/v1/completions", response_model=schemas.CompletionAnswer, responses={**BUSY, **STREAM})
    async def completions(request: Request, body: schemas.CompletionBody) -> Response:
        """Continue a text, or several."""
        with errors_in_words_of(body):
            return await completion(service_of(request), request, body)

    @app.post("/v1/chat/completions", response_model=schemas.ChatAnswer, responses={**BUSY, **STREAM})
    async def chat(request: Request, body: schemas.ChatBody) -> Response:
        """Answer a conversation."""
        with errors_in_words_of(body):
            return await conversation(service_of(request), request, body)

    @app.post("/v1/responses", responses={**BUSY, **STREAM})
    async def responses(request: Request, body: ResponseBody) -> Response:
        """Answer a conversation, in OpenAI's newer form; plain text alone."""
        chat = body.as_chat()
        with errors_in_words_of(chat):
            return await response(service_of(request), request, body, chat)


@contextmanager
def errors_in_words_of(body: schemas.GenerationBody) -> Iterator[None]:
    """Give errors the names of fields that the client has used."""
    try:
        yield
    except ApiError as error:
        raise error.in_words_of(body.own_names) from None


async def completion(service: ModelService, request: Request, body: schemas.CompletionBody) -> Response:
    """The answer to `POST /v1/completions`."""
    check_body(service, body)
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(
            400,
            "max_tokens: give a number greater than or equal to 1; 0 is for echo: true",
            param="max_tokens",
        )
    limit = 1 if body.max_tokens == 0 else body.max_tokens
    asked = body.logprobs if body.echo else None
    params = sampling_params(service.names, body, limit, body.logprobs, prompt_logprobs=asked)
    prompts = prompts_of(body.prompt)
    service.check_room(len(prompts), params.n)
    ids = await prompt_ids(service, prompts)
    fields = names_of("prompt", len(ids))
    submitted = ServiceRequest(ids, params, body.priority or "interactive", fields)
    stream = await service.submit(submitted, bool(body.stream))
    tokenizer = service.model.tokenizer
    name, with_logprobs = service.options.model_name, body.logprobs is not None
    given = {"n": params.n, "sequences": lambda: stream.sequences, "drops_answer": body.max_tokens == 0}
    echo = Echo.of(prompts, ids, tokenizer, **given) if body.echo else None
    form = CompletionFormat(name, tokenizer, with_logprobs, params.skip_special_tokens, echo)
    return await Generation(service, stream, form, params.n).respond(request, body)


async def conversation(service: ModelService, request: Request, body: schemas.ChatBody) -> Response:
    """The answer to `POST /v1/chat/completions`."""
    stream, params, uses, reader = await opened(service, body)
    names = service.options.model_name, service.model.tokenizer
    answer = ChatFormat(*names, bool(body.logprobs), uses, reader)
    return await Generation(service, stream, answer, params.n).respond(request, body)


async def response(
    service: ModelService, request: Request, body: ResponseBody, chat: schemas.ChatBody
) -> Response:
    """The answer to `POST /v1/responses`, that of a chat completion in another form."""
    stream, _, _, reader = await opened(service, chat)
    names, read = (service.options.model_name, service.model.tokenizer), reader or new_plain_reader
    return await Generation(service, stream, ResponsesFormat(*names, body, read()), 1).respond(request, chat)


async def opened(service: ModelService, body: schemas.ChatBody) -> tuple[Any, Any, ToolUse, NewReader | None]:
    """The stream of a conversation's answers, its parameters and tools, and what makes readers of its text."""
    check_body(service, body)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    options, tokenizer = service.options, service.model.tokenizer
    uses = ToolUse.of(body, tokenizer, options.tool_call_parser)
    service.check_room(1, body.n or 1)
    names = {**options.chat_template_kwargs, **template_names(body, uses)}
    ids = await chat_ids(service, body.messages, names=names)
    limit, room = body.max_completion_tokens or body.max_tokens, service.model.max_model_len - len(ids)
    form = uses.grammar(tokenizer, min(limit or room, room)), uses.shows_special(tokenizer)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = sampling_params(service.names, body, limit, logprobs, *form)
    submitted = ServiceRequest([ids], params, body.priority or "interactive", ["messages"])
    stream = await service.submit(submitted, bool(body.stream))
    # A form leaves no room for the rest of a thought that the prompt has begun.
    begun = params.structured_outputs is None and begins_inside_thought(tokenizer, ids)
    thinks = may_think(tokenizer, options.reasoning_parser)
    reader = uses.reader_of(thinks, begun, body.include_reasoning is not False)
    return stream, params, uses, reader


def add_page(app: FastAPI, page: LivePage) -> None:
    """Add the live page and its event stream."""
    headers = {"Content-Security-Policy": policy_of(page.html), "X-Content-Type-Options": "nosniff"}

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page.html, headers=headers)

    @app.get("/events", response_class=Response, responses={**STREAM, 401: WRONG, 503: WRONG})
    async def events(request: Request) -> Response:
        """The steps of the scheduler, as server-sent events."""
        service: EngineService = request.app.state.service
        hello = await service.loop.on_worker(page.hello, service.engine)
        hello["controls"] = service.options.live_controls
        return EventStream(request.app.state.feed.events(hello))


def policy_of(html: str) -> str:
    """The Content-Security-Policy of a page: its own scripts and styles, and this server alone.

    No other page may show it in a frame, where clicks could be stolen.
    """
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def add_live_controls(app: FastAPI) -> None:
    """Add the endpoint for the token budget."""

    @app.post("/step_budget", responses={**ERRORS, 503: WRONG})
    async def step_budget(request: Request, body: schemas.BudgetBody) -> schemas.BudgetBody:
        """Set the token budget of a step, which makes chunks large or small, until the page leaves."""
        service: EngineService = request.app.state.service
        check_ready(service)
        change = request.app.state.budget.change
        await service.loop.on_worker(change, body.max_num_batched_tokens, body.page)
        return body


async def page_leaves(app: FastAPI, number: int) -> None:
    """Restore what the page has changed, between two steps."""
    service: EngineService = app.state.service
    if service.state == "ready":
        await service.loop.on_worker(app.state.budget.leave, number)
