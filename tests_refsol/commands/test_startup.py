"""What a start does: `--help` and `course status` import what they use, and parse a file of the course once."""

import importlib
import json
import os
import subprocess
import sys

import pytest

import tiny_llm_engine
from tiny_llm_engine.machine.repo import ROOT, command_modules

# What a start may import beside Python's own: libraries, and packages of the course. The rest is for a model, or for
# another command.
GIVEN = {"tiny_llm_engine", "tiny_llm_extensions", "tiny_llm_course", "tiny_llm_course.commands"}
MAY_IMPORT = {
    "main --help": GIVEN,
    "doctor --help": GIVEN | {"tiny_llm_course.trace"},
    "course status": GIVEN | {"authors", "rich", "tiny_llm_course.trace"},
}
# Of the libraries and of Python itself, what takes long to import and is not used here.
SLOW = {"asyncio", "multiprocessing", "rich.live", "rich.markdown", "rich.progress", "ssl", "unittest"}
PROGRAM = """
import json, runpy, sys
before, parsed = {*sys.modules}, []
sys.addaudithook(lambda name, of: name == "compile" and of[1] == "<unknown>" and parsed.append(hash(of[0])))
del sys.argv[0]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    print(json.dumps([sorted({*sys.modules} - before), parsed]), file=sys.stderr)
"""


@pytest.fixture(scope="module", params=MAY_IMPORT)
def start(request) -> tuple[str, set[str], list[int]]:
    """A command, the modules that it imports, and a number for each text that it parses.

    A process of its own for each: here the libraries are imported already.
    """
    name, *arguments = request.param.split()
    line = [sys.executable, "-c", PROGRAM, command_modules()[name], *arguments]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules, parsed = json.loads(done.stderr)
    return request.param, set(modules), parsed


def room_of(module: str) -> str:
    """A library's name; of the course also its two rooms that not everybody needs."""
    package, *inner = module.split(".")
    rooms = {"commands", "trace"} if package == "tiny_llm_course" else set()
    return ".".join([package, *rooms.intersection(inner[:1])])


def test_a_start_imports_what_it_uses(start):
    command, modules, _ = start
    assert "argparse" in modules, "the report of imports is there"
    rooms = {room_of(module) for module in modules} - sys.stdlib_module_names
    assert rooms <= MAY_IMPORT[command]
    assert not modules & SLOW


def test_a_start_parses_a_file_once(start):
    """`--help` parses none. Most files of the course have several exercises."""
    command, _, parsed = start
    again = len(parsed) - len(set(parsed))
    assert not again, f"{again} of {len(parsed)} texts were parsed before"
    assert bool(parsed) == (command == "course status"), f"{command} parses {len(parsed)} files"


QUIET = [("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "1000"), ("OPENBLAS_THREAD_TIMEOUT", "4")]


@pytest.mark.parametrize(("name", "value"), QUIET)
def test_waiting_threads_sleep_unless_the_user_says_otherwise(monkeypatch, name, value):
    """Two commands at once took 20 times as long as one while their threads spun."""
    monkeypatch.delenv(name, raising=False)
    importlib.reload(tiny_llm_engine)
    assert os.environ[name] == value
    monkeypatch.setenv(name, "mine")
    importlib.reload(tiny_llm_engine)
    assert os.environ[name] == "mine"
