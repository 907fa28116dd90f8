"""`python -m benchmarks.kv_transfer`: transfers between two processes, beside `memcpy` and a bare socket.

Rows are blocks of SmolLM2-135M in float32. A producer copies them into its buffer, and a consumer copies what it has
got, as engines do; nothing is computed. All ways take turns, and each figure is a median.
"""

import atexit
import multiprocessing
import socket
import statistics
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np

from tiny_llm_engine.machine.ram import processor_name
from tiny_llm_extensions.kv_transfer import wire
from tiny_llm_extensions.kv_transfer.config import KVTransferConfig
from tiny_llm_extensions.kv_transfer.consumer import Fetch
from tiny_llm_extensions.kv_transfer.layout import Layout
from tiny_llm_extensions.kv_transfer.producer import Producer
from tiny_llm_extensions.kv_transfer.shared_memory import Segment
from tiny_llm_ref.serving import Incoming, Outbox

LAYOUT, ROWS, ROUNDS = Layout("float32", 128, 30, 3, 64), 48, 7
TOKENS = [*range(ROWS * LAYOUT.block_size + 1)]
SIZE = ROWS * LAYOUT.row_bytes
FORK = multiprocessing.get_context("fork")


class Pages:
    """Rows of a buffer, and blocks to be copied into them."""

    def __init__(self, memory: Any):
        self.rows = np.frombuffer(memory, np.uint8).reshape(-1, LAYOUT.row_bytes)
        self.num_rows = len(self.rows)
        self.blocks = np.ones((ROWS + 1, LAYOUT.row_bytes), np.uint8)

    def save(self, block: int, row: int) -> None:
        np.copyto(self.rows[row], self.blocks[block])

    def bytes_of(self, row: int) -> memoryview:
        return self.rows[row].data


class Request:
    """Numbers of a request."""

    def __init__(self):
        self.prompt_tokens, self.num_computed, self.is_done = TOKENS, 0, False
        self.block_table = SimpleNamespace(blocks=[*range(ROWS + 1)])


def here(**extra: Any) -> wire.Here:
    config = {"kv_role": "kv_both", "kv_port": 0, "kv_connector_extra_config": extra}
    return wire.Here(LAYOUT, KVTransferConfig.of(config), "m", time.monotonic)


def produce(pipe: Any) -> None:
    """Computes a prompt for each name that comes."""
    segment = Segment(2 * (ROWS + 1) * LAYOUT.row_bytes)  # the last prompt may still be there
    pages, keep = Pages(segment.memory), here().config.abort_request_timeout
    producer = Producer(here(), pages, segment, Outbox(pages.num_rows, LAYOUT.block_size, keep))
    pipe.send(producer.address)
    while name := pipe.recv():
        one: Any = Request()
        producer.begin(one, name)
        for stop in range(LAYOUT.block_size, len(TOKENS) + LAYOUT.block_size, LAYOUT.block_size):
            producer.save(one, min(stop, len(TOKENS)))
        producer.end(one)
    producer.close()


def sums_of(sums: bool) -> Any:
    """Lets rows have their sums, or none."""
    return patch.object(wire, "zlib", zlib if sums else SimpleNamespace(crc32=lambda row: 0))


def transferred(
    sums: bool, produced: tuple[Any, tuple[str, int]], target: np.ndarray, transport: str, number: int
) -> float:
    """Seconds for a prompt, until the last row is copied out."""
    pipe, (host, port) = produced
    news, name, one, last = threading.Event(), f"{transport}{number}", cast(Any, Request()), 0
    where = {"transfer_id": name, "remote_host": host, "remote_port": port}
    with sums_of(sums):
        start = time.perf_counter()
        pipe.send(name)
        incoming = Incoming(TOKENS, 0, 10.0, time.monotonic() + 10.0)
        fetch = Fetch(here(transport=transport), incoming, one, where, news)
        while last < len(TOKENS) - 1 and not fetch.has_ended:
            news.wait(0.1)
            news.clear()
            while fetch.arrived:
                load = fetch.arrived.popleft()
                np.copyto(target[load.first // LAYOUT.block_size], np.frombuffer(load.row, np.uint8))
                last = load.tokens.stop
        seconds = time.perf_counter() - start
        fetch.close()
    assert last == len(TOKENS) - 1, fetch.error
    return seconds


def send_bare(pipe: Any) -> None:
    """Sends as many bytes for each number that comes."""
    server, row = socket.create_server(("127.0.0.1", 0)), bytes(LAYOUT.row_bytes)
    pipe.send(server.getsockname())
    connection = server.accept()[0]
    while pipe.recv():
        for _ in range(ROWS):
            connection.sendall(row)


def received_bare(pipe: Any, connection: socket.socket, target: np.ndarray) -> float:
    start = time.perf_counter()
    pipe.send(1)
    for row in target[:ROWS]:
        left = row.data
        while len(left):
            left = left[connection.recv_into(left) :]
    return time.perf_counter() - start


def copied(source: np.ndarray, target: np.ndarray) -> float:
    start = time.perf_counter()
    for row, place in zip(source[:ROWS], target[:ROWS], strict=True):
        np.copyto(place, row)
    return time.perf_counter() - start


def started(work: Callable[[Any], None]) -> tuple[Any, Any]:
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=work, args=[theirs], daemon=True)
    process.start()
    atexit.register(lambda: (ours.send(""), process.join()))
    return ours, ours.recv()


def measured() -> dict[str, float]:
    """GB/s of each way."""
    source, target = (np.ones((ROWS + 1, LAYOUT.row_bytes), np.uint8) for _ in range(2))
    ways: dict[str, Callable[[int], float]] = {"memcpy": lambda _: copied(source, target)}
    bare, place = started(send_bare)
    connection = socket.create_connection(place)
    ways["a bare socket"] = lambda _: received_bare(bare, connection, target)
    for sums in (True, False):
        with sums_of(sums):
            produced = started(produce)
        for transport in ("shared_memory", "tcp"):
            name = f"{transport}{'' if sums else ', without sums'}"
            ways[name] = partial(transferred, sums, produced, target, transport)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):  # the first one finds memory that is not there yet
        for name, run in ways.items():
            seconds[name].append(run(number))
    return {name: SIZE / statistics.median(each[1:]) / 1e9 for name, each in seconds.items()}


if __name__ == "__main__":
    speeds = measured()
    print(f"{ROWS} rows of {LAYOUT.row_bytes / 1e6:.1f} MB, {processor_name()}")
    for name, speed in speeds.items():
        base = "a bare socket" if name.startswith("tcp") else "memcpy"
        print(f"{name:32} {speed:5.2f} GB/s, {speed / speeds[base]:4.0%} of {base}")
