"""`course grade` on what people hand in, good and bad. Each submission runs in a process: that is what is tested."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import jsonschema_rs
import pytest
from rich.console import Console

from authors.grade.cage import has_namespaces
from authors.grade.folders import remove_stale_folders
from authors.grade.grading import Clean, Rules, clean_copy, grade
from authors.grade.report import grade_many, summary
from authors.grade.submission import read_submission
from tiny_llm_course.address import Day
from tiny_llm_course.cut import fill
from tiny_llm_course.tree import REFERENCE, reference_files, stub_of, write
from tiny_llm_engine.machine.installation import default_port
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import FatalError

PORT = default_port()
SCHEMA = json.loads((ROOT / "docs/grading.schema.json").read_text(encoding="utf-8"))
RULES = Rules([Day(1, 1)], PORT, seconds=2, memory=2_000_000_000)
FILE = Path(f"{PORT}_backend/basics.py")
ANSWER = "    exps = "  # the first line of the answer to 1.1.1

IMPORTS = f"""    from tiny_llm_ref.{PORT}_backend import softmax
    return softmax(x, axis)
"""
LOOKS_FOR = f"    import sys\n    sys.path.insert(0, {str(ROOT / 'src')!r})\n{IMPORTS}"
FORKS = """import os
import time
if os.fork() == 0:
    for _ in range(200):
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
    time.sleep(60)
"""
FORGED = """import json
import os
print("27 passed in 0.10s", flush=True)
print(json.dumps({"schema": "tiny-llm/results", "version": 1, "complete": True, "points": 65}), flush=True)
os._exit(0)
"""
DELETES = """import shutil
for folder in ("tests", "src", CANARY):
    shutil.rmtree(folder, ignore_errors=True)
"""
# A grader whose submission says over a pipe that it runs; the pipe ends when the submission's process does.
GRADER = """import sys
from authors import course
from authors.grade import cage, folders, report
def grade_one(*_):
    with folders.temporary_folder() as folder:
        command = f"exec >{sys.argv[1]}; echo begun; exec sleep 600"
        cage.run(["sh", "-c", command], folder, {}, cage.Limits(600, 10**9))
