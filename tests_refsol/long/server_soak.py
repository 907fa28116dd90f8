"""A soak test of the server: hundreds of clients at once, some of which go away or read slowly.

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

SHAPES = {"Poisson": 1.0, "bursts": 0.05}  # of the arrivals: burstiness
SECONDS = 10.0  # in which all clients come
LEAVES, SLOW, WHOLE = 0.3, 0.1, 0.2  # shares of the clients: go away, read slowly, want no stream
PAUSE = 0.2  # seconds, at most, that a slow reader rests between two reads
LEAVING = 0.01  # seconds per token after which a client leaves that sees no pieces
REST = 2.0  # seconds, at most, that a refused client waits before it comes again
PATIENCE = 3600.0  # seconds after which an answer counts as lost
IDLE = 10.0  # seconds in which the server gives back what belongs to clients that have left


@dataclass(frozen=True)
class Visit:
    """What one client does.

    Args:
        prompt: token ids.
        max_tokens: of the answer.
        time: seconds from the start at which it comes.
        leaves_after: pieces after which it goes away; None stays.
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
    """What a client has seen: the text, why it ended (None for a client that left), and how often it was refused."""

    text: str = ""
    reason: str | None = None
    refused: int = 0


@dataclass
class ServerCounts:
    """What a soak of the server has seen."""

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
        max_queue: of the server: clients beyond it are refused with 429, and come again.
    """

    def __init__(self, port: Port, seed: int = 0, max_queue: int = 256):
        self.seed, self.rng, self.counts = seed, np.random.default_rng(seed), ServerCounts()
        network, tokenizer = load_network(port, MODEL, "week3")
        shape = {"block_size": BLOCK, "max_model_len": PREFIX + OWN + ANSWER, "num_blocks": BLOCKS}
        pressed = {"max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET}
        options = ServerOptions(max_queue=max_queue, request_timeout=PATIENCE)
        # A model of its own: arrays of MLX belong to the thread that has loaded them.
        self.app = create_app(
            lambda: LLM.of(port, *load_network(port, MODEL, "week3"), **shape, **pressed), options
        )
        alone = {"max_num_seqs": 1, "enable_prefix_caching": False}
        self.alone = LLM.of(port, network, tokenizer, **shape, **alone)
        self._prompts = Prompts(network.config.vocab_size, self.rng)

    def run(self, clients: int, burstiness: float, seconds: float = SECONDS) -> ServerCounts:
        """Runs `clients` clients that arrive within `seconds`, then checks every answer and that nothing is left.

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
                f"seed {self.seed}: {allocator.num_blocks - allocator.num_free} blocks were not given back"
            )
        if not wait_until(self._is_idle, IDLE):  # a request is forgotten a moment after its blocks are back
            raise SoakError(f"seed {self.seed}: the server still knows {self.loop.num_open} requests")

    def _is_idle(self) -> bool:
        return not self.loop.num_open and not self.engine.has_work_remaining()

    def _check(self, number: int, visit: Visit, seen: Seen) -> None:
        """Equal to the request alone; a client that left has seen its beginning; after a near tie nothing is known."""
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
    """Whether it is so within these seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


async def visit_all(port: int, visits: list[Visit]) -> list[Seen]:
    """All clients, each at its time.

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
    """One client, which comes again as often as it is refused.

    Raises:
        SoakError: the server answered something else than 200 or 429, or ended in the middle of an answer.
    """
    seen = Seen()
    while (wait := await ask(port, visit, seen)) is not None:
        seen.refused += 1
        await asyncio.sleep(wait)
    return seen


async def ask(port: int, visit: Visit, seen: Seen) -> float | None:
    """One request, noted in `seen`. Returns the seconds until the next one if it was refused."""
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
        writer.transport.abort()  # no goodbye: the server has to notice


def request_bytes(visit: Visit) -> bytes:
    """The request as it is sent."""
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
    """The status and the headers of an answer."""
    lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(": ") for line in lines[1:] if line)
    return int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}


async def read_stream(reader: asyncio.StreamReader, visit: Visit, seen: Seen) -> None:
    """Notes the pieces of a stream until it ends, or until the client has had enough."""
    pieces = 0
    async for data in stream_data(reader):
        if pieces == visit.leaves_after or data == "[DONE]":
            return
        note(seen, json.loads(data))
        pieces += 1
        await asyncio.sleep(visit.pause)


async def stream_data(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """What server-sent events carry, out of a body in HTTP's chunks."""
    text = ""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        text += (await reader.readexactly(size + 2))[:-2].decode()
        *events, text = text.split("\n\n")
        for event in events:
            if event.startswith("data: "):
                yield event.removeprefix("data: ")


def note(seen: Seen, told: dict[str, Any]) -> None:
    """Takes a piece of an answer in."""
    if "error" in told:
        raise SoakError(f"after {seen.text!r}: {told['error']['message']}")
    for choice in told["choices"]:
        seen.text += choice["text"]
        seen.reason = choice["finish_reason"] or seen.reason
