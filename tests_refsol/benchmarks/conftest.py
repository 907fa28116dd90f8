"""What the tests of benchmarks share: a command that is run and read back, a folder for results, and a server."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from benchmarks import serve, stalls
from book.tools import screens
from tests_refsol.benchmarks.stand_in import StandIn
from tiny_llm_course.trace import provenance
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port


@pytest.fixture
def bench(capsys, tmp_path) -> Callable[..., tuple[str, dict]]:
    """Runs a command with options as they are typed: what it prints, and its result."""

    def run(main: Callable[[list[str]], object], *options: str) -> tuple[str, dict]:
        file = tmp_path / "result.json"
        main([*" ".join(options).split(), "--json", str(file)])
        return capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))

    return run


@pytest.fixture
def results(monkeypatch, tmp_path) -> Path:
    """An empty folder of sealed results."""
    for module in (provenance, screens):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    return tmp_path


@pytest.fixture
def quick_roofs(monkeypatch) -> list[int]:
    """Roofs that take no time: the sizes of products that were asked for."""
    asked = []
    for backend in installed_backends():
        kit = Port("tiny_llm_ref", backend, "cpu", "float32").backend_module
        monkeypatch.setattr(kit, "read_bandwidth", lambda device: 1e9)
        monkeypatch.setattr(kit, "product_speed", lambda device, dtype, size: asked.append(size) or 2e9)
    return asked


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    made = StandIn()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(made.app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        made.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield made
        server.should_exit = True
        thread.join()


@pytest.fixture
def started(stand_in, monkeypatch) -> list:
    """Servers that commands were to start; the stand-in answers for each of them."""
    asked = []

    @contextmanager
    def running(server) -> Iterator[str]:
        asked.append(server)
        yield stand_in.url

    for module in (serve, stalls):
        monkeypatch.setattr(module, "running", running)
    return asked
