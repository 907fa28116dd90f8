"""A learner's commands, as a learner types them, in a copy of the repository."""

import json
import re

import pytest

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BACKENDS

# Any port will do: these tests are about the commands.
PORT = installed_backends()[-1]
OTHER = next(port for port in BACKENDS if port != PORT)
TASK = 'raise NotImplementedError("week 1 day 1 task 1: softmax")'
BASICS = f"{PORT}_backend/basics.py"
DAY_1 = ("--week", "1", "--day", "1", "--backend", PORT)


def edit(path, old: str, new: str) -> str:
    """Replace a text in a file once; return the whole file."""
    text = path.read_text(encoding="utf-8").replace(old, new, 1)
    path.write_text(text, encoding="utf-8")
    return text


def test_blank_tasks_are_red_and_each_is_named_once(clone):
    done = clone.run("test", *DAY_1)
    assert done.returncode == 1
    assert done.stdout.count("blank: week 1 day 1 task 1: softmax") == 1
    assert "task 4: SimpleMultiHeadAttention.__call__" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_skip_makes_the_day_green_and_reset_leaves_git_clean(clone):
    assert clone.run("course", "skip", *DAY_1).returncode == 0
    assert TASK not in (clone.learner / BASICS).read_text(encoding="utf-8")
    assert clone.run("test", *DAY_1).returncode == 0
    assert state_of(clone, "1.1.1") == f"{PORT} green"
    path = clone.learner / BASICS
    path.write_text(path.read_text(encoding="utf-8") + "\n# a thought\n", encoding="utf-8")
    assert state_of(clone, "1.1.1") == f"{PORT} filled", "a file that changes has not been tested"
    assert clone.run("course", "reset", *DAY_1, "--whole-files").returncode == 0
    assert clone.git("status", "--porcelain") == ""


def test_one_port_never_shows_red_from_the_other(clone):
    clone.run("course", "port", PORT)
    clone.run("course", "skip", "--week", "1", "--day", "1")
    done = clone.run("test", "--week", "1", "--day", "1")
    assert done.returncode == 0, done.stdout
    assert f"ports: {PORT}," in done.stdout
    other = clone.learner / f"{OTHER}_backend" / "basics.py"
    assert TASK in other.read_text(encoding="utf-8"), "skip must leave the other port alone"


def test_skip_leaves_work_alone(clone):
    path = clone.learner / BASICS
    edit(path, TASK, "return x  # my attempt")
    clone.run("course", "skip", "--through", "1.1", "--backend", PORT)
    text = path.read_text(encoding="utf-8")
    assert "return x  # my attempt" in text
    assert "out = x @ w.T" in text, "the blank task beside it is filled"


def test_reset_keeps_a_backup_and_touches_nothing_else(clone):
    path = clone.learner / BASICS
    edit(path, TASK, "return x  # my attempt")
    mine = edit(path, "def linear", "def my_helper():\n    return 1\n\n\ndef linear")
    done = clone.run("course", "reset", *DAY_1, "--task", "1")
    assert TASK in path.read_text(encoding="utf-8") and "my_helper" in path.read_text(encoding="utf-8")
    kept = clone.root / done.stdout.split("kept in ")[1].strip() / BASICS
    assert kept.read_text(encoding="utf-8") == mine


def test_reset_of_a_function_that_is_gone_says_what_to_do(clone):
    path = clone.learner / BASICS
    path.write_text("# everything deleted\n", encoding="utf-8")
    done = clone.run("course", "reset", *DAY_1)
    assert done.returncode == 1
    assert "no function softmax to put back" in done.stderr and "--whole-files" in done.stderr
    assert path.read_text(encoding="utf-8") == "# everything deleted\n"


@pytest.mark.parametrize(
    ("attempt", "is_committed"), [("return x", False), ("return x", True), (f"attempt = x\n    {TASK}", True)]
)
def test_sync_refuses_to_overwrite_work_and_writes_nothing(clone, attempt, is_committed):
    """Also work above a raise that is still there."""
    path = clone.learner / BASICS
    mine = edit(path, TASK, attempt)
    if is_committed:
        clone.git("commit", "-qam", "my day one")
    done = clone.run("course", "sync")
    assert done.returncode == 1
    assert f"src/tiny_llm/{BASICS}" in done.stderr and "--backup" in done.stderr
    assert path.read_text(encoding="utf-8") == mine


