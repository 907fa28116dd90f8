"""The part `native` of the course, C++ and Python, in a copy of the repository with a day of kernels."""

import pytest

from tiny_llm_course import progress, tree
from tiny_llm_course.tree import parts_of, source_files
from tiny_llm_engine.machine.installation import installed_backends

PORT = installed_backends()[-1]
DAY = ("--week", "9", "--day", "1", "--backend", PORT)
FILES = {
    "echo.h": "#pragma once\n#define FACTOR 1\n",
    "echo.cpp": """\
#include "echo.h"

extern "C" int echo(int x, int* out) {
  // TASK 9.1.1: the number itself.
  *out = FACTOR * x;
  return 0;
  // END TASK
}
""",
    # What it runs instead of a compiler: a blank is seen in the text.
    "echo.py": """\
import pkgutil


def echo(x: int) -> int:
    text = pkgutil.get_data(__package__, "echo.cpp").decode()
    if "return 1;" in text:
        raise NotImplementedError("week 9 day 1 task 1: echo")
    return x
""",
}
TEST = """\
from importlib import import_module

import pytest


@pytest.mark.task("9.1.1")
def test_echo(b):
    solution = b.solution.__name__.partition(".")[0]
    assert import_module(f"{solution}.native.echo").echo(3) == 3
"""
CHAPTER = """\
### Task 9.1.1: echo

<details class="hint"><summary>Hint: the factor</summary>It is in the header.</details>
"""
BLANK = "  // TASK 9.1.1: the number itself.\n  return 1;\n  // END TASK\n"


@pytest.fixture
def native(clone):
    """A committed copy with Day 9.1, whose only task is a kernel; the stubs are not generated yet."""
    folder = clone.root / "src" / "tiny_llm_ref" / "native"
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (clone.root / "tests" / "test_week_9_day_1.py").write_text(TEST, encoding="utf-8")
    (clone.root / "book" / "src" / "week9-01-echo.md").write_text(CHAPTER, encoding="utf-8")
    clone.git("add", "-A")
    clone.git("commit", "-qm", "a day of kernels")
    return clone


@pytest.fixture
def learner(native):
    """The learner's folder of kernels, with stubs that are committed."""
    assert native.run("course", "sync").returncode == 0
    native.git("add", "-A")
    native.git("commit", "-qm", "its stubs")
    return native.learner / "native"


def status_of(clone) -> str:
    """The line of Task 9.1.1 in `course status`."""
    done = clone.run("course", "status", "--backend", PORT)
    [line] = [line for line in done.stdout.splitlines() if line.startswith("9.1 ")]
    return " ".join(line.split())


def test_sync_cuts_the_kernels_and_copies_their_header(native, learner):
    assert BLANK in (learner / "echo.cpp").read_text(encoding="utf-8")
    for name in ("echo.h", "echo.py"):
        assert (learner / name).read_text(encoding="utf-8") == FILES[name]
    assert native.run("course", "sync").stdout == "nothing to do\n"


def test_sync_never_overwrites_work_in_a_kernel(native, learner):
    path = learner / "echo.cpp"
    mine = path.read_text(encoding="utf-8").replace("return 1;", "return 0;  // my attempt")
    path.write_text(mine, encoding="utf-8")
    done = native.run("course", "sync")
    assert done.returncode == 1 and "src/tiny_llm/native/echo.cpp" in done.stderr
    assert path.read_text(encoding="utf-8") == mine


def test_the_check_of_the_stubs_names_a_header_that_is_stale_and_a_marker_that_does_not_fit(native, learner):
    (learner / "echo.h").write_text("#pragma once\n", encoding="utf-8")
    done = native.run("course", "sync", "--check")
    assert done.stdout == "src/tiny_llm/native/echo.h: stale; run `pdm run course sync`\n"
    reference = native.root / "src" / "tiny_llm_ref" / "native" / "echo.cpp"
    reference.write_text(FILES["echo.cpp"].replace("  // END TASK\n", ""), encoding="utf-8")
    done = native.run("course", "sync", "--check")
    assert done.stdout == "tiny_llm_ref/native/echo.cpp:4: close TASK 9.1.1 with // END TASK\n"


def test_a_kernel_is_blank_then_filled_then_green_until_a_file_of_its_part_changes(native, learner):
    assert status_of(native) == "9.1 9.1.1 native blank echo"
    done = native.run("test", *DAY)
    assert done.returncode == 1 and done.stdout.count("blank: week 9 day 1 task 1: echo") == 1
    native.run("course", "skip", *DAY)
    assert (learner / "echo.cpp").read_text(encoding="utf-8") == FILES["echo.cpp"]
    assert status_of(native) == "9.1 9.1.1 native filled echo"
    assert native.run("test", *DAY).returncode == 0
    assert status_of(native) == "9.1 9.1.1 native green echo"
    (learner / "echo.h").write_text("#pragma once\n#define FACTOR 2\n", encoding="utf-8")
    assert status_of(native) == "9.1 9.1.1 native filled echo"


def test_reset_puts_one_kernel_back_and_keeps_a_backup(native, learner):
    path = learner / "echo.cpp"
    stub = path.read_text(encoding="utf-8") + "\nstatic int mine() { return 1; }\n"
    mine = stub.replace("  return 1;\n", "  if (x) {\n    *out = x;\n  }\n  return 0;\n")
    path.write_text(mine, encoding="utf-8")
    done = native.run("course", "reset", *DAY)
    assert path.read_text(encoding="utf-8") == stub
    kept = native.root / done.stdout.split("kept in ")[1].strip() / "native" / "echo.cpp"
    assert kept.read_text(encoding="utf-8") == mine


def test_a_kernel_that_is_gone_or_not_closed_is_named(native, learner):
    path = learner / "echo.cpp"
    path.write_text(path.read_text(encoding="utf-8").replace("\n}\n", "\n"), encoding="utf-8")
    done = native.run("course", "reset", *DAY)
    assert "src/tiny_llm/native/echo.cpp: no function echo to put back; add --whole-files" in done.stderr
    path.write_text('#include "echo.h"\n', encoding="utf-8")
    assert status_of(native) == "9.1 9.1.1 native blank echo"
    done = native.run("course", "skip", *DAY)
    assert "src/tiny_llm/native/echo.cpp: no function echo;" in done.stdout


def test_a_kernel_has_hints(native):
    assert "Hint 1 of 1: the factor" in native.run("course", "hint", "9.1.1").stdout


def test_a_part_without_exercises_or_without_a_folder_is_no_part_yet(monkeypatch, tmp_path):
    monkeypatch.setattr(tree, "REFERENCE", tmp_path)
    assert source_files(tmp_path / "native") == [] and parts_of([PORT]) == [PORT]


def test_a_fingerprint_covers_kernels_and_headers(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "LEARNER", tmp_path)
    seen = {progress.fingerprint("native")}
    (tmp_path / "native").mkdir()
    for number, name in enumerate([*FILES, "echo.so", "notes.txt"], 2):
        (tmp_path / "native" / name).write_text(name, encoding="utf-8")
        seen.add(progress.fingerprint("native"))
        assert len(seen) == min(number, 1 + len(FILES))
