"""What it costs on MLX when nobody evaluates the caches between the chunks of a prompt."""

import io

import mlx.core as mx
import pytest
from rich.console import Console

from book.tools.console import COLUMNS
from support.close import assert_close
from tiny_llm_course.see import chunk_costs
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.solutions.port import Port


@pytest.fixture(scope="module")
def port():
    return Port("tiny_llm_ref", "mlx", "cpu")


@pytest.fixture(autouse=True)
def checkpoint(port, monkeypatch, two_layers):
    weights = load_checkpoint(two_layers, "mlx", "cpu", port.float_dtype)
    monkeypatch.setattr(chunk_costs, "shipped", lambda port: weights)


def test_what_waits_grows_with_the_prompt(port):
    """Both hold the cache; without materialize() all the chunks' work is held as well."""
    (short, short_lazy), (long, long_lazy) = (chunk_costs.lazy_bytes(port, 32, n) for n in (64, 192))
    assert long_lazy > 1.4 * long
    assert long_lazy / long > short_lazy / short


def test_the_numbers_are_the_same(port):
    chunks = chunk_costs.Chunks(port, chunk_costs.shipped(port), "device", 96)
    computed, lazy = (chunks.prefill(32, materialize) for materialize in (True, False))
    assert mx.allclose(computed, lazy, atol=1e-4)
    assert_close(port.numpy(lazy), port.numpy(chunks.prefill(96)), atol=1e-3, idea="chunks and one shot")


def test_the_screen_of_lazy_chunks(port, monkeypatch):
    monkeypatch.setattr(chunk_costs, "LAZY_LENGTHS", (64, 128))
    console = Console(file=io.StringIO(), width=200)
    chunk_costs.show_lazy_chunks(port, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert [line.split()[0] for line in lines if "×" in line] == ["64", "128"]
