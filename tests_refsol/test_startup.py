"""How long a command takes before it does anything: `--help` and `course status` import what they use."""

import importlib
import os
import subprocess
import sys

import pytest

import tiny_llm_kit
from tiny_llm_kit.repo import command_modules

COMMANDS = {"main --help": ["main", "--help"], "course status": ["course", "status"]}
# What only a model needs, and what only another command shows.
LATER = {"numpy", "torch", "mlx", "tokenizers", "safetensors", "huggingface_hub", "jinja2", "rich.markdown"}


def python(*arguments: str) -> tuple[float, str]:
    """Processor seconds of a process, and what it says on standard error.

    A real process: what is measured is a start.
    """
    started = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    errors = started.stderr.read()
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)
    assert started.returncode == 0, errors
    return used.ru_utime + used.ru_stime, errors


@pytest.mark.parametrize("command", COMMANDS)
def test_a_start_imports_what_it_uses(command):
    name, *arguments = COMMANDS[command]
    _, told = python("-X", "importtime", "-m", command_modules()[name], *arguments)
    imported = {line.rpartition("|")[2].strip() for line in told.splitlines()}
    assert "argparse" in imported, "the report of imports is there"
    assert imported & LATER == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_start_takes_less_than_half_a_second(command):
    """Beyond Python's own, in processor time, the best of three; on a slow machine Python itself is slow, too."""
    name, *arguments = COMMANDS[command]
    own = min(python("-c", "pass")[0] for _ in range(3))
    ours = min(python("-m", command_modules()[name], *arguments)[0] for _ in range(3))
    print(f"{command}: {ours:.2f} s, python -c pass: {own:.2f} s")
    assert ours - own < max(0.5, 15 * own)


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "1000"), ("OPENBLAS_THREAD_TIMEOUT", "4")],
)
def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch, name, value):
    """Two commands at once took 20 times as long as one while their threads spun."""
    monkeypatch.delenv(name, raising=False)
    importlib.reload(tiny_llm_kit)
    assert os.environ[name] == value
    monkeypatch.setenv(name, "mine")
    importlib.reload(tiny_llm_kit)
    assert os.environ[name] == "mine"
