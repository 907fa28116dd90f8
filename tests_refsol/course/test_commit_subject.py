"""The check of commit subjects, as git's commit-msg hook runs it and on the subjects of a range."""

import io
import runpy
import sys

import pytest

MESSAGES = [
    ("One way to pack a batch\n\nBecause wip lost two moves.\n# Lines of git do not count\n", ""),
    ("x" * 72 + "\n", ""),
    ("A swiper is no unfinished work\n", ""),
    ("x" * 73 + "\n", "73 characters, shorten it to 72"),
    ("WIP: a batch\n", "say what changes"),
    ("# Please enter the commit message\n", "say what changes"),
    ("A subject without a blank line\nafter it, " + "x" * 40 + "\n", "81 characters"),
]


@pytest.mark.parametrize(("message", "wrong"), MESSAGES)
@pytest.mark.parametrize("is_file", [True, False])
def test_a_commit_has_a_subject_that_says_what_changes(message, wrong, is_file, monkeypatch, tmp_path):
    (file := tmp_path / "COMMIT_EDITMSG").write_text(message, encoding="utf-8")
    subject = message.strip().partition("\n\n")[0].replace("\n", " ") + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(subject))
    monkeypatch.setattr(sys, "argv", ["commit_subject", *[str(file)] * is_file])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("authors.commit_subject", run_name="__main__")
    assert wrong in str(ended.value.code) if wrong else ended.value.code == 0
