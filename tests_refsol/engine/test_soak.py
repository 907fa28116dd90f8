"""`pdm run soak`: it sees what it is for, and it finds an engine that is wrong."""

import os
import re
from dataclasses import replace
from importlib.util import find_spec, module_from_spec
from unittest.mock import patch

import pytest

from tests_refsol.long import engine_soak as soak
from tests_refsol.long import harness, memory_soak
from tests_refsol.long import soak as command
from tests_refsol.long.engine_soak import Soak
from tests_refsol.long.harness import SoakError
from tiny_llm_engine.machine import ram
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port


@pytest.fixture(scope="module", params=installed_backends())
def port(request) -> Port:
    return Port("tiny_llm_ref", request.param, "cpu", "float32")


@pytest.fixture(autouse=True)
def small_model(monkeypatch, two_layers):
    monkeypatch.setattr(harness, "MODEL", two_layers)


def test_a_soak_preempts_shares_cancels_and_finds_nothing(port, monkeypatch):
    monkeypatch.setattr(soak, "CANCELS", 0.1)
    made = Soak(port, seed=1)
    for _ in range(2):
        made.wave(8)
    counts = made.counts
    assert counts.requests == 16 and counts.tokens > 40
    assert counts.preemptions > 0 and counts.cached_tokens > 0 and counts.cancelled > 0
    assert counts.near_ties == []


NOT_GIVEN_BACK = [
    (lambda engine: engine.allocator.allocate(1), "1 blocks were not freed"),
    (lambda engine: engine._open.update({-1: None}), "still open: 1 request"),
]


@pytest.mark.parametrize(("break_it", "says"), NOT_GIVEN_BACK)
def test_what_is_not_given_back_is_found(port, break_it, says):
    made = Soak(port)
    break_it(made.pressed.engine)
    with pytest.raises(SoakError, match=says):
        made.wave(2)


def test_a_wrong_token_is_found_with_its_seed(port, monkeypatch):
    made = Soak(port, seed=3)
    run = made.pressed.engine.runner.run

    def wrong(batch):
        return [type(each)((each.token + 1) % 3520) for each in run(batch)]

    monkeypatch.setattr(made.pressed.engine.runner, "run", wrong)
    with pytest.raises(SoakError, match=r"seed 3, request \d+: token \d+ of the answer is not that"):
        made.wave(2)


def test_an_answer_that_ends_too_early_is_found(port, monkeypatch):
    """All its tokens are right, and so is its reason."""
    made = Soak(port, seed=3)
    request = made.pressed.engine.request

    def shorter(*arguments):
        made_request = request(*arguments)
        for sequence in made_request.sequences:
            half = max(1, sequence.sampling.max_tokens // 2)
            sequence.sampling = replace(sequence.sampling, max_tokens=half)
        return made_request

    monkeypatch.setattr(made.pressed.engine, "request", shorter)
    with pytest.raises(SoakError, match=r"ended with \('length', \d+\), and alone with \('\w+', \d+\)"):
        made.wave(4)


def test_the_command_prints_what_it_has_seen(capsys):
    command.main(["--minutes", "0.0001", "--device", "cpu", "--backend", installed_backends()[-1]])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(", ")[-1] for line in lines] == ["hybrid", "separate"]
    assert all(re.search(r"\d+ requests, \d+ tokens, .* 0 near ties$", line) for line in lines)


def test_a_failure_ends_it_with_one_line(monkeypatch, refused):
    def fails(*arguments):
        raise SoakError("seed 0, request 3: wrong")

    monkeypatch.setattr(command, "soak_engine", fails)
    assert "request 3: wrong\n" in refused(command.main, ["--minutes", "0.0001", "--device", "cpu"])


def test_memory_is_reported_after_each_thousand_requests(port, monkeypatch, capsys):
    """Here after each six, and at the end."""
    monkeypatch.setattr(memory_soak, "WAVE", 3)
    monkeypatch.setattr(memory_soak, "REPORT", 6)
    command.main(["--requests", "8", "--backend", port.name, "--device", "cpu"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" after ")[1] for line in lines] == ["0 requests", "6 requests", "8 requests"]


def test_the_memory_is_the_resident_pages(monkeypatch, tmp_path):
    """A file of known content: what an allocation adds depends on the pages that the process has to spare."""
    statm = tmp_path / "statm"
    statm.write_text("500 70 9 1 0 300 0\n", encoding="utf-8")
    monkeypatch.setattr(ram, "STATM", statm)
    assert ram.resident_bytes() == 70 * os.sysconf("SC_PAGE_SIZE")


def test_where_the_system_does_not_tell_its_memory_it_is_one_line(port, monkeypatch, tmp_path, refused):
    monkeypatch.setattr(ram, "STATM", tmp_path / "statm")
    said = refused(command.main, ["--requests", "8", "--backend", port.name, "--device", "cpu"])
    [*unused, line] = said.splitlines()  # the model has more layers than its config
    assert "only Linux has: run it there" in line and len(unused) < 2


@pytest.mark.port("torch")
def test_onednn_keeps_few_products():
    """Each number of rows is a product of its own; by default a thousand are kept, half a MiB each.

    Both are set when the port is imported, as it is again here. What a user has set stays.
    """
    spec = find_spec("tiny_llm_engine.backends.backend_torch")
    of_onednn, of_torch = "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"
    with patch.dict(os.environ, {of_torch: "1024"}):
        os.environ.pop(of_onednn, None)
        spec.loader.exec_module(module_from_spec(spec))
        assert (os.environ[of_onednn], os.environ[of_torch]) == ("64", "1024")
        del os.environ[of_torch]
        spec.loader.exec_module(module_from_spec(spec))
        assert os.environ[of_torch] == "64"
