"""The live page: a feed of server-sent events for each tab, answers that come with it, and the token budget."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Protocol

from fastapi import Depends, FastAPI, Request
from starlette.responses import HTMLResponse, Response

from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import Event

from . import schemas
from .errors import ERRORS, WRONG, ApiError
from .http_responses import STREAM, EventStream, event
from .live_tabs import Tab
from .middleware import check_origin
from .service import EngineService
from .submission import check_ready

MOST_TABS = 64
KEPT_SECONDS = 300.0  # of a tab that nobody reads: it loads again, is hidden, or was closed


class LivePage(Protocol):
    """The interface of the live page, which is passed to the server."""

    html: str

    def hello(self, engine: LLMEngine) -> Json:
        """The first message of a watcher."""
        ...

    def message(self, event: Event, engine: LLMEngine) -> Json | None:
        """The message that watchers get for an event, None for none. Called on the engine's thread."""


class LiveFeed:
    """A listener of the scheduler that passes the page's messages on to the event loop, and the tabs that read them.

    Args:
        page: makes the messages.
        engine: whose events they are.
        loop: the event loop of the tabs.
        on_leave: awaited with the name of a tab that nobody reads any more.
    """

    def __init__(
        self,
        page: LivePage,
        engine: LLMEngine,
        loop: asyncio.AbstractEventLoop,
        on_leave: Callable[[str], Awaitable[object]],
    ):
        self._page, self._engine, self._loop, self._on_leave = page, engine, loop, on_leave
        self.tabs: dict[str, Tab] = {}
        self._is_closed = False

    def __call__(self, event: Event) -> None:
        """Pass an event on; called on the engine's thread. Without tabs it costs nothing."""
        if not self.tabs:
            return
        message = self._page.message(event, self._engine)
        if message is not None:
            self._loop.call_soon_threadsafe(self._send, message)

    def _send(self, message: Json) -> None:
        for tab in self.tabs.values():
            tab.put(message)

    async def events(self, hello: Json, name: str) -> AsyncGenerator[str, None]:
        """Texts of server-sent events: the hello, then every message, until the client disconnects.

        Args:
            hello: the first message, which also gets the tab's name and the numbers of its answers.
            name: of a tab that was read before; any other text begins a new one.
        """
        tab = self.tabs.pop(name, None) or Tab()
        self.tabs[tab.name], reader = tab, tab.next_reader()
        if len(self.tabs) > MOST_TABS:
            oldest = next(iter(self.tabs.values()))
            self._forget(oldest, oldest.reader)
        try:
            yield event({**hello, "tab": tab.name, "answers": list(tab.answers)})
            while tab.reader == reader and not self._is_closed:
                yield "".join(map(event, await tab.messages(reader))) or ": \n\n"
        finally:
            if tab.reader == reader:
                self._loop.call_later(KEPT_SECONDS if tab.answers else 0, self._forget, tab, reader)
            if tab.reader == reader or tab.name not in self.tabs:
                await self._on_leave(tab.name)

    def _forget(self, tab: Tab, reader: int) -> None:
        """Forget a tab, unless it has another reader than this one."""
        if tab.reader == reader:
            self.tabs.pop(tab.name, None)
            tab.stop()
            tab.next_reader()  # this one ends

    async def close(self) -> None:
        """End every tab's stream once it has the rest of its answers, which end with the engine."""
        answers = [answer.task for tab in self.tabs.values() for answer in tab.answers.values()]
        await asyncio.gather(*answers, return_exceptions=True)
        self._is_closed = True
        for tab in self.tabs.values():
            tab.news.set()


class StepBudget:
    """Changes the budget of one engine, and restores it when the tab that changed it is closed or hidden.

    Every method runs on the engine's thread.

    Args:
        engine: whose scheduler has the budget.
    """

    def __init__(self, engine: LLMEngine):
        self._engine = engine
        self._first = engine.loop.scheduler.max_num_batched_tokens
        self._tab = ""  # that has changed it last

    def change(self, tokens: int, tab: str) -> None:
        """Set the budget between two steps.

        Args:
            tokens: the token budget of a step.
            tab: name of the tab that asks; empty for a client without one, whose budget stays.

        Raises:
            ApiError: 400, the budget is out of range, or there are no chunks.
        """
        engine = self._engine
        least, most = engine.options.max_num_seqs, engine.max_num_batched_tokens
        if not engine.options.enable_chunked_prefill:
            raise ApiError(400, "this server runs whole prompts: start it with chunked prefill")
        if not least <= tokens <= most:
            raise ApiError(400, f"max_num_batched_tokens is {tokens}: give {least} to {most}")
        engine.loop.scheduler.max_num_batched_tokens, self._tab = tokens, tab

    def leave(self, tab: str) -> None:
        """Restore the budget if this tab has changed it last."""
        if tab == self._tab and not self._engine.is_closed:
            self._engine.loop.scheduler.max_num_batched_tokens, self._tab = self._first, ""


OWN = [Depends(check_origin)]
REFUSED: dict[int | str, dict[str, Any]] = dict.fromkeys((401, 403, 503), WRONG)


def add_page(app: FastAPI, page: LivePage) -> None:
    """Add the live page, its event stream, and the answers whose texts come with that."""
    headers = {"Content-Security-Policy": policy_of(page.html), "X-Content-Type-Options": "nosniff"}

    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page.html, headers=headers)

    @app.get("/events", response_class=Response, dependencies=OWN, responses={**STREAM, **REFUSED})
    async def events(request: Request) -> Response:
        """The steps of the scheduler and the texts of a tab's answers, as server-sent events."""
        service: EngineService = request.app.state.service
        hello = await service.loop.on_worker(page.hello, service.engine)
        hello["controls"] = service.options.live_controls
        return EventStream(request.app.state.feed.events(hello, request.headers.get("x-tab", "")))

    @app.delete("/answers", dependencies=OWN, responses={**REFUSED})
    async def stop(request: Request) -> dict[str, str]:
        """End all answers of the tab."""
        if (tab := tab_of(request)) is not None:
            tab.stop()
        return {}


def tab_of(request: Request) -> Tab | None:
    """The tab that asks; None for any other client. Its name comes in a header: URLs may be logged."""
    feed: LiveFeed | None = request.app.state.feed
    return feed and feed.tabs.get(request.headers.get("x-tab", ""))


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

    @app.post("/step_budget", dependencies=OWN, responses={**ERRORS, **REFUSED})
    async def step_budget(request: Request, body: schemas.BudgetBody) -> schemas.BudgetBody:
        """Set the token budget of a step, which makes chunks large or small, until the tab leaves."""
        service: EngineService = request.app.state.service
        check_ready(service)
        change = request.app.state.budget.change
        name = request.headers.get("x-tab", "")
        await service.loop.on_worker(change, body.max_num_batched_tokens, name)
        return body


async def tab_leaves(app: FastAPI, name: str) -> None:
    """Restore what the tab has changed, between two steps."""
    service: EngineService = app.state.service
    if service.state == "ready":
        await service.loop.on_worker(app.state.budget.leave, name)
