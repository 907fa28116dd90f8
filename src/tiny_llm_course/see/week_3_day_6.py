"""The screen of Day 3.6: what each reader receives and when, then the shipped model over HTTP.

The first part runs the learner's loop in virtual time; its engine gives one letter per step.
"""

import asyncio
import json
import time
from http.client import HTTPConnection, HTTPResponse
from typing import Any

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import RequestStream, ServingPackage
from tiny_llm_extensions.llm import LLM
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.server import ServerOptions, create_app

from ..fakes.fake_engine import FakeAnswer, FakeEngine
from ..grading.virtual_time import SlowExecutor, VirtualTimeLoop, run_virtually
from .shared import MODEL, shipped

QUESTION = "What is a KV cache?"
ROWS, PLACES = 3, 4  # answers that run, and that are open
READERS = {
    "fast": ("cyan", "abcdefghijkl", "reads every piece as it comes"),
    "slow": ("magenta", "ABCDEFGHIJKL", "reads every third step"),
    "leaves": ("yellow", "mnopqrstuvwx", "goes away after its third piece"),
    "waits": ("green", "012345", "has a row when the one above has left"),
}
SECONDS, WIDTH = 15, 5
WATCHED = {
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "request_success_total",
    "generation_tokens_total",
}
MEASURED = (r"tokens_total +\d+",)  # how many tokens there were when the client left


def show(b: Port, console: Console) -> None:
    """Draw five readers of one loop, then a stream, a refusal and the metrics of a real server."""
    s = b.serving
    _readers(s, console)
    _server(b, console)


# ---- the loop


def _readers(s: ServingPackage, console: Console) -> None:
    read: dict[str, dict[int, str]] = {name: {} for name in READERS}
    refused = run_virtually(lambda clock: _run(s, clock, read))
    console.print(f"{ROWS} rows, {PLACES} places; a step and a column per second, a letter per token\n")
    for name, (colour, _, says) in READERS.items():
        line = "".join(f"{read[name].get(second, '·'):<{WIDTH}}" for second in range(2, SECONDS + 1))
        console.print(Text.assemble(f"{name:<8}", (line, colour)))
        console.print(Text(f"        {says}", "dim"))
    console.print(Text.assemble("refused ", ("429", "red"), (f"  {refused}", "dim")))
    console.print()


async def _run(s: ServingPackage, clock: VirtualTimeLoop, read: dict[str, dict[int, str]]) -> str:
    loop: Any = s.EngineLoop(PLACES)  # with another worker, and an engine and answers that are fakes
    loop._worker.shutdown()
    loop._worker = SlowExecutor()
    await loop.open(lambda: FakeEngine(ROWS))
    serving = asyncio.create_task(loop.serve())
    streams = {name: loop.submit([FakeAnswer(text)]) for name, (_, text, _) in READERS.items()}
    readers = [_read(name, stream, clock, read[name]) for name, stream in streams.items()]
    refused = _refusal(s, loop)
    await asyncio.gather(*readers)
    await loop.stop(60)
    await serving
    return refused


async def _read(name: str, stream: RequestStream, clock: VirtualTimeLoop, seen: dict[int, str]) -> None:
    async for pieces in stream:
        second = int(clock.time())
        seen[second] = seen.get(second, "") + "".join(piece.text for piece in pieces)
        if name == "leaves" and len(seen) == 3:
            stream.close()
            return
        if name == "slow":
            await asyncio.sleep(3)


def _refusal(s: ServingPackage, loop: Any) -> str:
    try:
        loop.submit([FakeAnswer()])
    except s.QueueFull as error:
        return str(error)
    return "no request was refused"


# ---- the server


def _server(b: Port, console: Console) -> None:
    """A server with one row and no queue, so that a second request finds it full."""

    def open_llm() -> LLM:
        network = b.Qwen3ModelWeek3(shipped(b))
        return LLM.of(b, network, load_tokenizer(MODEL), num_blocks=8, max_num_seqs=1)

    options = ServerOptions(MODEL, b.solution.__name__.partition(".")[0], max_queue=0)
    with BackgroundServer(create_app(open_llm, options)) as server:
        _stream(server, console)
        first = server.connection()
        answer = _post(first, {"stream": True, "ignore_eos": True, "max_completion_tokens": 1000})
        answer.readline()
        _refused(server, console)
        answer.close()
        first.close()
        console.print("\nthe first client closes its connection\n")
        _metrics(server, console)


def _post(connection: HTTPConnection, options: Json) -> HTTPResponse:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, **options}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    return connection.getresponse()


def _stream(server: BackgroundServer, console: Console) -> None:
    connection = server.connection()
    answer = _post(connection, {"stream": True})
    console.print(f"POST /v1/chat/completions, stream: {QUESTION!r}: {answer.status}")
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
    console.print(Text("│".join(filter(None, deltas)), "cyan"), soft_wrap=False)
    console.print(f"{events[-1]}\n")
    connection.close()


def _refused(server: BackgroundServer, console: Console) -> None:
    connection = server.connection()
    answer = _post(connection, {})
    after = answer.headers["Retry-After"]
    console.print(f"a second request meanwhile: {answer.status}, Retry-After: {after}")
    console.print(Text(json.loads(answer.read())["error"]["message"], "yellow"))
    connection.close()


def _metrics(server: BackgroundServer, console: Console) -> None:
    """Print the metrics once the engine has noticed that the client is gone."""
    end = time.monotonic() + 10
    while True:
        connection = server.connection()
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        if 'finished_reason="abort"' in "".join(lines) or time.monotonic() > end:
            break
        time.sleep(0.01)
    for line in lines:
        name, _, value = line.removeprefix("vllm:").rpartition(" ")
        if not line.startswith("#") and name.partition("{")[0] in WATCHED:
            reason = name.partition('finished_reason="')[2].partition('"')[0]
            label = " ".join(filter(None, (name.partition("{")[0], reason)))
            console.print(f"vllm:{label:<30} {float(value):g}")
