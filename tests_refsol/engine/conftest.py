"""What the tests of the engine share: a small model on each port."""

import pytest

from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port


@pytest.fixture(scope="module", params=installed_backends())
def loaded(request, two_layers):
    """A small model on one port: (port, network, tokenizer)."""
    port = Port("tiny_llm_ref", request.param, "cpu", "float32")
    return port, *load_network(port, two_layers, "week3")
