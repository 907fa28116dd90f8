"""The HTTP server: OpenAI's API, probes, metrics and a live page around one engine.

Knows requests and answers as JSON. What serves them is the `EngineLoop` of a solution; the page comes from outside.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, Response

from ..engine.llm import LLM, MAX_TOKENS
from ..engine.llm_engine import LLMEngine
from ..model.files import CheckpointError
from .openai_api import schemas
from .openai_api.errors import ApiError, ApiErrorBody, add_error_handlers, unavailable
from .openai_api.event_stream import EventStream
from .openai_api.formats import ChatFormat, CompletionFormat
from .openai_api.generation import Generation, check_body, check_ready, sampling_params
from .openai_api.guard import Guard
from .openai_api.live_feed import LiveFeed, LivePage
from .openai_api.metrics import CONTENT_TYPE, EngineMetrics
from .openai_api.service import EngineService, ServerOptions

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

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()

        def listeners(engine: LLMEngine) -> list[Any]:
            metrics.watch(engine)
            app.state.feed = None if page is None else LiveFeed(page, engine, loop)
            return [metrics] if page is None else [metrics, app.state.feed]

        service = app.state.service = EngineService(open_llm, options, listeners)
        running = asyncio.create_task(service.run())
        yield
        await service.stop()
        await running

    app = FastAPI(
        title="tiny-llm",
        lifespan=lifespan,
        docs_url=None,  # their scripts would come from the network
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, api_key=options.api_key, max_body_bytes=options.max_body_bytes)
    add_error_handlers(app)
    add_probes(app, metrics)
    add_models(app)
    add_completions(app)
    if page is not None:
        add_page(app, page)
    app.openapi = partial(openapi_schema, app)
    return app


def openapi_schema(app: FastAPI) -> dict[str, Any]:
    """The schema of the API, with OpenAI's 400 for a wrong body instead of the framework's own error."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in app.openapi_schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
    return app.openapi_schema


def service_of(request: Request) -> EngineService:
    return request.app.state.service


def add_probes(app: FastAPI, metrics: EngineMetrics) -> None:
    """Add the probes for liveness and readiness, and the metrics."""

    @app.get("/health", responses={503: WRONG})
    async def health(request: Request) -> dict[str, str]:
        """200 unless the engine is dead."""
        state = service_of(request).loop.state
        if state == "dead":
            raise unavailable("the engine is dead: restart the server")
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

    def card(request: Request) -> schemas.ModelCard:
        service = service_of(request)
        name, limit = service.options.model_name, service.engine.max_model_len
        return schemas.ModelCard(id=name, created=service.created, max_model_len=limit)

    @app.get("/v1/models", responses={401: WRONG, 503: WRONG})
    async def models(request: Request) -> schemas.ModelList:
        return schemas.ModelList(data=[card(request)])

    @app.get("/v1/models/{name:path}", responses={401: WRONG, 404: WRONG, 503: WRONG})
    async def model(request: Request, name: str) -> schemas.ModelCard:
        if name != service_of(request).options.model_name:
            raise ApiError(404, "there is no such model", param="model", code="model_not_found")
        return card(request)

    @app.post("/tokenize", responses={**ERRORS, 503: WRONG})
    async def tokenize(request: Request, body: schemas.TokenizeBody) -> schemas.TokenizeAnswer:
        service = service_of(request)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages")
        text = body.prompt
        if text is None:
            assert body.messages is not None  # one of the two is given
            text = rendered(service, body.messages, body.add_generation_prompt)
        ids = await service.encode(text)
        limit = service.engine.max_model_len
        return schemas.TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids)


def rendered(
    service: EngineService, messages: list[schemas.Message], add_generation_prompt: bool = True
) -> str:
    """A conversation as the text that the model reads.

    Raises:
        ApiError: 400, the model's template does not take these messages.
    """
    tokenizer = service.engine.tokenizer
    try:
        return tokenizer.apply_chat_template([each.rendered() for each in messages], add_generation_prompt)
    except CheckpointError:
        raise ApiError(400, "the model has no chat template for these messages", param="messages") from None


def add_completions(app: FastAPI) -> None:
    """Add the two endpoints that generate."""

    @app.post("/v1/completions", response_model=schemas.CompletionAnswer, responses={**BUSY, **STREAM})
    async def completions(request: Request, body: schemas.CompletionBody) -> Response:
        """Continue a text, or several."""
        service = service_of(request)
        check_body(service, body)
        params = sampling_params(service.names, body, body.max_tokens or MAX_TOKENS, body.logprobs)
        prompts = [
            await service.encode(each) if isinstance(each, str) else each for each in prompts_of(body.prompt)
        ]
        stream = service.submit(prompts, params, body.priority or "interactive", "prompt")
        form = CompletionFormat(
            service.options.model_name, service.engine.tokenizer, body.logprobs is not None
        )
        return await Generation(service, stream, form, params.n).respond(request, body)

    @app.post("/v1/chat/completions", response_model=schemas.ChatAnswer, responses={**BUSY, **STREAM})
    async def chat(request: Request, body: schemas.ChatBody) -> Response:
        """Answer a conversation."""
        service = service_of(request)
        check_body(service, body)
        if body.top_logprobs and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = sampling_params(service.names, body, body.max_completion_tokens or body.max_tokens, logprobs)
        ids = await service.encode(rendered(service, body.messages))
        stream = service.submit([ids], params, body.priority or "interactive", "messages")
        form = ChatFormat(service.options.model_name, service.engine.tokenizer, bool(body.logprobs))
        return await Generation(service, stream, form, params.n).respond(request, body)


def prompts_of(prompt: Any) -> list[Any]:
    """A list of prompts: one text, and one list of ids, is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt


def add_page(app: FastAPI, page: LivePage) -> None:
    """Add the live page, its event stream, and the endpoint for the token budget."""

    @app.get("/", response_class=HTMLResponse)
    async def index() -> str:
        return page.html

    @app.get("/events", response_class=Response, responses={**STREAM, 401: WRONG, 503: WRONG})
    async def events(request: Request) -> Response:
        """The steps of the scheduler, as server-sent events."""
        service = service_of(request)
        hello = await service.loop.on_worker(page.hello, service.engine)
        return EventStream(request.app.state.feed.events(hello))

    @app.post("/step_budget", responses={**ERRORS, 503: WRONG})
    async def step_budget(request: Request, body: schemas.BudgetBody) -> schemas.BudgetBody:
        """Set the token budget of a step, which makes chunks large or small."""
        service = service_of(request)
        await service.loop.on_worker(set_budget, service.engine, body.max_num_batched_tokens)
        return body


def set_budget(engine: LLMEngine, tokens: int) -> None:
    """Set the budget between two steps, within the limits of the engine.

    Raises:
        ApiError: 400, the budget is out of range, or there are no chunks.
    """
    least, most = engine.options.max_num_seqs, engine.max_num_batched_tokens
    if not engine.options.enable_chunked_prefill:
        raise ApiError(400, "this server runs whole prompts: start it with chunked prefill")
    if not least <= tokens <= most:
        raise ApiError(400, f"max_num_batched_tokens is {tokens}: give {least} to {most}")
    engine.scheduler.max_num_batched_tokens = tokens
