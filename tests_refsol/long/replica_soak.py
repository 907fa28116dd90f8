"""A soak test of replicas: real processes under load, one of which is killed.

Every answer is compared with the one that the model gives to this request alone. A request may fail only with an error
in OpenAI's form, and only if its client had received a part of the answer; all others have to be served.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
from openai import APIError, AsyncOpenAI

from tiny_llm_engine.solutions.port import Port

from .harness import MODEL, Counts, Harness, wait_until

HOST = "127.0.0.1"
ENGINE = "ray::ServeReplica:tiny-llm:engine"  # what Ray calls the process of a replica
CONCURRENCY = 16  # clients, each of which sends its next request when the one before has ended
REQUESTS = 160
STREAMS = 0.6  # share of clients that read a stream
PREFIXES, PREFIX, OWN = 4, 256, 48  # tokens, at most
ANSWER = (32, 160)  # tokens
KILL_AFTER = 1 / 3  # of the requests
SHAPE = {"max_model_len": 1024, "block_size": 16}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SHAPE.items()]
START, BACK, STOP = 120.0, 120.0, 60.0  # seconds, at most


@dataclass
class ReplicaCounts(Counts):
    """The counts of a soak of replicas.

    `failed` requests ended with an error in OpenAI's form, `retried` ones were sent to another replica and served,
    `lost` ones got no such error. Seconds and MiB are rounded.
    """

    served: int = 0
    retried: int = 0
    failed: int = 0
    lost: int = 0
    tokens: int = 0
    cached_tokens: int = 0
    seconds_to_start: int = 0
    seconds_until_back: int = 0
    seconds_of_load: int = 0
    mib_per_replica: int = 0


@dataclass
class Asked:
    """A request and what its client has received."""

    prompt: list[int]
    max_tokens: int
    streams: bool
    text: str = ""
    reason: str | None = None
    error: str = ""  # of OpenAI's form
    problem: str = ""  # anything else that went wrong
    usage: Any = field(default=None, repr=False)

    @property
    def body(self) -> dict[str, Any]:
        made = {"model": MODEL, "prompt": self.prompt, "max_tokens": self.max_tokens, "temperature": 0.0}
        return {**made, "stream": True, "stream_options": {"include_usage": True}} if self.streams else made


class ReplicaSoak(Harness[ReplicaCounts]):
    """Replicas in processes of their own, and the same model alone in this one.

    Args:
        port: whose code runs; its type is float32.
        seed: determines the requests.
        replicas: how many there are.
    """

    def __init__(self, port: Port, seed: int, replicas: int):
        super().__init__(port, seed, ReplicaCounts(), max_model_len=SHAPE["max_model_len"])
        self.port, self.replicas = port, replicas
        vocabulary = self.alone.engine.network.config.vocab_size
        self._prefixes = [self.rng.integers(0, vocabulary, PREFIX).tolist() for _ in range(PREFIXES)]
        self._vocabulary = vocabulary

    def run(self) -> ReplicaCounts:
        """Send the load, kill a replica, wait until another one has taken its place, and check every answer.

        Raises:
            SoakError: something is wrong.
        """
        requests = [self._draw() for _ in range(REQUESTS)]
        with self._server() as url:
            self.counts.mib_per_replica = max(one.memory_full_info().uss for one in processes()) // 2**20
            asyncio.run(self._load(url, requests))
            self._read_metrics(url)
        for number, asked in enumerate(requests):
            self._check(f"request {number}", asked)
        if self.counts.lost:
            self.fail("the killed replica", f"{self.counts.lost} requests got no error of OpenAI's form")
        return self.counts

    def _draw(self) -> Asked:
        rng = self.rng
        shared = self._prefixes[rng.integers(PREFIXES)][: rng.integers(0, PREFIX + 1)]
        own = rng.integers(0, self._vocabulary, rng.integers(1, OWN + 1)).tolist()
        return Asked(shared + own, int(rng.integers(*ANSWER)), bool(rng.random() < STREAMS))

    @contextmanager
    def _server(self) -> Iterator[str]:
        """`pdm run serve --replicas N` while the block runs; afterwards no process may be left."""
        if processes():
            self.fail("the machine", "replicas run on it already: stop them first")
        address, begin = free_port(), time.monotonic()
        port = self.port
        serve = "tiny_llm_course.commands.serve"
        command = [sys.executable, "-m", serve, f"--replicas={self.replicas}", *OPTIONS]
        command += [f"--port={address}", f"--backend={port.name}", "--dtype=float32"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            lines = iter(server.stdout or ())
            if not any(line.startswith("ready") for line in lines):
                self.fail("the server", "it does not start")
            self.counts.seconds_to_start = round(time.monotonic() - begin)
            yield f"http://{HOST}:{address}"
            server.send_signal(signal.SIGTERM)
            server.wait(STOP)
        finally:
            server.kill()
        if not wait_until(lambda: not processes(), STOP):
            self.fail("the server", f"{len(processes())} processes of replicas are left")

    async def _load(self, url: str, requests: list[Asked]) -> None:
        """Send all requests, and kill a replica meanwhile; return when both have ended and there is another one."""
        waiting, ended = iter(requests), 0
        replaced: list[asyncio.Task] = []
        begin = time.monotonic()

        async def client(api: AsyncOpenAI) -> None:
            nonlocal ended
            for asked in waiting:
                await ask(api, asked)
                ended += 1
                if ended >= KILL_AFTER * len(requests) and not replaced:
                    replaced.append(asyncio.create_task(asyncio.to_thread(self._kill, processes()[0].pid)))

        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=BACK) as api:
            await asyncio.gather(*(client(api) for _ in range(CONCURRENCY)))
        self.counts.seconds_of_load = round(time.monotonic() - begin)
        await replaced[0]

    def _kill(self, killed: int) -> None:
        """Kill a replica, and wait until Ray reports all as running, in processes that are not this one."""
        begin = time.monotonic()
        os.kill(killed, signal.SIGKILL)
        with running_replicas() as count:
            if not wait_until(lambda: count(killed) >= self.replicas, BACK):
                self.fail("the killed replica", "no other one has taken its place")
        self.counts.seconds_until_back = round(time.monotonic() - begin)

    def _read_metrics(self, url: str) -> None:
        text = urllib.request.urlopen(f"{url}/metrics").read().decode()
        found = re.search(r'lost_replica_requests_total\{.*outcome="retried"\} (\S+)', text)
        self.counts.retried = int(float(found[1])) if found else 0

    def _check(self, who: str, asked: Asked) -> None:
        """Compare an answer with that of the request alone; one that failed, as far as it came."""
        expected = self.expected(asked.prompt, asked.max_tokens)
        if asked.problem:
            self.counts.lost += 1
            print(f"{who}: {asked.problem}", file=sys.stderr)
        elif asked.error:
            self.counts.failed += 1
            if not asked.streams:
                self.fail(who, f"nothing was sent, and it was not retried: {asked.error}")
        else:
            self.counts.served += 1
            self.counts.tokens += asked.usage.completion_tokens
            self.counts.cached_tokens += asked.usage.prompt_tokens_details.cached_tokens
        is_whole = not asked.problem and not asked.error
        is_right = expected.text == asked.text if is_whole else expected.text.startswith(asked.text)
        if not is_right:
            place = self.first_difference(expected.token_ids, asked.text)
            self.differs(who, place, expected, f"{asked.text!r} is not {expected.text!r}")


async def ask(api: AsyncOpenAI, asked: Asked) -> None:
    """Send a request and record what its client receives."""
    try:
        answer = await api.completions.create(**asked.body)
        if asked.streams:
            async for chunk in answer:
                note(asked, chunk)
        else:
            note(asked, answer)
        if asked.reason is None:
            asked.problem = "it ended without a reason"
    except APIError as error:
        body = error.body
        if isinstance(body, dict) and {"message", "type", "code"} <= set(body):
            asked.error = body["message"]
        else:
            asked.problem = repr(error)
    except Exception as error:
        asked.problem = repr(error)


def note(asked: Asked, chunk: Any) -> None:
    """Record a chunk, or a whole answer."""
    asked.usage = chunk.usage or asked.usage
    for choice in chunk.choices:
        asked.text += choice.text
        asked.reason = choice.finish_reason or asked.reason


def processes() -> list[psutil.Process]:
    """The processes of replicas on this machine."""
    return [one for one in psutil.process_iter(["cmdline"]) if ENGINE in " ".join(one.info["cmdline"] or ())]


@contextmanager
def running_replicas() -> Iterator[Callable[[int], int]]:
    """A function that counts the running replicas, as Ray knows them, once a process is no longer one of them."""
    import ray
    from ray import serve
    from ray.serve import context

    def count(killed: int) -> int:
        found = processes()
        if any(one.pid == killed for one in found):
            return 0
        states = serve.status().applications["tiny-llm"].deployments["engine"].replica_states
        return len(found) if states == {"RUNNING": len(found)} else 0

    ray.init(address="auto", log_to_driver=False, logging_level="error")
    try:
        yield count
    finally:
        ray.shutdown()  # or this process ends with the cluster
        context._set_global_client(None)  # of that cluster; the next port has a cluster of its own


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]
