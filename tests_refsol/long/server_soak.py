"""A soak test of the server: hundreds of clients at once, some of which disconnect or read slowly.

The pool is so small that running requests are preempted, and sometimes a layer of the model raises. Every answer is
compared with the one that the model gives to this request alone, and no block or request may be left.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from openai import APIError, AsyncOpenAI, OpenAIError, RateLimitError
from openai.types import Completion

from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_lab.arrivals import arrival_times
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.openai_api.errors import INTERNAL, LOG
from tiny_llm_server.openai_api.server_options import ServerOptions
from tiny_llm_server.server import create_app

from .harness import MODEL, SEQS, Counts, Harness, SoakError, pressed_llm

SHAPES = {"Poisson": 1.0, "bursts": 0.05}  # burstiness of the arrivals
SECONDS = 10.0  # seconds in which all clients arrive
LEAVES, SLOW, WHOLE = 0.3, 0.1, 0.2  # shares of clients that disconnect, read slowly, want no stream
PAUSE = 0.2  # seconds, at most, between two reads of a slow reader
LEAVING = 0.01  # seconds per token until a client without a stream leaves
REST = 2.0  # seconds, at most, until a refused client retries
PATIENCE = 3600.0  # seconds after which an answer counts as lost
FAILS = 60  # steps: in one of so many a layer raises
FAILED = "failed"  # the reason of an answer that has ended with such a step
IDLE = 120.0  # seconds in which the server must free what clients that have left held


@dataclass(frozen=True)
class Visit:
    """The behaviour of one client.

    Args:
        prompt: token ids.
        max_tokens: how many tokens the answer may have.
        time: seconds from the start until it sends its request.
        leaves_after: pieces after which it disconnects; None stays.
        pause: seconds between two reads.
        streams: whether it wants the answer piece by piece.
    """

    prompt: list[int]
    max_tokens: int
    time: float
    leaves_after: int | None
    pause: float
    streams: bool

    @property
    def request(self) -> dict[str, Any]:
        """The fields of its request, without `stream`."""
        return {"model": MODEL, "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0.0}


@dataclass
class Seen:
    """What a client received: the text, its finish reason (None if it left), and the number of refusals."""

    text: str = ""
    reason: str | None = None
    refused: int = 0


@dataclass
class ServerCounts(Counts):
    """The counts of a soak of the server, by client.

    `refused` counts answers with status 429, `failures` steps in which a layer has raised, and `failed` the clients
    whose answers ended with them.
    """

    completed: int = 0
    left: int = 0
    slow: int = 0
    refused: int = 0
    failures: int = 0
    failed: int = 0
    characters: int = 0


class ServerSoak(Harness[ServerCounts]):
    """A server under pressure, and the same model alone.

    Args:
        port: whose code runs; its type is float32.
        seed: determines everything random.
        max_queue: of the server: clients beyond it are refused with 429, and retry.
        fails: the number of steps of which one fails; None for no failure.
    """

    def __init__(self, port: Port, seed: int = 0, max_queue: int = 256, fails: int | None = FAILS):
        super().__init__(port, seed, ServerCounts())
        options = ServerOptions(max_queue=max_queue, request_timeout=PATIENCE)
        self.app = create_app(lambda: self._open(port, fails), options)

    def _open(self, port: Port, fails: int | None) -> LLM:
        """The server's own model: arrays of MLX belong to the thread that has loaded them."""
        llm = pressed_llm(port, enforce_eager=True)  # a captured step would not call them
        network = llm.engine.network
        network.compute = self.layers = FailingLayers(network.compute, fails, self.counts)
        return llm

    def run(self, clients: int, burstiness: float, seconds: float = SECONDS) -> ServerCounts:
        """Run `clients` clients that arrive within `seconds`, then check every answer and that nothing is left.

        Raises:
            SoakError: something is wrong.
        """
        times = arrival_times(clients, clients / seconds, burstiness, rng=self.rng)
        visits = [self._visit(time) for time in times]
        LOG.addFilter(is_logged)
        with BackgroundServer(self.app) as served:
            self.engine, self.loop = served.server.service.llm.engine, served.server.service.loop
            self.engine.listeners.append(self._count)
            seen = asyncio.run(visit_all(served.port, visits))
            self._check_memory()
        LOG.removeFilter(is_logged)
        for number, (visit, one) in enumerate(zip(visits, seen, strict=True)):
            self._check(number, visit, one)
        if not self.layers.calls:
            self.fail("all clients", "no step came through the layers that fail")
        if self.counts.failed > self.counts.failures * SEQS:
            self.fail("all clients", f"{self.counts.failed} failed with {self.counts.failures} steps")
        return self.counts

    def _visit(self, time: float) -> Visit:
        rng, (prompt, most) = self.rng, self.prompts.draw()
        leaves, slow, whole = rng.random(3).tolist()
        after = int(rng.integers(0, most)) if leaves < LEAVES else None
        pause = PAUSE * float(rng.random()) if slow < SLOW else 0.0
        return Visit(prompt, most, time, after, pause, streams=whole >= WHOLE)

    def _count(self, event: Any) -> None:
        if event.kind == "preempt":
            self.counts.preemptions += 1

    def _check_memory(self) -> None:
        """A request is forgotten a moment after its blocks are back."""
        self.check_memory(self.engine, lambda: self.loop.num_open or self.engine.num_open, IDLE)

    def _check(self, number: int, visit: Visit, seen: Seen) -> None:
        """Compare an answer with that of the request alone; after a near tie it may differ.

        A client that left, or whose answer failed, has seen the beginning of the answer.
        """
        who = f"client {number}"
        self._count_client(visit, seen)
        if seen.reason is None and visit.leaves_after is None:
            self.fail(who, "the answer ends without a reason")
        expected = self.expected(visit.prompt, visit.max_tokens)
        is_right = expected.text.startswith(seen.text)
        if seen.reason not in (None, FAILED):
            is_right = (seen.text, seen.reason) == (expected.text, expected.finish_reason)
        if not is_right:
            place = self.first_difference(expected.token_ids, seen.text)
            alone = f"the request alone with {expected.finish_reason} after {expected.text!r}"
            self.differs(who, place, expected, f"ended with {seen.reason} after {seen.text!r}; {alone}")

    def _count_client(self, visit: Visit, seen: Seen) -> None:
        self.counts.refused += seen.refused
        self.counts.characters += len(seen.text)
        if visit.pause:
            self.counts.slow += 1
        if seen.reason == FAILED:
            self.counts.failed += 1
        elif seen.reason is None:
            self.counts.left += 1
        else:
            self.counts.completed += 1


