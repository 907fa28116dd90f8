"""The live page: the steps of the scheduler as server-sent events, and the token budget that a page may change."""

import asyncio
import base64
import hashlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import count
from typing import Protocol

from fastapi import FastAPI, Request
from starlette.responses import HTMLResponse, Response

from ...engine.llm_engine import LLMEngine
from ...model.files import Json
from ...solution_types import Event
from . import schemas
from .errors import ERRORS, WRONG, ApiError
from .http_responses import STREAM, EventStream, event
from .service import EngineService
from .submission import check_ready

MOST_UNREAD = 256  # messages of one watcher; the oldest ones are dropped
QUIET_SECONDS = 15.0  # after which a comment is sent, so that the connection is not taken for dead


class LivePage(Protocol):
    """The interface of the live page, which is passed to the server."""

    html: str

    def hello(self, engine: LLMEngine) -> Json:
        """The first message of a watcher."""
        ...

    def message(self, event: Event, engine: LLMEngine) -> Json | None:
        """The message that watchers get for an event, None for none. Called on the engine's thread."""


class Watcher:
    """One reader of the feed, and what it has not read.

    Args:
        number: identifies this reader among those of the server.
    """

    def __init__(self, number: int):
        self.number = number
        self._unread: deque[Json] = deque(maxlen=MOST_UNREAD)
        self._has_news = asyncio.Event()

    def put(self, message: Json) -> None:
        self._unread.append(message)
        self._has_news.set()

    def wake(self) -> None:
        self._has_news.set()

    async def messages(self) -> list[Json]:
        """Unread messages; empty after a quiet time."""
        try:
            await asyncio.wait_for(self._has_news.wait(), QUIET_SECONDS)
        except asyncio.TimeoutError:
            return []
        self._has_news.clear()
        messages = list(self._unread)
        self._unread.clear()
        return messages


class LiveFeed:
    """A listener of the scheduler that passes the page's messages on to the event loop.

    Args:
        page: makes the messages.
        engine: whose events they are.
        loop: the event loop of the watchers.
        on_leave: awaited with the number of a watcher that has left.
    """

    def __init__(
        self,
        page: LivePage,
        engine: LLMEngine,
        loop: asyncio.AbstractEventLoop,
        on_leave: Callable[[int], Awaitable[object]],
    ):
        self._page, self._engine, self._loop, self._on_leave = page, engine, loop, on_leave
        self._numbers = count()
        self._watchers: set[Watcher] = set()
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        """Pass an event on; called on the engine's thread. Without watchers it costs nothing."""
        if not self._watchers:
            return
        message = self._page.message(event, self._engine)
        if message is not None:
            self._loop.call_soon_threadsafe(self._send, message)

    def _send(self, message: Json) -> None:
        for watcher in self._watchers:
            watcher.put(message)

    async def events(self, hello: Json) -> AsyncGenerator[str, None]:
        """Texts of server-sent events: the hello, then every message, until the client disconnects.

        The hello has the watcher's number as `page`.
        """
        watcher = Watcher(next(self._numbers))
        self._watchers.add(watcher)
        try:
            yield event({**hello, "page": watcher.number})
            while not self._is_closed:
                messages = await watcher.messages()
                yield "".join(map(event, messages)) or ": \n\n"
        finally:
            self._watchers.discard(watcher)
            await self._on_leave(watcher.number)

    def close(self) -> None:
        """End every watcher's stream."""
        self._is_closed = True
        for watcher in self._watchers:
            watcher.wake()


class StepBudget:
    """Changes the budget of one engine, and restores it when the page that changed it is closed.

    Every method runs on the engine's thread.

    Args:
        engine: whose scheduler has the budget.
    """

    def __init__(self, engine: LLMEngine):
        self._engine = engine
        self._page: int | None = None  # that has changed it last

    def change(self, tokens: int, page: int | None) -> None:
        """Set the budget between two steps.

        Args:
            tokens: the token budget of a step.
            page: number of the page that asks; None for a client without one, whose budget stays.

        Raises:
            ApiError: 400, the budget is out of range, or there are no chunks.
        """
        engine = self._engine
        least, most = engine.options.max_num_seqs, engine.max_num_batched_tokens
        if not engine.options.enable_chunked_prefill:
            raise ApiError(400, "this server runs whole prompts: start it with chunked prefill")
        if not least <= tokens <= most:
            raise ApiError(400, f"max_num_batched_tokens is {tokens}: give {least} to {most}")
        engine.scheduler.max_num_batched_tokens, self._page = tokens, page

    def leave(self, page: int) -> None:
        """Restore the budget if this page has changed it last."""
        if page == self._page and not self._engine.is_closed:
            self._engine.scheduler.max_num_batched_tokens = self._engine.max_num_batched_tokens
            self._page = None


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
