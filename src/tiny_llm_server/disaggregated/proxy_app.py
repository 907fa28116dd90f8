"""The proxy as an app: the probes of any server, and every other path of the API by an engine."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from tiny_llm_engine.solutions.solution import resolve_serving

from ..openai_api.server_options import ServerOptions
from ..openai_api.submission import check_ready
from ..server import app_shell
from .engines import ProxiedEngine
from .proxy_metrics import ProxyMetrics
from .proxy_service import ProxyService

BLOCK = 32  # numbers of `ClientRequest.prompt`: the grain in which prefixes are compared
PATHS = ("/v1/{rest:path}", "/tokenize", "/detokenize")


def create_proxy_app(options: ServerOptions, engines: Sequence[ProxiedEngine], least: int) -> FastAPI:
    """The proxy in front of these engines.

    Args:
        least: tokens of a prompt that is computed elsewhere, see `SplitLoads`.
    """
    names: Any = resolve_serving(options.solution)
    loads = names.SplitLoads(names.ReplicaLoads(BLOCK), names.ReplicaLoads(BLOCK), least)
    metrics = ProxyMetrics(engines, loads)
    app = app_shell(lambda app: ProxyService(options, engines, loads, metrics), options, metrics)

    async def passed_on(request: Request) -> Response:
        check_ready(app.state.service)
        return await app.state.service.respond(request)

    for path in PATHS:
        app.add_route(path, passed_on, ["GET", "POST"], include_in_schema=False)
    return app
