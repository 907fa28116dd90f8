"""The ports that tests of one port alone run on."""

import pytest

from tiny_llm_engine.solutions.port import Port


@pytest.fixture(scope="session")
def port() -> Port:
    """PyTorch on the CPU, with the reference; a file for another port has its own fixture of this name."""
    return Port("tiny_llm_ref", "torch", "cpu")


@pytest.fixture(scope="session")
def mlx_port() -> Port:
    """MLX on the CPU, with the reference."""
    return Port("tiny_llm_ref", "mlx", "cpu")
