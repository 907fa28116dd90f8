"""Servers that the benchmark starts: ours with its options, and that of transformers on the same model."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tiny_llm_engine.models.hub import model_path

from .client import WHOLE_ANSWERS

HOST = "127.0.0.1"
START_SECONDS, STOP_SECONDS = 300.0, 30.0


@dataclass(frozen=True)
class Server:
    """A server's command line."""

    command: tuple[str, ...]  # without the host and the port, which are added as `--host` and `--port`
    model: str  # the name that requests carry
    ready: str  # the path that answers 200 when requests can be sent
    # fields of every request, without which the servers would not do the same work
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to this process's own


@dataclass(frozen=True)
class Place:
    """The code, the port and the device of our server."""

    solution: str
    backend: str
    device: str


def our_server(place: Place, model: str, options: Mapping[str, Any]) -> Server:
    """The server of `pdm run serve`; `options` are those of `LLM`, None for its defaults. `model` may be a path."""
    command = [sys.executable, "-m", "tiny_llm_course.commands.serve", "--solution", place.solution]
    command += ["--backend", place.backend, "--device", place.device]
    command += ["--model", model, "--served-model-name", model, *flags(options)]
    return Server(tuple(command), model, "/ready", WHOLE_ANSWERS)


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed, without those that are None."""
    found: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            found.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, Mapping):
            found += [f"--{option}", json.dumps(value)]
        elif value is not None:
            found += [f"--{option}", str(value)]
    return found


def transformers_server(model: str, dtype: str, rows: int, room: int, block_size: int) -> Server:
    """`transformers serve` with its continuous batching, on a CPU.

    Its pool holds as many tokens as ours: by default it takes 90 % of the memory. It has no field `ignore_eos`; an end
    token that never comes does the same.

    Args:
        rows, room: requests that run at the same time, and tokens of the longest one.

    Raises:
        ValueError: a package that it needs is missing.
    """
    missing = [name for name in ("transformers", "accelerate", "psutil") if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"--compare transformers: {' and '.join(missing)} missing; run "
            f"`python -m pip install --no-deps {' '.join(missing)}` in this project's environment"
        )
    folder = str(model_path(model))
    blocks = rows * -(-room // block_size)
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", folder]
    command += ["--continuous-batching", "--device", "cpu", "--dtype", dtype]
    command += ["--cb-block-size", str(block_size), "--cb-num-blocks", str(blocks)]
    endless = {"generation_config": json.dumps({"do_sample": False, "eos_token_id": -1})}
    return Server(tuple(command), folder, "/health", endless, {"HF_HUB_OFFLINE": "1"})


@contextmanager
def running(server: Server) -> Iterator[str]:
    """Start a server, wait until it is ready, yield its base URL, and end it.

    Raises:
        ValueError: it ends before it is ready, or is not ready in time; see `_why_not`.
    """
    url = f"http://{HOST}:{free_port()}"
    command = [*server.command, "--host", HOST, "--port", url.rpartition(":")[2]]
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **server.environment}
        )
        print(f"waiting for the server on {url}", file=sys.stderr, flush=True)
        try:
            if not _becomes_ready(process, url + server.ready):
                log.seek(0)
                raise ValueError(_why_not(server, log.read(), process.returncode))
            yield url
        finally:
            _end(process)


def _why_not(server: Server, log: str, code: int | None) -> str:
    """The line with which a server has refused to start, or the end of its log if it has crashed or hangs."""
    if code and log.strip() and "Traceback" not in log:
        return log.strip().splitlines()[-1]
    return f"{' '.join(server.command)}: not ready\n{log[-2000:]}"


def _becomes_ready(process: subprocess.Popen, url: str) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if fetched(url) is not None:
            return True
        time.sleep(0.2)
    return False


def fetched(url: str) -> str | None:
    """What a server on this machine answers with status 200; None if it answers otherwise, or not at all."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with suppress(OSError), direct.open(url, timeout=5) as reply:
        if reply.status == 200:
            return reply.read().decode()
    return None


def _end(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
