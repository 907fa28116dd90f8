"""What the commands do with wrong options, with `--help`, and with a machine that lacks something."""

import argparse
import io
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace

import pytest
from rich.console import Console

from authors import test_all
from book.tools import book
from models.eval import eval_tiny_model
from tiny_llm_course import commands, mdbook
from tiny_llm_course.address import Day, Task, parse_day, parse_task
from tiny_llm_course.commands import see
from tiny_llm_course.see import week_3_day_3
from tiny_llm_course.tree import day_tests, days
from tiny_llm_engine.machine import terminal
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT, command_modules
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import whole_number
from tiny_llm_ref.serving import HybridScheduler


@pytest.fixture
def run(forks):
    """`pdm run COMMAND ARGUMENTS`, in a fork."""
    return lambda command, *arguments: forks.run(command_modules()[command], *arguments)


# ---- arguments


def test_the_message_of_a_wrong_address_is_shown(refused):
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", type=parse_day)
    parser.add_argument("--task", type=parse_task)
    parsed = parser.parse_args(["--day", "1.3", "--task", "1.3.2"])
    assert vars(parsed) == {"day": Day(1, 3), "task": Task(1, 3, 2)}
    for option, rule in (("--day", "a day is WEEK.DAY"), ("--task", "a task is WEEK.DAY.TASK")):
        assert f"'foo': {rule}" in refused(parser.parse_args, [option, "foo"])


@pytest.mark.parametrize("text", ["0", "-1", "8", "x", "1.5", "", "9" * 5000])
def test_a_whole_number_is_within_its_bounds(text):
    parse = whole_number(1, 7)
    assert parse("1") == 1 and parse("7") == 7
    with pytest.raises(argparse.ArgumentTypeError, match="whole number from 1 to 7"):
        parse(text)


# ---- the terminal


class Refusing(io.RawIOBase):
    """An output that the system refuses to write, such as `/dev/full`."""

    def __init__(self, error: OSError | None):
        self.error = error

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        if self.error is not None:
            raise self.error
        return len(data)


def end_of(main, monkeypatch, capsys, stdout: OSError | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors of a command whose `main` is given."""
    refusing = Refusing(stdout)
    if stdout is not None:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(refusing)))
    code = 0
    try:
        terminal.command(main)([])
    except SystemExit as end:
        code = end.code
    refusing.error = None  # what is still buffered is written when the stream is collected
    return code, *capsys.readouterr()


def prints(argv) -> None:
    print("an answer")


def test_a_closed_input_is_empty_and_a_closed_output_refuses(monkeypatch):
    """What Python makes of `<&-` and `>&-` is None."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    terminal.open_standard_streams()
    assert sys.stdin.read() == ""
    sys.stderr.write("goes nowhere")
    sys.stderr.flush()
    sys.stdout.write("x")
    with pytest.raises(OSError, match="Bad file descriptor"):
        sys.stdout.flush()
    terminal._give_up_output()
    sys.stdout.flush()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(9, "Bad file descriptor")])
def test_an_output_that_cannot_be_written_is_one_line(monkeypatch, capsys, error):
    code, _, errors = end_of(prints, monkeypatch, capsys, stdout=error)
    assert (code, errors) == (1, f"standard output: cannot be written ({error.strerror})\n")


def test_whatever_the_system_refuses_is_one_line_with_its_file(monkeypatch, capsys, tmp_path):
    absent = tmp_path / "absent"
    code, _, errors = end_of(lambda argv: absent.read_text(encoding="utf-8"), monkeypatch, capsys)
    assert (code, errors) == (1, f"{absent}: No such file or directory\n")


def test_a_defect_keeps_its_traceback(monkeypatch, capsys):
    def fails(argv):
        raise OSError("libhabana.so does not load")

    with pytest.raises(OSError, match="does not load"):
        end_of(fails, monkeypatch, capsys)


def test_ctrl_c_and_a_reader_that_goes_away_say_nothing(monkeypatch, capsys):
    def interrupted(argv):
        print("so far")
        raise KeyboardInterrupt

    assert end_of(interrupted, monkeypatch, capsys) == (130, "so far\n", "")
    assert end_of(prints, monkeypatch, capsys, stdout=BrokenPipeError(32, "Broken pipe")) == (1, "", "")


def test_what_a_command_returns_and_exits_with_stays(monkeypatch, capsys):
    assert terminal.command(lambda argv: 7)([]) == 7
    assert end_of(lambda argv: terminal.fail("a problem"), monkeypatch, capsys) == (2, "", "a problem\n")