class MadeFailure(RuntimeError):
    """A failure that the soak has made: it is not logged."""


def is_logged(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], MadeFailure))


class FailingLayers:
    """A network's `compute` that sometimes raises half-way: half of the pools have the step's keys then.

    Args:
        compute: of the network, layer by layer or in one kernel.
        fails: the number of calls of which one raises; None for none.
        counts: counts the failures.
    """

    def __init__(self, compute: Callable[..., Any], fails: int | None, counts: ServerCounts):
        self._compute = compute
        self._fails, self._counts, self.calls = fails, counts, 0

    def __call__(self, network: Any, inputs: Any, pools: Any) -> Any:
        self.calls += 1
        if self._fails is None or self.calls % self._fails:
            return self._compute(network, inputs, pools)
        step, x = network.begin(inputs, pools[0].page_size), network.embedding(inputs.token_ids[None])
        for layer, pool in zip(network.layers[: len(network.layers) // 2], pools, strict=False):
            x = layer(x, step, pool)
        self._counts.failures += 1
        raise MadeFailure("a failure that the soak has made")


async def visit_all(port: int, visits: list[Visit]) -> list[Seen]:
    """Run all clients, each at its time."""
    start, address = time.monotonic(), f"http://{BackgroundServer.host}:{port}/v1"
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0, timeout=PATIENCE) as api:

        async def come(visit: Visit) -> Seen:
            """Run one client, which retries whenever it is refused."""
            seen = Seen()
            await asyncio.sleep(start + visit.time - time.monotonic())
            while (wait := await ask(api, visit, seen)) is not None:
                seen.refused += 1
                await asyncio.sleep(wait)
            return seen

        return list(await asyncio.gather(*map(come, visits)))


async def ask(api: AsyncOpenAI, visit: Visit, seen: Seen) -> float | None:
    """Send one request and record it in `seen`; if refused, return the seconds until the retry.

    Raises:
        SoakError: the server answered something else than 200 or 429, or nothing for `PATIENCE` seconds.
    """
    try:
        await (read_stream if visit.streams else read_whole)(api, visit, seen)
    except RateLimitError as refused:
        return min(float(refused.response.headers["retry-after"]), REST)
    except APIError as error:
        if INTERNAL not in str(error):
            raise SoakError(f"after {seen.text!r}: {error!r}, {error.__cause__!r}") from None
        seen.reason = FAILED
    except OpenAIError as error:
        raise SoakError(f"after {seen.text!r}: {error!r}") from None
    return None


async def read_stream(api: AsyncOpenAI, visit: Visit, seen: Seen) -> None:
    """Record the pieces of an answer until it ends, or until the client closes the connection."""
    pieces = 0
    async with await api.completions.create(**visit.request, stream=True) as stream:
        async for piece in stream:
            if pieces == visit.leaves_after:
                return
            note(seen, piece)
            pieces += 1
            await asyncio.sleep(visit.pause)


async def read_whole(api: AsyncOpenAI, visit: Visit, seen: Seen) -> None:
    """Record an answer; a client that leaves has closed the connection, or does not read it."""
    answer = api.completions.create(**visit.request)
    if visit.leaves_after is None:
        note(seen, await answer)
        return
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(answer, (1 + visit.leaves_after) * LEAVING)


def note(seen: Seen, piece: Completion) -> None:
    """Record a piece of an answer."""
    for choice in piece.choices:
        seen.text += choice.text
        seen.reason = choice.finish_reason or seen.reason
