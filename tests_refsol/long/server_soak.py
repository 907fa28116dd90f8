"""A soak test of the server: hundreds of clients at once, some of which disconnect or read slowly.

Every answer is compared with the one that the model gives to this request alone, and no block or request may be left.
The clients use plain sockets, because a client library does not close a connection in the middle of an answer.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.server.background_server import BackgroundServer
from tiny_llm_kit.server.openai_api.service import ServerOptions
from tiny_llm_kit.server.server import create_app
from tiny_llm_lab.arrivals import arrival_times

from .engine_soak import (
    ANSWER,
    BLOCK,
    BLOCKS,
    BUDGET,
    MODEL,
    OWN,
    PREFIX,
    SEQS,
    TIE,
    Prompts,
    SoakError,
    margin,
)

SHAPES = {"Poisson": 1.0, "bursts": 0.05}  # burstiness of the arrivals
SECONDS = 10.0  # seconds in which all clients arrive
LEAVES, SLOW, WHOLE = 0.3, 0.1, 0.2  # shares of clients that disconnect, read slowly, want no stream
PAUSE = 0.2  # seconds, at most, between two reads of a slow reader
LEAVING = 0.01  # seconds per token until a client without a stream leaves
REST = 2.0  # seconds, at most, until a refused client retries
PATIENCE = 3600.0  # seconds after which an answer counts as lost
IDLE = 10.0  # seconds in which the server must free what clients that have left held


@dataclass(frozen=True)
class Visit:
    """The behaviour of one client.

    Args:
        prompt: token ids.
        max_tokens: of the answer.
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


@dataclass
class Seen:
    """What a client received: the text, its finish reason (None if it left), and the number of refusals."""

    text: str = ""
    reason: str | None = None
    refused: int = 0


@dataclass
class ServerCounts:
    """Counts of a soak of the server."""

    completed: int = 0
    left: int = 0
    slow: int = 0
    refused: int = 0
    preemptions: int = 0
    characters: int = 0
    near_ties: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.completed:,} answers complete, {self.left:,} clients left, {self.slow:,} read slowly, "
            f"{self.refused:,} times 429, {self.preemptions:,} preemptions, {self.characters:,} characters, "
            f"{len(self.near_ties)} near ties"
        )