def test_ctrl_c_while_a_command_is_imported_says_nothing(capsys):
    """`terminal.command` is not there yet: the hook of the package is."""
    commands._report(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr() == ("", "")
    commands._report(ValueError, ValueError("a defect"), None)
    assert capsys.readouterr().err == "ValueError: a defect\n"


def test_every_command_ends_in_one_line():
    """Each `main` is one that `terminal.command` has wrapped."""
    others = {"train-tiny-model"}  # of authors alone
    mains = {name: import_module(path).main for name, path in command_modules().items() if name not in others}
    assert len(mains) >= 20
    assert [name for name, main in mains.items() if not hasattr(main, "__wrapped__")] == []


# ---- see


def test_see_without_the_device_is_one_line(run):
    done = run("see", "1.1", "--solution", "ref", "--backend", installed_backends()[0], "--device", "hpu")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("device 'hpu':")
    assert "invalid choice: 'tpu'" in run("see", "1.1", "--device", "tpu").stderr


def test_see_counts_graphs_of_one_day_and_on_one_port(run):
    done = run("see", "2.6", "--graphs", "--solution", "ref")
    assert done.returncode == 2 and done.stderr.strip() == "day 2.6 has no screen of its graphs"
    done = run("see", "2.7", "--graphs", "--solution", "ref", "--backend", "mlx")
    assert done.returncode == 2 and "compilers for fixed shapes take no other" in done.stderr


def test_see_shows_one_sitting_of_a_day_that_has_several(capsys, refused):
    options = ["--solution", "ref", "--device", "cpu", "--backend", installed_backends()[-1]]
    see.main(["2.7", "--sitting", "3", *options])
    assert "patience" in capsys.readouterr().out
    wrong = {
        ("2.7", "--sitting", "4"): "day 2.7 has 3 sittings: give --sitting 1 to 3",
        ("1.1", "--sitting", "1"): "day 1.1 has one screen: leave --sitting out",
    }
    for arguments, line in wrong.items():
        assert line in refused(see.main, [*arguments, *options])


def test_see_draws_on_a_terminal_that_knows_only_ascii():
    """A process decides about its encoding when it starts."""
    line = [sys.executable, "-m", command_modules()["see"], "1.1", "--solution", "ref", "--backend"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*line, installed_backends()[0]], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "?" in done.stdout


# ---- commands without options


@pytest.mark.parametrize("command", ["doctor", "setup-torch", "test-all"])
def test_help_is_shown_and_nothing_is_run(run, command):
    done = run(command, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: pdm run {command} [-h]")
    assert run(command, "--no-such-option").returncode == 2


CHECKS = [test_all.INSTALLATION, test_all.TESTS, *test_all.COURSE]


@pytest.mark.parametrize("broken", [title for title, _ in CHECKS])
def test_whatever_fails_fails_test_all(broken, monkeypatch, capsys):
    monkeypatch.setattr(test_all, "installed_backends", lambda: ["mlx"])
    monkeypatch.setattr(test_all, "call", lambda title, arguments, *_: title == broken)
    with pytest.raises(SystemExit) as end:
        test_all.main([])
    assert end.value.code == 1
    assert f"FAILED: {broken}\n" in capsys.readouterr().out


def test_day_tests_run_beside_the_prefix_check_only_if_they_compile_kernels():
    """pytest takes a pattern that does not begin with / from the folder where it starts, the repository's root."""
    left_out = {file for glob in test_all.IN_THE_PREFIX_CHECK for file in ROOT.glob(glob)}
    files = [file for day in days() for file in day_tests(day)]
    compiled = {file for file in files if 'tool("c++")' in file.read_text(encoding="utf-8")}
    assert left_out == {*files} - compiled


def test_it_says_how_long_it_takes_before_it_begins_and_a_smoke_test_takes_a_minute(monkeypatch, capsys):
    calls = []
    monkeypatch.setattr(test_all, "installed_backends", lambda: ["mlx"])
    monkeypatch.setattr(test_all, "call", lambda title, *_: calls.append((title, capsys.readouterr().out)))
    for options in ([], ["--smoke"]):
        with pytest.raises(SystemExit):
            test_all.main(options)
    assert calls[0][0] == test_all.INSTALLATION[0]
    assert re.match(r"all checks take about \d+ minutes on \d+ cores; --smoke takes one\n", calls[0][1])
    assert "two ports are installed now" in "".join(out for _, out in calls)
    assert [title for title, _ in calls[-2:]] == [title for title, _ in test_all.SMOKE]


@pytest.mark.parametrize("pdm, code", [("/bin/pdm", 0), ("/bin/pdm", 1), (None, 0)])
def test_missing_tools_of_authors_are_installed_by_their_lock_file(pdm, code, monkeypatch, capsys):
    ran, line = [], test_all.authors_tools.INSTALL
    monkeypatch.setattr(test_all.authors_tools, "missing_tools", lambda: ["ruff"])
    monkeypatch.setattr(test_all.shutil, "which", {"pdm": pdm}.get)
    monkeypatch.setattr(
        test_all.subprocess, "run", lambda call, **_: ran.append(call) or SimpleNamespace(returncode=code)
    )
    failed = test_all.install_tools()
    told = capsys.readouterr().out
    assert "ruff missing" in told and re.search(r"\d+ MB in about \d+ seconds", told) and line in told
    assert ran == ([["/bin/pdm", *line.split()[1:]]] if pdm else [])
    assert bool(failed) == (code != 0 or pdm is None) and all(line in title for title in failed)


def test_long_tests_are_named_and_run_only_when_asked_for(monkeypatch, capsys):
    calls, with_two = [], [arguments for _, arguments in test_all.TWO_THREADS]
    monkeypatch.setattr(test_all, "installed_backends", lambda: ["mlx", "torch"])
    monkeypatch.setattr(
        test_all, "call", lambda title, arguments, capture, threads: calls.append((arguments, threads))
    )
    for options, told in (([], True), (["--long"], False)):
        calls.clear()
        with pytest.raises(SystemExit):
            test_all.main(options)
        assert [arguments for arguments, _ in calls if arguments[-1] == "--long"] == [
            [*test_all.TESTS[1], "--long"] for _ in options
        ]
        assert [arguments for arguments, threads in calls if threads == 2] == with_two * len(options)
        assert (f"not run: {test_all.LONG_ADDS}" in capsys.readouterr().out) == told


def test_what_a_user_asks_of_their_own_pytest_does_not_reach_the_checks(monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "-x -k nothing")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    environment = test_all._environment(1)
    assert "PYTEST_ADDOPTS" not in environment and environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("capture", [False, True])
def test_a_check_is_a_process_whose_output_and_status_are_told(capture, capfd):
    status = test_all.call("a title", ["course", "no-such-action"], capture)
    seen = capfd.readouterr()
    assert status == 2 and seen.out.startswith("== a title\n")
    assert "invalid choice: 'no-such-action'" in (seen.out if capture else seen.err)
    assert "== failed in " in seen.out


# ---- book


@pytest.mark.parametrize("port", ["0", "65536", "x"])
def test_a_port_is_a_port(port, refused):
    assert "whole number from 1 to 65535" in refused(book.main, ["serve", "--port", port])


def test_a_busy_port_is_one_line_that_names_another(refused):
    family, *_, address = socket.getaddrinfo("localhost", 0, type=socket.SOCK_STREAM)[0]
    with socket.create_server(address, family=family) as busy:
        errors = refused(book.main, ["serve", "--port", str(busy.getsockname()[1])])
    assert errors.count("\n") == 1
    assert mdbook.is_free(int(re.search(r"--port (\d+)`", errors)[1]))


# ---- the tiny model


def test_a_file_that_cannot_be_written_is_refused_before_the_evaluation(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(eval_tiny_model, "run_all", lambda *_: pytest.fail("the evaluation began"))
    for path in (tmp_path / "absent" / "x.json", tmp_path):
        errors = refused(eval_tiny_model.main, ["--json", str(path)])
        assert f"argument --json: {path}: cannot be written (" in errors


def test_an_unknown_model_ends_the_evaluation_as_it_ends_main(refused):
    errors = refused(eval_tiny_model.main, ["--model", "no-such-model"])
    assert re.match("model 'no-such-model'", errors) and errors.count("\n") == 1


def test_a_folder_that_cannot_be_made_is_refused_before_the_training(run, tmp_path):
    file = tmp_path / "file"
    file.touch()
    for out in (file, file / "model"):
        done = run("train-tiny-model", "--steps", "1", "--out", str(out))
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert f"--out {out}: no folder can be made there" in done.stderr.splitlines()[-1]


def test_a_plan_without_prompts_ends_a_screen_with_one_line(monkeypatch):
    """Who exchanges two lines of `plan_step` plans no prompt without chunks: requests wait for ever."""
    monkeypatch.setattr(HybridScheduler, "plan_prompts", lambda self, plan: None)
    with pytest.raises(terminal.FatalError, match="`plan_step` has to plan prompts"):
        week_3_day_3.show(Port("tiny_llm_ref", installed_backends()[0], "cpu"), Console())