def test_sync_writes_a_deleted_file_again_and_leaves_work_alone(clone):
    path, package = clone.learner / BASICS, clone.learner / f"{PORT}_backend" / "__init__.py"
    mine = edit(path, TASK, "return x  # my attempt")
    whole = package.read_text(encoding="utf-8")
    for file in (package, clone.learner / "serving" / "__init__.py"):
        text = file.read_text(encoding="utf-8")
        file.unlink()
        done = clone.run("test", *DAY_1)
        line = f"src/tiny_llm/{file.relative_to(clone.learner)}: missing; `pdm run course sync` writes it again\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
        done = clone.run("course", "sync")
        assert done.returncode == 0 and "written again: src/tiny_llm/" in done.stdout
        assert file.read_text(encoding="utf-8") == text
    assert (path.read_text(encoding="utf-8"), package.read_text(encoding="utf-8")) == (mine, whole)


def test_sync_with_backup_says_where_the_work_is(clone):
    path = clone.learner / BASICS
    mine = edit(path, TASK, "return x  # my attempt")
    done = clone.run("course", "sync", "--backup")
    kept = clone.root / done.stdout.split("kept in ")[1].strip() / BASICS
    assert kept.read_text(encoding="utf-8") == mine
    assert TASK in path.read_text(encoding="utf-8")


def test_sync_renews_an_older_stub_without_asking(clone):
    reference = clone.root / "src/tiny_llm_ref" / BASICS
    edit(reference, '"""', '"""Renewed: ')
    assert "stale" in clone.run("course", "sync", "--check").stdout
    assert clone.run("course", "sync").returncode == 0
    assert (clone.learner / BASICS).read_text(encoding="utf-8").startswith('"""Renewed: ')


def break_task_2(clone):
    clone.run("course", "skip", *DAY_1)
    path = clone.learner / BASICS
    assert "x @ w.T + 1.0" in edit(path, "out = x @ w.T", "out = x @ w.T + 1.0")


def test_tasks_after_the_first_that_fails_are_unknown(clone):
    """A run of a day stops there; with --all it goes on, and what passes is green."""
    break_task_2(clone)
    day = ("test", *DAY_1)
    done = clone.run(*day)
    assert done.returncode == 1 and "task 1.1.2 fails: later tests were not run" in done.stdout
    states = states_of(clone, "1.1.1", "1.1.2", "1.1.3", "1.1.4")
    assert states == tuple(f"{PORT} {state}" for state in ("green", "filled", "unknown", "unknown"))
    done = clone.run(*day, "--all")
    assert done.returncode == 1 and "later tests" not in done.stdout
    assert state_of(clone, "1.1.3") == f"{PORT} green"


def test_a_task_with_a_test_that_was_not_run_is_unknown(clone):
    """The others have passed, which is not all that its task asks for."""
    break_task_2(clone)
    edit(clone.root / "tests/test_week_1_day_1.py", 'task("1.1.1")', 'task("1.1.1", after="1.1.3")')
    clone.run("test", *DAY_1)
    assert state_of(clone, "1.1.1") == f"{PORT} unknown"


def test_port_is_remembered_and_a_broken_setting_is_named(clone):
    clone.run("course", "port", "mlx")
    assert json.loads((clone.root / ".tiny-llm/settings.json").read_text(encoding="utf-8")) == {"port": "mlx"}
    assert "you work on: mlx" in clone.run("course", "port").stdout
    (clone.root / ".tiny-llm/settings.json").write_text("{", encoding="utf-8")
    done = clone.run("course", "status")
    assert done.returncode == 1 and "settings.json: not a settings file" in done.stderr


@pytest.mark.parametrize("text", ["[]", '{"port": 1}', "[" * 9999, "\udcff"])
def test_an_odd_setting_is_one_line_and_odd_results_are_none(clone, text):
    private = clone.root / ".tiny-llm"
    private.mkdir()
    for name in ("settings.json", "results.json"):
        (private / name).write_bytes(text.encode(errors="surrogateescape"))
    done = clone.run("course", "status", "--backend", PORT)
    assert done.returncode == 0 and "blank" in done.stdout, done.stderr
    done = clone.run("course", "status")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "settings.json: not a settings file; delete it" in done.stderr


