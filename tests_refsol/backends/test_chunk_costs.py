"""The memory of chunks, as the screen of Day 2.7 shows it."""

import io

import pytest
from rich.console import Console

from book.tools.console import COLUMNS
from tiny_llm_course.see import chunk_costs


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(chunk_costs, "CONTEXT", 256)
    monkeypatch.setattr(chunk_costs, "SIZES", (16, 64, 256))
    monkeypatch.setattr(chunk_costs, "LAZY_LENGTHS", (64, 128))


def printed(show, b) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    show(b, console)
    return console.file.getvalue().splitlines()


def test_activations_grow_with_the_chunk(b):
    """About as the chunk, at one context; the table of scores of simple attention is the larger part.

    Four times the chunk would take sixteen times the memory if it grew as the square. On a busy machine, MLX counts an
    array a little early or late: hence the wide bounds, and the least of three.
    """
    tries = [
        [chunk_costs.activation_bytes(b, name, (16, 64), 512) for name in ("simple", "device")]
        for _ in range(3)
    ]
    simple, device = (
        {size: min(each[size] for each in of_way) for size in (16, 64)} for of_way in zip(*tries, strict=True)
    )
    assert 2 < simple[64] / simple[16] < 12, simple
    assert 1.5 < device[64] / device[16] < 12, device
    table = 64 * 512 * 4 * 4  # queries, keys, heads, bytes
    assert simple[64] > table and simple[64] > device[64]


def test_the_screen_of_activations(b, small):
    lines = printed(chunk_costs.show_activation_memory, b)
    assert max(map(len, lines)) <= COLUMNS
    assert [line.split()[0] for line in lines if " simple " in line and "MiB" in line] == ["16", "64", "none"]
    assert sum("device " in line and "MiB" in line for line in lines) == 3
