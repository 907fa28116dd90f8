"""`course export --without-reference`: a copy has every task and no answer. `test --json`: what the file holds."""

import re
import subprocess
from argparse import Namespace
from pathlib import Path

import pytest

from authors.export import HANDED_OUT, LEFT_OUT, export
from tiny_llm_course.address import Task
from tiny_llm_course.commands import course
from tiny_llm_course.cut import find_exercises
from tiny_llm_course.grading.results import FAILED, NOT_RUN, PASSED, TaskResult, as_json, tasks_of
from tiny_llm_course.tree import (
    ANSWERS,
    LEARNER,
    REFERENCE,
    STUBS,
    exercises_of,
    reference_files,
    source_files,
)
from tiny_llm_engine.machine.repo import ROOT

TEXTS = {".py", ".cpp", ".h", ".md", ".json", ".j2", ".toml"}
LINES = 4  # of an answer that is looked for: shorter ones are found in any code


@pytest.fixture(scope="module")
def handed_out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "course"
    export(folder)
    return folder


def test_every_file_of_the_repository_is_handed_out_or_left_out():
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {name.partition("/")[0] for name in known.splitlines()}
    assert top <= {*HANDED_OUT, *LEFT_OUT} and not {*HANDED_OUT} & {*LEFT_OUT}


def test_a_copy_has_every_task_twice_and_no_answer(handed_out):
    assert not (handed_out / ANSWERS.relative_to(ROOT)).exists()
    assert not (handed_out / "tests_refsol").exists()
    text = "".join(
        file.read_text(encoding="utf-8")
        for file in sorted(handed_out.rglob("*.*"))
        if file.is_file() and file.suffix in TEXTS
    )
    for file in reference_files():
        name = file.relative_to(REFERENCE)
        stubs = [
            (handed_out / folder.relative_to(ROOT) / name).read_text("utf-8") for folder in (STUBS, LEARNER)
        ]
        assert stubs[0] == stubs[1]
        asked = [(one.task, one.qualname) for one in find_exercises(stubs[0], name)]
        assert asked == [(one.task, one.qualname) for one in exercises_of(file)]
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        answers = ("".join(lines[one.start - 1 : one.end]) for one in exercises_of(file))
        assert [answer for answer in answers if answer.count("\n") >= LINES and answer in text] == []
    assert len(source_files(handed_out / STUBS.relative_to(ROOT))) == len(reference_files())


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="name a new folder"):
        export(tmp_path)


def test_skip_says_why_it_cannot(monkeypatch, capsys):
    monkeypatch.setattr(course, "ANSWERS", ROOT / "nowhere")
    with pytest.raises(SystemExit) as end:
        course.do_skip(Namespace(week=1, day=1, task=None, through=None, backend=None))
    assert end.value.code == 1
    assert "handed out without its reference solution" in capsys.readouterr().err


def test_the_file_of_results_has_the_fields_that_its_page_explains():
    results = {Task(1, 1, 1): TaskResult({"a": PASSED, "b": FAILED, "c": NOT_RUN}, "it must sum to 1")}
    content = as_json(results, complete=False)
    [row] = content["tasks"]
    assert (content["schema"], content["version"], content["complete"]) == ("tiny-llm/results", 1, False)
    assert (row["title"], row["points"], row["possible"], row["passed"]) == ("softmax", 5, 15, False)
    assert (row["failing"], row["first_failure"]) == (["b", "c"], "it must sum to 1")
    assert tasks_of(content) == results
    table = re.findall(r"^\| (`.+?) \|", (ROOT / "docs/grading.md").read_text(encoding="utf-8"), re.MULTILINE)
    explained = set(re.findall(r"\w+", " ".join(table)))
    assert {*content, *row} <= explained