def test_a_folder_where_a_setting_should_be_is_one_line(clone):
    (clone.root / ".tiny-llm" / "settings.json").mkdir(parents=True)
    for command in (["course", "status"], ["course", "port", "mlx"]):
        done = clone.run(*command)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "settings.json" in done.stderr


def test_results_that_cannot_be_kept_do_not_change_the_grade(clone):
    """As in a checkout that is read only: here a file takes the place of the folder."""
    clone.run("course", "skip", *DAY_1)
    (clone.root / ".tiny-llm").write_text("", encoding="utf-8")
    done = clone.run("test", *DAY_1, "--task", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not remembered for `course status`" in done.stdout and "Traceback" not in done.stdout


def test_unknown_addresses_are_one_line_and_exit_code_2(clone):
    for arguments, message in {
        ("--week", "9"): "the course has no week 9",
        ("--week", "1", "--day", "1", "--task", "9"): "day 1.1 has no task 9",
        ("--day", "1"): "--day and --task need --week",
    }.items():
        done = clone.run("test", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert message in done.stderr
    for arguments in (["skip", "--week", "1", "--day", "99"], ["hint", "1.1.9"]):
        done = clone.run("course", *arguments)
        assert done.returncode == 2 and "the course has no" in done.stderr


UNKNOWN = [("test", ["--wek", "1"]), ("test", ["1.1"]), ("test-refsol", ["--week", "1", "-k", "mask"])]


@pytest.mark.parametrize(("command", "arguments"), UNKNOWN)
def test_what_the_command_does_not_know_is_named(clone, command, arguments):
    done = clone.run(command, *arguments)
    unknown = next(text for text in arguments if text not in ("--week", "1"))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"error: {unknown}: unknown; name a day as --week 1 --day 2" in done.stderr.splitlines()[-1]


def test_no_test_selected_is_an_error(clone):
    done = clone.run("test", "--week", "1", "--day", "1", "--", "-k", "no_such_test")
    assert done.returncode == 2 and "no test was selected" in done.stderr


def test_without_arguments_the_started_days_are_tested(clone):
    done = clone.run("test")
    assert done.returncode == 2 and "nothing is filled in yet" in done.stderr
    clone.run("course", "skip", *DAY_1)
    done = clone.run("test", "--backend", PORT)
    assert done.returncode == 0, done.stdout


def test_an_earlier_blank_day_is_named_with_the_line_that_fills_it(clone):
    clone.run("course", "skip", "--week", "1", "--day", "4", "--backend", PORT)
    done = clone.run("test", "--week", "1", "--day", "4", "--backend", PORT)
    assert done.returncode == 1
    assert "pdm run course skip --through 1.1" in done.stdout


def test_another_copy_of_the_package_is_refused(clone, tmp_path):
    """Grading must not pass because some other tiny_llm was imported."""
    impostor = tmp_path / "elsewhere" / "tiny_llm" / f"{PORT}_backend"
    impostor.mkdir(parents=True)
    for folder in (impostor.parent, impostor):
        (folder / "__init__.py").write_text("", encoding="utf-8")
    path = f"{tmp_path / 'elsewhere'}:{clone.root / 'src'}"
    done = clone.run("test", *DAY_1, PYTHONPATH=path)
    assert done.returncode != 0
    assert "another copy is installed" in done.stdout + done.stderr


def test_hints_come_one_more_at_a_time(clone):
    one, two = (clone.run("course", "hint", "1.1.1", *more).stdout for more in ([], ["2"]))
    assert "Hint 1 of 2: the maximum" in one and "Hint 2 of" not in one and "course hint 1.1.1 2" in one
    assert "Hint 2 of" in two


def test_sync_never_touches_a_file_of_the_learners_own(clone):
    notes = clone.learner / f"{PORT}_backend" / "notes.py"
    notes.write_text("# my notes\n", encoding="utf-8")
    clone.git("add", "-A")
    clone.git("commit", "-qm", "notes")
    assert clone.run("course", "sync", "--backup").returncode == 0
    assert notes.read_text(encoding="utf-8") == "# my notes\n"


def test_a_half_filled_exercise_is_not_blank_and_skip_leaves_it_alone(clone):
    path = clone.learner / BASICS
    mine = edit(path, TASK, f"return x\n    {TASK}")
    clone.run("course", "skip", *DAY_1, "--task", "1")
    assert path.read_text(encoding="utf-8") == mine
    status = clone.run("course", "status", "--backend", PORT).stdout
    assert re.search(rf"1\.1\.1\s+{PORT}\s+filled", status), status


def test_a_file_that_is_no_python_is_one_line_everywhere(clone):
    path = clone.learner / BASICS
    path.write_text(path.read_text(encoding="utf-8") + "\ndef broken(:\n", encoding="utf-8")
    for command in (["test", "--week", "1", "--day", "1"], ["main"], ["see", "1.1"]):
        done = clone.run(*command, "--backend", PORT)
        assert done.returncode == 1 and done.stdout == "", done.stdout
        assert done.stderr.startswith(f"src/tiny_llm/{BASICS}, line ") and done.stderr.count("\n") == 1
    done = clone.run("course", "reset", *DAY_1)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "--whole-files" in done.stderr
    assert clone.run("course", "reset", *DAY_1, "--whole-files").returncode == 0
    assert clone.git("status", "--porcelain") == ""


EVERYWHERE = ["test --week 1 --day 1", "see 1.1", "course status", "test"]
NO_TEXT = [("x = 'é'\n".encode("latin-1"), "not UTF-8", EVERYWHERE)]
NO_TEXT += [(b"# \0\n", "a NUL character", ["course status"])]


@pytest.mark.parametrize(("tail", "problem", "commands"), NO_TEXT)
def test_a_file_that_is_no_text_is_one_line_everywhere(clone, tail, problem, commands):
    """One function reads it for all commands."""
    path = clone.learner / BASICS
    line = f"src/tiny_llm/{BASICS}, line {path.read_text(encoding='utf-8').count(chr(10)) + 1}: {problem}"
    path.write_bytes(path.read_bytes() + tail)
    for command in map(str.split, commands):
        done = clone.run(*command, "--backend", PORT)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert done.stderr.startswith(line), done.stderr
    again = ["course", "reset", *DAY_1, "--whole-files"]
    assert clone.run(*again).returncode == 0
    assert clone.git("status", "--porcelain") == ""


def test_a_byte_order_mark_changes_nothing(clone):
    """Some editors begin a file with one, which Python reads over."""
    path = clone.learner / BASICS
    path.write_text("\ufeff" + path.read_text(encoding="utf-8"), encoding="utf-8")
    assert clone.run("course", "skip", *DAY_1).returncode == 0
    assert clone.run("test", *DAY_1, "--task", "1").returncode == 0
    assert clone.run("course", "reset", *DAY_1).returncode == 0
    assert clone.git("status", "--porcelain") == ""


def test_a_file_that_ends_python_fails(clone):
    """Grading must not pass because nothing was tested."""
    path = clone.learner / BASICS
    path.write_text(path.read_text(encoding="utf-8") + "\nimport sys\n\nsys.exit(0)\n", encoding="utf-8")
    for command in (["test", "--week", "1", "--day", "1"], ["main"], ["see", "1.1"]):
        done = clone.run(*command, "--backend", PORT)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        assert done.stderr.startswith(f"src/tiny_llm/{BASICS}, line ") and "SystemExit: 0" in done.stderr


@pytest.mark.parametrize("error", ["IndexError('pop from an empty deque')", "ValueError('two\\nlines')"])
def test_see_names_the_line_of_a_scheduler_that_raises(clone, error):
    """The last one of the learner's: what they have written, or where it calls what does not like it."""
    clone.run("course", "skip", "--through", "3.3", "--backend", PORT)
    path = clone.learner / "serving" / "batching" / "hybrid_scheduler.py"
    solved = "for sequence in list(self.running):"
    text = edit(path, solved, f"raise {error}\n        {solved}")
    line = text.partition(f"raise {error}")[0].count("\n") + 1
    done = clone.run("see", "3.3", "--backend", PORT)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    says = f"src/tiny_llm/serving/batching/hybrid_scheduler.py, line {line}: {error.partition('(')[0]}: "
    assert done.stderr.startswith(says) and "`pdm run test --week 3 --day 3`" in done.stderr


def test_an_emptied_file_is_blank_and_is_filled_again(clone):
    path = clone.learner / BASICS
    path.write_text("\n", encoding="utf-8")
    assert state_of(clone, "1.1.1") == f"{PORT} blank"
    assert clone.run("course", "skip", *DAY_1).returncode == 0
    assert TASK not in path.read_text(encoding="utf-8") and "def softmax" in path.read_text(encoding="utf-8")


def test_a_function_that_is_gone_is_blank_and_skip_says_what_to_do(clone):
    path = clone.learner / BASICS
    edit(path, "def softmax(", "def my_softmax(")
    assert state_of(clone, "1.1.1") == f"{PORT} blank"
    done = clone.run("course", "skip", *DAY_1, "--task", "1")
    assert f"src/tiny_llm/{BASICS}: no function softmax; `course reset" in done.stdout


def test_a_renamed_function_is_one_line_too(clone):
    path = clone.learner / BASICS
    edit(path, "def linear(", "def linear2(")
    done = clone.run("test", *DAY_1)
    assert done.returncode == 1 and "ImportError: cannot import name 'linear'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_deleted_files_and_folders_come_back(clone):
    (clone.learner / BASICS).unlink()
    clone.run("course", "reset", *DAY_1)
    assert clone.git("status", "--porcelain") == ""
    for file in (clone.learner / f"{PORT}_backend").glob("*.py"):
        file.unlink()
    assert clone.run("course", "skip", *DAY_1).returncode == 0
    assert TASK not in (clone.learner / BASICS).read_text(encoding="utf-8")


def test_task_zero_is_no_task_and_names_are_not_mixed(clone):
    lines = [
        "skip --week 1 --day 1 --task 0",
        "reset --through 1.1 --week 1 --day 3",
        "skip --through 1.1 --task 2",
    ]
    for line in lines:
        command, *arguments = line.split()
        done = clone.run("course", command, *arguments, "--backend", PORT)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert clone.git("status", "--porcelain") == ""


def test_the_commands_work_where_the_locale_is_not_utf_8(clone):
    for command in (["course", "hint", "1.1.2"], ["course", "status"], ["see", "1.1", "--solution", "ref"]):
        done = clone.run(*command, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 0, done.stderr


def states_of(clone, *tasks: str) -> tuple[str, ...]:
    """The part and the status of tasks, as one `course status` prints them."""
    status = clone.run("course", "status", "--backend", PORT).stdout
    return tuple(" ".join(re.search(rf"{re.escape(task)} +(\w+) +(\w+)", status).groups()) for task in tasks)


def state_of(clone, task: str) -> str:
    return states_of(clone, task)[0]


def test_a_task_of_the_policy_stands_once_and_is_green_when_all_its_tests_are(clone):
    """Some tests of the policy run the port's model: one of them that fails is enough, whatever the others say. Green
    is forgotten when a file of the policy changes, which are in folders of their own.
    """
    assert state_of(clone, "2.6.9") == "serving blank"
    assert clone.run("course", "skip", "--through", "2.6", "--backend", PORT).returncode == 0
    assert states_of(clone, "2.6.9", "2.6.3") == ("serving filled", f"{PORT} filled")
    task = ("test", "--week", "2", "--day", "6", "--task", "9", "--backend", PORT)
    done = clone.run(*task)
    assert done.returncode == 0, done.stdout
    assert state_of(clone, "2.6.9") == "serving green"
    path = clone.learner / "serving" / "chunked_prefill" / "chunk.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n# a thought\n", encoding="utf-8")
    assert state_of(clone, "2.6.9") == "serving filled"
    path = clone.learner / f"{PORT}_backend" / "batching_kv_cache.py"
    edit(path, "self.active[slot] = 0, False", "self.active[slot] = 0, True")
    assert clone.run(*task).returncode == 1
    assert state_of(clone, "2.6.9") == "serving filled"


def test_reset_puts_the_policy_back_for_either_port(clone):
    clone.run("course", "skip", "--week", "2", "--day", "6", "--backend", PORT)
    clone.run("course", "skip", "--week", "2", "--day", "6", "--backend", OTHER)
    assert state_of(clone, "2.6.4") == "serving filled"
    done = clone.run("course", "reset", "--week", "2", "--day", "6", "--task", "4", "--backend", OTHER)
    assert "blank again: src/tiny_llm/serving/chunked_prefill/request.py" in done.stdout
    assert states_of(clone, "2.6.4", "2.6.5") == ("serving blank", "serving filled")
    clone.run("course", "reset", "--week", "2", "--day", "6", "--backend", "all")
    assert clone.git("status", "--porcelain") == ""
