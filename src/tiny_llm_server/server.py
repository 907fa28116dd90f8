"""The HTTP server: OpenAI's API, probes, metrics and a live page around one engine.

Knows requests and answers as JSON. What serves them is the `EngineLoop` of a solution; the page comes from outside.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from importlib import metadata
from typing import Protocol

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import Event
from tiny_llm_extensions.llm import LLM

from .openai_api import answer_schemas, schemas
from .openai_api.errors import ERRORS, HEADER, WRONG, ApiError, add_error_handlers, not_serving
from .openai_api.generation import add_completions
from .openai_api.live_page import LiveFeed, LivePage, StepBudget, add_live_controls, add_page, tab_leaves
from .openai_api.metrics import EngineMetrics
from .openai_api.middleware import Guard, RequestIds, SteppedRoute
from .openai_api.server_log import ThroughputLog
from .openai_api.server_options import ServerOptions
from .openai_api.service import EngineService
from .openai_api.service_contract import ModelService, RunningService
from .openai_api.submission import chat_ids, check_ready, prompt_ids, service_of, text_of
from .openai_api.tool_use import template_variables


class Metrics(Protocol):
    """What `GET /metrics` shows."""

    def text(self) -> bytes: ...

    def count_refusal(self, status: int) -> None: ...


def create_app(
    open_llm: Callable[[], LLM], options: ServerOptions | None = None, page: LivePage | None = None
) -> FastAPI:
    """The server as an ASGI application. Its lifespan opens the engine and closes it.

    Args:
        open_llm: makes the `LLM`; called on the engine's thread.
        options: see `ServerOptions`.
        page: what `GET /` shows, with `/events`, `/answers` and `/step_budget`, which else do not exist.
    """
    options = options or ServerOptions()
    metrics = EngineMetrics(options.model_name)

    def make_service(app: FastAPI) -> EngineService:
        loop = asyncio.get_running_loop()

        def listeners(engine: LLMEngine) -> list[Callable[[Event], object]]:
            metrics.watch(engine)
            if page is None:
                return [metrics]
            app.state.budget = StepBudget(engine)
            app.state.feed = LiveFeed(page, engine, loop, partial(tab_leaves, app))
            return [metrics, app.state.feed]

        return EngineService(open_llm, options, listeners)

    return app_around(make_service, options, metrics, page)


def app_around(
    make_service: Callable[[FastAPI], ModelService],
    options: ServerOptions,
    metrics: EngineMetrics,
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

    async def report(service: RunningService) -> None:
        """Write about throughput, once there are requests to serve."""
        while options.log_stats and service.context is None:
            await asyncio.sleep(1)
        if options.log_stats:
            await ThroughputLog(metrics.value).run()

    app = app_shell(make_service, options, metrics, sends_ids, report)
    add_models(app)
    add_completions(app)
    if page is not None:
        add_page(app, page)
    if page is not None and options.live_controls:
        add_live_controls(app)
    return app


async def no_report(service: RunningService) -> None:
    """Write nothing."""


def app_shell(
    make_service: Callable[[FastAPI], RunningService],
    options: ServerOptions,
    metrics: Metrics,
    sends_ids: bool = True,
    report: Callable[[RunningService], Coroutine[object, object, None]] = no_report,
) -> FastAPI:
    """What is the same for every server: middleware, errors, probes, and a service that runs while the app does.

    Args:
        make_service, options, metrics, sends_ids: as for `app_around`.
        report: runs beside the service.
    """

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
    app.state.feed = app.state.budget = None  # of the page, once the engine is there
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


def add_probes(app: FastAPI, metrics: Metrics) -> None:
    """Add the probes for liveness and readiness, and the metrics."""

    @app.get("/version", responses={401: WRONG})
    async def version() -> answer_schemas.Version:
        return answer_schemas.Version(version=metadata.version("tiny-llm"))

    @app.get("/ping", responses={503: WRONG})
    @app.post("/ping", responses={413: WRONG, 503: WRONG})
    @app.get("/health", responses={503: WRONG})
    async def health(request: Request) -> dict[str, str]:
        """200 once the engine is ready, and until it is dead: clients that wait for 200 may send requests."""
        service = service_of(request)
        if service.state in ("starting", "dead"):
            raise not_serving(service.state)
        address = getattr(service, "kv_address", None)  # replicas have no such address
        return {"status": service.state} | ({"kv_transfer": address} if address else {})

    @app.get("/ready", responses={503: WRONG})
    async def ready(request: Request) -> dict[str, str]:
        """200 while requests are taken."""
        check_ready(service_of(request))
        return {"status": "ready"}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def read_metrics() -> Response:
        """Prometheus' text format."""
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)


def add_models(app: FastAPI) -> None:
    """Add the endpoints for the served model and its tokenizer."""

    def card(request: Request, name: str) -> answer_schemas.ModelCard:
        service = service_of(request)
        root, limit = service.options.model_name, service.model.max_model_len
        return answer_schemas.ModelCard(id=name, root=root, created=service.created, max_model_len=limit)

    @app.get("/v1/models", responses={401: WRONG, 503: WRONG})
    async def models(request: Request) -> answer_schemas.ModelList:
        names = service_of(request).options.model_names
        return answer_schemas.ModelList(data=[card(request, name) for name in names])

    @app.get("/v1/models/{name:path}", responses={401: WRONG, 404: WRONG, 503: WRONG})
    async def model(request: Request, name: str) -> answer_schemas.ModelCard:
        if name not in service_of(request).options.model_names:
            raise ApiError(404, "there is no such model", param="model", code="model_not_found")
        return card(request, name)

    @app.post("/tokenize", responses={**ERRORS, 503: WRONG})
    async def tokenize(request: Request, body: schemas.TokenizeBody) -> answer_schemas.TokenizeAnswer:
        service = service_of(request)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages")
        limit = service.model.max_model_len
        if body.messages is not None:
            names = {**service.options.chat_template_kwargs, **template_variables(body)}
            ids = await chat_ids(service, body.messages, body.add_generation_prompt, names)
        else:
            [ids] = await prompt_ids(service, [body.prompt or ""], body.add_special_tokens is not False)
        return answer_schemas.TokenizeAnswer(count=len(ids), max_model_len=limit, tokens=ids)

    @app.post("/detokenize", responses={**ERRORS, 503: WRONG})
    async def detokenize(request: Request, body: schemas.DetokenizeBody) -> answer_schemas.DetokenizeAnswer:
        return answer_schemas.DetokenizeAnswer(prompt=await text_of(service_of(request), body.tokens))
