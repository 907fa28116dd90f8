"""`pdm run soak --server`: clients that leave, read slowly and come in bursts; and it finds a server that is wrong."""

import threading
from itertools import cycle
from types import SimpleNamespace

import pytest

from tests_refsol.long import harness, server_soak
from tests_refsol.long.harness import SoakError
from tests_refsol.long.server_soak import Seen, ServerSoak, Visit
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port

PORT = installed_backends()[-1]


@pytest.fixture(autouse=True)
def small_model_and_short_rests(monkeypatch, two_layers):
    monkeypatch.setattr(harness, "MODEL", two_layers)
    monkeypatch.setattr(server_soak, "PAUSE", 0.02)
    monkeypatch.setattr(server_soak, "REST", 0.1)


def soak(seed: int, port: str = PORT, **options) -> ServerSoak:
    return ServerSoak(Port("tiny_llm_ref", port, "cpu", "float32"), seed, **options)


@pytest.mark.parametrize(
    ("burstiness", "port"), [*zip(server_soak.SHAPES.values(), cycle(installed_backends()))]
)
def test_nobody_is_lost_and_nothing_is_left_when_a_third_of_the_clients_go_away(
    burstiness, port, monkeypatch
):
    """Each port has one of the arrival patterns, and a layer that raises now and then.

    On a machine of any speed: the first step is held until a client has been refused, so six others wait to run, and
    three of their answers are more than the pool. Two clients leave at a time of their own; the others that want to
    leave may have had the whole answer before.
    """
    made, is_full = soak(seed=5, port=port, max_queue=3), threading.Event()
    made.prompts = SimpleNamespace(draw=lambda: (made.rng.integers(300, 600, 20).tolist(), 24))
    asked, count = server_soak.ask, made._count

    async def ask(*arguments):
        wait = await asked(*arguments)
        if wait is not None:
            is_full.set()
        return wait

    def hold(event):
        assert is_full.wait(300)
        count(event)

    monkeypatch.setattr(server_soak, "ask", ask)
    monkeypatch.setattr(made, "_count", hold)
    counts = made.run(24, burstiness, seconds=0.02)
    assert counts.completed + counts.left + counts.failed == 24
    assert counts.failures > 0 and counts.failed > 0
    assert counts.completed > 8 and counts.left >= 2 and counts.slow > 0
    assert counts.refused > 0 and counts.preemptions > 0  # the queue was full, and so was the pool
    assert counts.near_ties == []


def test_a_block_that_is_not_given_back_is_found(monkeypatch):
    made = soak(seed=1)
    check = made._check_memory

    def leak():
        check()
        made.engine.allocator.allocate(1)
        monkeypatch.setattr(server_soak, "IDLE", 0.1)
        check()

    monkeypatch.setattr(made, "_check_memory", leak)
    with pytest.raises(SoakError, match="1 blocks were not freed"):
        made.run(2, 1.0, seconds=0.1)


def test_a_server_that_answers_with_another_text_is_found(monkeypatch):
    made = soak(seed=1)
    visit_all = server_soak.visit_all

    async def changed(port, visits):
        seen = await visit_all(port, visits)
        return [Seen(one.text + "x", one.reason) for one in seen]

    monkeypatch.setattr(server_soak, "visit_all", changed)
    with pytest.raises(SoakError, match="seed 1, client 0: ended with"):
        made.run(2, 1.0, seconds=0.1)


def test_an_answer_without_an_end_is_lost(monkeypatch):
    made = soak(seed=1)
    visit = Visit([1, 2, 3], 4, 0.0, leaves_after=None, pause=0.0, streams=True)
    with pytest.raises(SoakError, match="without a reason"):
        made._check(0, visit, Seen("text", None))
