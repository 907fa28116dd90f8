"""The way of a request through a proxy, and the state of it: what `EngineService` is for one engine."""

import asyncio
import codecs
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tiny_llm_engine.solutions.solution_types import SplitLoads

from ..openai_api.errors import HEADER, unavailable
from ..openai_api.generation import TIMED_OUT
from ..openai_api.http_responses import DONE, Disconnected, EventStream, event, while_connected
from ..openai_api.server_options import ServerOptions
from ..replicas.replica_stream import LOST as HAS_DIED
from ..replicas.replica_stream import RETRIES
from ..replicas.replicated_service import until_ended
from .client_request import ClientRequest
from .engines import DECODE, PREFILL, ProxiedEngine
from .exchange import LOST, exchange, fetched
from .proxy_metrics import ProxyMetrics

SENT_ON = ("authorization", "content-type")  # headers of a request
SENT_BACK = ("content-type", "retry-after")  # of an answer
MARGIN = 5.0  # seconds beyond the drain, for engines to end
NO_ENGINE = "no engine that decodes is ready: try again later"


class ProxyService:
    """Sends each request to its engines; see `RunningService`.

    Args:
        engines: those behind the proxy.
        loads: chooses among them.
    """

    context = None  # the engines know it

    def __init__(
        self,
        options: ServerOptions,
        engines: Sequence[ProxiedEngine],
        loads: SplitLoads,
        metrics: ProxyMetrics,
    ):
        self.options, self.loads, self.metrics = options, loads, metrics
        self.engines = {engine.address: engine for engine in engines}
        self.failure: BaseException | None = None
        self.has_opened = self._is_stopping = False
        self.open: dict[str, asyncio.Task] = {}  # what computes the prompts of open requests, by transfer

    @property
    def state(self) -> str:
        if self._is_stopping:
            return "stopping"
        return "ready" if self.has_opened and self.loads.decode.replicas else "starting"

    async def run(self) -> None:
        """Watch the engines until `stop`."""
        self._watching = asyncio.gather(*(engine.watch(self.update) for engine in self.engines.values()))
        try:
            await self._watching
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self.failure = error

    def update(self) -> None:
        """Choose among the engines that are ready. At the start, all processes of this proxy are awaited."""
        ready = {PREFILL: [], DECODE: []}
        for engine in self.engines.values():
            ready[engine.role] += [engine.address] * engine.is_ready
        self.loads.set_engines(ready[PREFILL], ready[DECODE])
        own = [engine for engine in self.engines.values() if engine.start is not None]
        self.has_opened |= bool(ready[DECODE]) and all(engine.was_ready for engine in own)

    def _lose(self, address: str) -> None:
        """Send nothing to an engine that did not answer, until it does."""
        self.engines[address].is_ready = False
        self.update()

    async def stop(self) -> None:
        """Refuse new requests, let the open ones end, and end the processes of this proxy."""
        if self._is_stopping:
            return
        self._is_stopping = True
        await until_ended(lambda: bool(self.open), self.options.drain_timeout)
        for engine in self.engines.values():
            engine.is_stopped = True  # `wait_for` may swallow what follows
        self._watching.cancel()
        await asyncio.gather(*(asyncio.to_thread(engine.stop, MARGIN) for engine in self.engines.values()))

    async def respond(self, request: Request) -> Response:
        """The answer of an engine. A client that disconnects ends its request.

        Raises:
            ApiError: 503, no engine answers.
        """
        headers = {name: request.headers[name] for name in SENT_ON if name in request.headers}
        headers[HEADER] = request.scope["request_id"]
        path, query = request.scope["raw_path"], request.scope["query_string"]
        target = b"?".join(filter(None, (path, query))).decode("latin-1")
        asked = ClientRequest(request.method, target, headers, await request.body())
        try:
            return await while_connected(request.receive, self._response(asked), self.options.request_timeout)
        except Disconnected:
            return Response(status_code=499)
        except TimeoutError:
            raise unavailable(TIMED_OUT) from None

    async def _response(self, asked: ClientRequest) -> Response:
        answer = self._answer(asked)
        head = await anext(answer)
        if is_stream(head):
            timed_out = event(unavailable(TIMED_OUT).body())
            return EventStream(answer, seconds=self.options.request_timeout, on_timeout=timed_out)
        headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
        kept = {name: headers[name] for name in SENT_BACK if name in headers}
        return Response("".join([text async for text in answer]), head.status_code, kept)

    async def _answer(self, asked: ClientRequest) -> AsyncGenerator[Any, None]:
        """The head of an answer, an `h11.Response`, and then its text: at once, or of a stream as it comes.

        An engine that dies is replaced once, as long as nothing of its answer is on its way to the client.
        """
        has_begun = False
        for left in range(RETRIES, -1, -1):
            if not self.loads.decode.replicas:
                raise unavailable(NO_ENGINE)
            transfer_id = uuid.uuid4().hex
            route = self.loads.send(transfer_id, asked.prompt, asked.max_tokens)
            self.open[transfer_id] = asyncio.create_task(self._prefill(transfer_id, route.prefill, asked))
            source = self.engines[route.prefill].source() if route.prefill else None
            transfer = source and {"do_remote_prefill": True, "transfer_id": transfer_id, **source}
            parts = exchange(
                route.decode, asked.method, asked.target, asked.headers, asked.for_decode(transfer)
            )
            try:
                async with aclosing(parts):
                    head = await anext(parts)
                    first = [await anext(parts, b"")] if is_stream(head) else [part async for part in parts]
                    has_begun, decode = True, codecs.getincrementaldecoder("utf-8")("replace").decode
                    yield head
                    yield decode(b"".join(first))
                    async for part in parts:
                        yield decode(part)
                return
            except LOST:
                self._lose(route.decode)
                self.metrics.count("retried" if left and not has_begun else "failed")
                if has_begun:
                    yield f"\n\n{event(unavailable(HAS_DIED).body())}{DONE}"
                    return
            finally:
                self.loads.finish(transfer_id)
                self.open.pop(transfer_id).cancel()
        raise unavailable(HAS_DIED)

    async def _prefill(self, transfer_id: str, address: str | None, asked: ClientRequest) -> None:
        """Have a prompt computed elsewhere. Whatever fails here, the engine that decodes computes it itself."""
        self.metrics.count("alone" if address is None else "elsewhere")
        if address is None:
            return
        body, status = asked.for_prefill({"do_remote_decode": True, "transfer_id": transfer_id}), 0
        try:
            status, _ = await fetched(address, "POST", asked.target, asked.headers, body)
        except LOST:
            self._lose(address)
        finally:
            self.loads.prefilled(transfer_id)
        if status != 200:
            self.metrics.count("prefill_failed")


def is_stream(head: Any) -> bool:
    """Whether an answer is server-sent events."""
    return dict(head.headers).get(b"content-type", b"").startswith(b"text/event-stream")