class ServerSoak:
    """A server under pressure, and the same model alone.

    Args:
        port: whose code runs; its type is float32.
        seed: of everything random.
        max_queue: of the server: clients beyond it are refused with 429, and retry.
    """

    def __init__(self, port: Port, seed: int = 0, max_queue: int = 256):
        self.seed, self.rng, self.counts = seed, np.random.default_rng(seed), ServerCounts()
        network, tokenizer = load_network(port, MODEL, "week3")
        shape = {"block_size": BLOCK, "max_model_len": PREFIX + OWN + ANSWER, "num_blocks": BLOCKS}
        pressed = {"max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET}
        options = ServerOptions(max_queue=max_queue, request_timeout=PATIENCE)
        # A separate model: arrays of MLX belong to the thread that has loaded them.
        self.app = create_app(
            lambda: LLM.of(port, *load_network(port, MODEL, "week3"), **shape, **pressed), options
        )
        alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
        self.alone = LLM.of(port, network, tokenizer, **shape, **alone)
        self._prompts = Prompts(network.config.vocab_size, self.rng)

    def run(self, clients: int, burstiness: float, seconds: float = SECONDS) -> ServerCounts:
        """Run `clients` clients that arrive within `seconds`, then check every answer and that nothing is left.

        Raises:
            SoakError: something is wrong.
        """
        times = arrival_times(clients, clients / seconds, burstiness, rng=self.rng)
        visits = [self._visit(time) for time in times]
        with BackgroundServer(self.app) as served:
            self.engine, self.loop = served.server.service.llm.engine, served.server.service.loop
            self.engine.listeners.append(self._count)
            seen = asyncio.run(visit_all(served.port, visits))
            self._check_memory()
        for number, (visit, one) in enumerate(zip(visits, seen, strict=True)):
            self._check(number, visit, one)
        return self.counts

    def _visit(self, time: float) -> Visit:
        prompt, most = self._prompts.draw()
        leaves, slow, whole = self.rng.random(3).tolist()
        after = int(self.rng.integers(0, most)) if leaves < LEAVES else None
        pause = PAUSE * float(self.rng.random()) if slow < SLOW else 0.0
        return Visit(prompt, most, time, after, pause, streams=whole >= WHOLE)

    def _count(self, event: Any) -> None:
        self.counts.preemptions += event.kind == "preempt"

    def _check_memory(self) -> None:
        allocator = self.engine.allocator
        if not wait_until(lambda: allocator.num_free == allocator.num_blocks, IDLE):
            raise SoakError(
                f"seed {self.seed}: {allocator.num_blocks - allocator.num_free} blocks were not freed"
            )
        if not wait_until(self._is_idle, IDLE):  # a request is forgotten a moment after its blocks are back
            raise SoakError(f"seed {self.seed}: {self.loop.num_open} requests are still open")

    def _is_idle(self) -> bool:
        return not self.loop.num_open and not self.engine.has_work_remaining()

    def _check(self, number: int, visit: Visit, seen: Seen) -> None:
        """Compare an answer with that of the request alone; after a near tie it may differ.

        A client that left has seen the beginning of the answer.
        """
        counts = self.counts
        counts.refused += seen.refused
        counts.slow += visit.pause > 0
        counts.characters += len(seen.text)
        counts.left += seen.reason is None
        counts.completed += seen.reason is not None
        names = self.alone.engine.names
        params = names.SamplingParams(max_tokens=visit.max_tokens, logprobs=2)
        [alone] = self.alone.generate([visit.prompt], params, use_tqdm=False)
        expected = alone.outputs[0]
        if seen.reason is None and visit.leaves_after is None:
            raise SoakError(f"seed {self.seed}, client {number}: the answer ends without a reason")
        is_right = seen.reason in (None, expected.finish_reason) and expected.text.startswith(seen.text)
        if is_right and (seen.reason is None or seen.text == expected.text):
            return
        place = self._first_difference(expected.token_ids, seen.text)
        if place < len(expected.token_ids) and margin(expected, place) < TIE:
            counts.near_ties.append(f"client {number}, token {place}: margin {margin(expected, place):.1e}")
            return
        raise SoakError(
            f"seed {self.seed}, client {number}: ended with {seen.reason} after {seen.text!r}; the request alone with "
            f"{expected.finish_reason} after {expected.text!r}"
        )

    def _first_difference(self, tokens: list[int], text: str) -> int:
        """The first token whose text is not in this one."""
        add = self.alone.engine.tokenizer.detokenizer().add
        texts = accumulate(map(add, tokens))
        return next((place for place, each in enumerate(texts) if not text.startswith(each)), len(tokens))


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within these seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


async def visit_all(port: int, visits: list[Visit]) -> list[Seen]:
    """Run all clients, each at its time.

    Raises:
        SoakError: one of them got no answer, or a wrong kind of answer.
    """
    start = time.monotonic()

    async def one(visit: Visit) -> Seen:
        await asyncio.sleep(start + visit.time - time.monotonic())
        try:
            return await asyncio.wait_for(come(port, visit), PATIENCE)
        except asyncio.TimeoutError:
            raise SoakError(f"a client has no answer after {PATIENCE:.0f} seconds") from None

    return list(await asyncio.gather(*map(one, visits)))


async def come(port: int, visit: Visit) -> Seen:
    """Run one client, which retries whenever it is refused.

    Raises:
        SoakError: the server answered something else than 200 or 429, or ended in the middle of an answer.
    """
    seen = Seen()
    while (wait := await ask(port, visit, seen)) is not None:
        seen.refused += 1
        await asyncio.sleep(wait)
    return seen


async def ask(port: int, visit: Visit, seen: Seen) -> float | None:
    """Send one request and record it in `seen`; if refused, return the seconds until the retry."""
    reader, writer = await asyncio.open_connection(BackgroundServer.host, port)
    try:
        writer.write(request_bytes(visit))
        if visit.leaves_after is not None and not visit.streams:
            await asyncio.sleep(visit.leaves_after * LEAVING)
            return None
        status, headers = await read_head(reader)
        if status == 429:
            return min(float(headers["retry-after"]), REST)
        if status != 200:
            raise SoakError(f"HTTP {status}: {(await reader.read(500)).decode(errors='replace')}")
        if visit.streams:
            await read_stream(reader, visit, seen)
        else:
            note(seen, json.loads(await reader.readexactly(int(headers["content-length"]))))
        return None
    except asyncio.IncompleteReadError:
        raise SoakError(f"the answer ends after {seen.text!r}, without a reason") from None
    finally:
        writer.transport.abort()  # without a closing message: the server has to notice


def request_bytes(visit: Visit) -> bytes:
    """The HTTP request as bytes."""
    body = {
        "prompt": visit.prompt,
        "max_tokens": visit.max_tokens,
        "temperature": 0.0,
        "stream": visit.streams,
    }
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {BackgroundServer.host}\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read the status and the headers of an answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}


async def read_stream(reader: asyncio.StreamReader, visit: Visit, seen: Seen) -> None:
    """Record the pieces of a stream until it ends, or until the client leaves."""
    pieces = 0
    async for data in stream_data(reader):
        if pieces == visit.leaves_after or data == "[DONE]":
            return
        note(seen, json.loads(data))
        pieces += 1
        await asyncio.sleep(visit.pause)


async def stream_data(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """The data of server-sent events in a body in HTTP's chunked encoding."""
    text = ""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        text += (await reader.readexactly(size + 2))[:-2].decode()
        *events, text = text.split("\n\n")
        for event in events:
            if event.startswith("data: "):
                yield event.removeprefix("data: ")


def note(seen: Seen, told: dict[str, Any]) -> None:
    """Record a piece of an answer."""
    if "error" in told:
        raise SoakError(f"after {seen.text!r}: {told['error']['message']}")
    for choice in told["choices"]:
        seen.text += choice["text"]
        seen.reason = choice["finish_reason"] or seen.reason