report.grade_one = grade_one
course.main(["grade", "."])
"""


@pytest.fixture(scope="module")
def clean():
    with clean_copy() as copy:
        yield copy


@pytest.fixture
def hand_in(tmp_path: Path) -> Callable[..., Path]:
    """Writes a submission: the answers of Day 1.1, with code before the file and before the answer to 1.1.1."""

    def submission(top: str = "", softmax: str = "", answers: bool = True) -> Path:
        folder = tmp_path / "somebody"
        for file in reference_files():
            name, text = file.relative_to(REFERENCE), stub_of(file)
            if answers:
                solved = file.read_text(encoding="utf-8")
                text = fill(text, solved, name, lambda task: task.of_day == Day(1, 1))
            if name == FILE:
                text = top + text.replace(ANSWER, softmax + ANSWER, 1)
            write(folder / "src/tiny_llm" / name, text)
        return folder

    return submission


def graded(folder: Path, clean: Clean) -> dict:
    results = grade(read_submission(folder), clean, RULES)
    jsonschema_rs.validate(SCHEMA, results)
    return results


def rows_of(results: dict) -> dict[str, tuple[float, bool]]:
    return {row["task"]: (row["points"], row["passed"]) for row in results["tasks"]}


def first(results: dict) -> str:
    return results["tasks"][0]["first_failure"]


def test_an_empty_submission_has_no_points_and_runs_nothing(hand_in, clean):
    results = graded(hand_in(answers=False), clean)
    assert (results["points"], results["possible"], first(results)) == (0, 65, "blank")
    assert results["submission"]["seconds"] == 0
    kinds = {"task": results["tasks"][0], "submission": results["submission"]}
    assert results.keys() == SCHEMA["properties"].keys()
    assert all(SCHEMA["$defs"][name]["properties"].keys() == part.keys() for name, part in kinds.items())
    assert not jsonschema_rs.is_valid(SCHEMA, {**results, "version": 2})
    assert all(row["failing"] == [*row["tests"]] for row in results["tasks"])


def test_edited_tests_are_not_taken_and_are_named(hand_in, clean):
    folder = hand_in(softmax="    return x\n")
    write(folder / "tests/test_week_1_day_1.py", "def test_softmax(): pass\n")
    write(folder / "conftest.py", "raise SystemExit(0)\n")
    results = graded(folder, clean)
    points, passed = rows_of(results)["1.1.1"]
    assert points < 15 and not passed
    assert rows_of(results)["1.1.2"] == (5, True)
    assert results["submission"]["ignored"] == ["conftest.py", "tests/test_week_1_day_1.py"]
    assert "ignored: conftest.py, tests/test_week_1_day_1.py" in summary(results)


def test_what_a_submission_prints_is_no_result(hand_in, clean):
    results = graded(hand_in(top=FORGED), clean)
    assert results["points"] == 0
    assert first(results) == "its process ended by itself with exit code 0"


@pytest.mark.long
def test_a_filled_one_has_all_points_and_a_zip_file_too(hand_in, clean, tmp_path):
    folder = hand_in()
    points = enumerate((15, 5, 20, 25), 1)
    assert rows_of(graded(folder, clean)) == {f"1.1.{task}": (each, True) for task, each in points}
    with zipfile.ZipFile(tmp_path / "it.zip", "w") as archive:
        for file in folder.rglob("*.*"):
            archive.write(file, file.relative_to(tmp_path))
    assert read_submission(tmp_path / "it.zip").sources == read_submission(folder).sources


@pytest.mark.long
@pytest.mark.parametrize("code", [IMPORTS, *([LOOKS_FOR] if has_namespaces() else [])], ids=len)
def test_the_reference_cannot_be_imported(hand_in, clean, code):
    results = graded(hand_in(softmax=code), clean)
    assert rows_of(results)["1.1.1"] == (0, False)
    assert "ModuleNotFoundError: No module named 'tiny_llm_ref" in first(results)
    assert rows_of(results)["1.1.2"] == (5, True)


@pytest.mark.long
def test_a_loop_that_never_ends_costs_its_own_task(hand_in, clean):
    results = graded(hand_in(softmax="    while True:\n        pass\n"), clean)
    assert rows_of(results)["1.1.1"] == (0, False) and "ran for 2 s" in first(results)
    assert rows_of(results)["1.1.2"] == (5, True)


@pytest.mark.long
def test_a_submission_that_forks_without_end_is_stopped(hand_in, clean):
    results = graded(hand_in(top=FORKS), clean)
    assert results["points"] == 0 and first(results).startswith("stopped above ")


@pytest.mark.long
def test_deleted_files_are_those_of_its_own_copy(hand_in, clean, tmp_path):
    canary = tmp_path / "canary"
    write(canary / "it", "sings")
    results = graded(hand_in(top=DELETES.replace("CANARY", repr(str(canary)))), clean)
    assert results["points"] == 0
    assert (canary / "it").exists() == has_namespaces()
    assert (clean.folder / "tests/test_week_1_day_1.py").exists()


@pytest.mark.skipif(not Path("/proc").exists(), reason="only on Linux do both processes end together")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_grader_that_is_ended_leaves_no_process_and_no_folder(tmp_path, monkeypatch, number):
    (folder := tmp_path / "temporary").mkdir()
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("authors.grade.folders.gettempdir", lambda: folder)
    with subprocess.Popen([sys.executable, "-c", GRADER, pipe], cwd=ROOT) as grader, pipe.open() as output:
        assert output.readline() == "begun\n"
        remove_stale_folders()
        assert any(folder.iterdir()), "it still runs"
        grader.send_signal(number)
        assert output.read() == ""
    assert any(folder.iterdir()) == (number == signal.SIGKILL)
    remove_stale_folders()
    assert not any(folder.iterdir())


def test_a_folder_without_the_learners_package_is_refused(tmp_path):
    with pytest.raises(FatalError, match="no src/tiny_llm"):
        read_submission(tmp_path)


def test_a_link_in_a_submission_is_not_followed(hand_in):
    folder = hand_in(answers=False)
    (folder / "src/tiny_llm" / FILE).unlink()
    (folder / "src/tiny_llm" / FILE).symlink_to(REFERENCE / FILE)
    submission = read_submission(folder)
    assert FILE not in submission.sources
    assert submission.ignored == [f"src/tiny_llm/{FILE}"]


def test_many_are_one_table_and_one_page(hand_in, tmp_path, monkeypatch):
    """One submission and one folder that is none: neither runs a process here."""
    monkeypatch.setattr(Clean, "tests_of", lambda *_: {})
    hand_in(answers=False)
    (tmp_path / "nothing").mkdir()
    output = tmp_path.with_name("grades")
    options = Namespace(submission=tmp_path, output=output, week=[1], day=[Day(1, 1)], backend=PORT)
    options.seconds, options.memory = 2, 2
    assert grade_many(Console(), options) == 1
    lines = (output / "results.csv").read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ["submission", "nothing", "somebody"]
    page = (output / "results.html").read_text(encoding="utf-8")
    assert "no src/tiny_llm in it" in page and "somebody" in page
    written = json.loads((output / "somebody.json").read_text(encoding="utf-8"))
    assert written["submission"]["name"] == "somebody"
