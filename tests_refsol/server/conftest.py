"""What the tests of the server share: a small model, loaded once for each port, and OpenAI's client."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_server.background_server import BackgroundServer
from tiny_llm_server.server import ServerOptions, create_app

from .asking import client_of

Loaded = tuple[Port, Any, Any]


def loaded_on(backend: str, folder: Path) -> Loaded:
    """A small model on a port: (port, network, tokenizer)."""
    port = Port("tiny_llm_ref", backend, "cpu", "float32")
    made = port, *load_network(port, folder, "week3")
    # MLX's arrays belong to the thread that evaluates them first: no weight may be left to a server's thread.
    LLM.of(*made, block_size=16, num_blocks=8, enforce_eager=True).generate([[5]], use_tqdm=False)
    return made


@pytest.fixture(scope="session")
def loaded(two_layers: Path) -> Loaded:
    return loaded_on(installed_backends()[0], two_layers)


@pytest.fixture(scope="session")
def loaded_last(two_layers: Path) -> Loaded:
    """The same on the last port, so that both ports serve."""
    return loaded_on(installed_backends()[-1], two_layers)


@pytest.fixture(scope="session")
def shipped() -> Loaded:
    """The shipped model, whose answers have an end."""
    return loaded_on(installed_backends()[0], MODELS / "tiny-qwen3")


@pytest.fixture(scope="session")
def client_with(loaded: Loaded) -> Callable[..., AbstractContextManager[openai.OpenAI]]:
    """A context that runs a server with these options of the engine, and gives OpenAI's client of it."""

    @contextmanager
    def run(model: Loaded = loaded, **engine: Any) -> Iterator[openai.OpenAI]:
        app = create_app(lambda: LLM.of(*model, **engine), ServerOptions())
        with BackgroundServer(app) as server, client_of(server) as client:
            yield client

    return run
