"""The grader itself: what it says of blanks, skips and comparisons; and that mutants cannot get away unseen."""

import io
import json
import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from authors import mutants, prefix
from authors.in_process import with_day_tests
from authors.kill_matrix import write_matrix
from authors.mutants import Mutant, Verdict, judge
from authors.overlay import Overlay
from support.close import assert_close
from support.fake_model import ByteTokenizer
from support.steps import steps_of
from tests_refsol.order import FIRST
from tiny_llm_course import tree
from tiny_llm_course.address import Day, Task
from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.grading import plugin
from tiny_llm_course.grading.ideas import FORGOTTEN, LENGTHS
from tiny_llm_course.pages import sittings_of
from tiny_llm_course.see import week_2_day_7
from tiny_llm_course.trace.timeline.comparison import Comparison
from tiny_llm_course.trace.workload import among_decodes
from tiny_llm_course.tree import REFERENCE, parts_of, reference_files
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.smollm2 import GGUF, smollm2_path
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.make_loop import make_loop

PORT = installed_backends()[0]


@pytest.fixture
def grading(tmp_path):
    """Writes one test file, and gives pytest's arguments that run it under the plugin."""

    def arguments(test: str, *more: str) -> list[str]:
        (tmp_path / "test_it.py").write_text("import pytest\n" + test, encoding="utf-8")
        # hypothesis has been imported before this pytest could prepare it.
        quiet = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        return ["-p", "tiny_llm_course.grading.plugin", *quiet, str(tmp_path / "test_it.py"), *more]

    return arguments


@pytest.fixture
def grade(grading, tmp_path, monkeypatch, capsys):
    """Runs one test file under the plugin, in this process: a fork takes ten times as long."""

    def run(test: str, *arguments: str) -> subprocess.CompletedProcess:
        monkeypatch.chdir(tmp_path)
        code = pytest.main(grading(test, *arguments))
        sys.modules.pop("test_it", None)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


@pytest.fixture
def grade_in_a_fork(grading, forks, tmp_path):
    """The same in a fork, for what would end the tests or stay with them."""
    return lambda *arguments: forks.run("pytest", *grading(*arguments), folder=tmp_path)


def test_a_skip_is_not_a_pass(grade):
    done = grade("def test_a(): pass\n\ndef test_b(): pytest.skip('no weights')\n")
    assert done.returncode == 1
    assert "a skip is no pass: test_it.py::test_b" in done.stdout


def test_a_skip_in_another_process_is_not_a_pass_either(grade_in_a_fork):
    """With pytest-xdist the tests run in processes of their own, and only their reports come back."""
    absent = "@pytest.mark.device('hpu')\ndef test_a(): pass\n"
    done = grade_in_a_fork(absent + "\ndef test_b(): pytest.skip('no weights')\n", "-n", "1")
    assert done.returncode == 1
    assert "not tested on this machine (needs hpu): test_it.py::test_a" in done.stdout
    assert "a skip is no pass: test_it.py::test_b" in done.stdout


def test_a_long_test_runs_only_when_asked_for(grade):
    test = "@pytest.mark.long\ndef test_a(): pass\n\ndef test_b(): pass\n"
    done = grade(test)
    assert done.returncode == 0 and "1 passed, 1 deselected" in done.stdout
    assert "not tested in this run (needs --long): test_it.py::test_a" in done.stdout
    assert "2 passed" in grade(test, "--long").stdout


def test_many_tests_of_one_blank_are_one_line(grade):
    blank = "raise NotImplementedError('week 1 day 2 task 1: RoPE.__call__')"
    done = grade(f"@pytest.mark.parametrize('i', range(50))\ndef test_a(i):\n    {blank}\n")
    assert done.returncode == 1
    assert "blank: week 1 day 2 task 1: RoPE.__call__ (needed by 50 tests)" in done.stdout
    assert len(done.stdout.splitlines()) < 8


def test_a_blank_is_named_without_a_look_at_its_source(grade_in_a_fork):
    """pytest parses the file of each frame of each failure anew: a blank day took a minute by that."""
    no_look = "from _pytest._code import TracebackEntry\n\nTracebackEntry.getsource = lambda *_: 1 / 0\n"
    search = "from hypothesis import given, strategies\n\n@given(strategies.integers())\n"
    blank = "def test_a(i=0): raise NotImplementedError('week 1 day 2 task 1: RoPE.__call__')\n"
    for test in (blank, search + blank.replace("i=0", "i")):
        done = grade_in_a_fork(no_look + test)
        assert done.returncode == 1, done.stdout
        assert "blank: week 1 day 2 task 1: RoPE.__call__ (needed by 1 test)" in done.stdout


def test_another_not_implemented_error_is_an_ordinary_failure(grade):
    done = grade("def test_a():\n    raise NotImplementedError('later')\n")
    assert done.returncode == 1 and "1 failed" in done.stdout and "blank" not in done.stdout


def test_a_test_of_an_absent_device_is_listed_and_not_passed(grade):
    done = grade("@pytest.mark.device('hpu')\ndef test_a(): pass\n\ndef test_b(): pass\n")
    assert "1 passed, 1 deselected" in done.stdout
    assert "not tested on this machine (needs hpu): test_it.py::test_a" in done.stdout


def test_a_test_of_a_model_that_is_not_here_is_listed_with_the_line_that_gets_it(
    grade, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = grade("@pytest.mark.tool('smollm2')\ndef test_a(): pass\n\ndef test_b(): pass\n")
    assert done.returncode == 0 and "1 passed, 1 deselected" in done.stdout
    assert "not tested on this machine (needs the model smollm2): test_it.py::test_a" in done.stdout
    assert "the model smollm2: `pdm run get-model smollm2` gets it\n" in done.stdout
    smollm2_path().parent.mkdir(parents=True)
    with smollm2_path().open("wb") as file:
        file.truncate(GGUF.bytes)
    two = "@pytest.mark.tool('smollm2')\ndef test_a(): pass\n\ndef test_b(): pass\n"
    assert "2 passed" in grade(two).stdout


TWO_TASKS = """
@pytest.mark.task("1.1.2")
def test_second(): pass

@pytest.mark.task("1.1.1", after="1.1.2")
def test_first_with_the_second(): pass

@pytest.mark.task("1.1.1")
def test_first(): {0}

@pytest.mark.task("1.1.1")
def test_first_once_more(): pass

@pytest.mark.task("1.1.3")
def test_third(): {1}
"""
BLANK = "raise NotImplementedError('week 1 day 1 task 1: softmax')"
BY_TASK = ("--by-task", "--stop-at-task", "-vv")


def order_of(done: subprocess.CompletedProcess) -> list[str]:
    return re.findall(r"::test_(\w+) ", done.stdout)


def test_tests_run_in_the_order_of_the_tasks(grade):
    """A test that also needs a later task comes after the tests of that one."""
    expected = ["first", "first_once_more", "second", "first_with_the_second", "third"]
    assert order_of(grade(TWO_TASKS.format("pass", "pass"), *BY_TASK)) == expected


def test_a_run_stops_after_the_first_task_that_fails(grade):
    done = grade(TWO_TASKS.format("assert False", "pass"), *BY_TASK)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout
    assert "task 1.1.1 fails: later tests were not run; --all runs them too" in done.stdout


def test_the_first_failure_is_the_one_that_is_shown(grade):
    """And its message is the last line; the others of its task are a number."""
    test = (
        "@pytest.mark.task('1.1.1')\n@pytest.mark.parametrize('i', range(30))\n"
        "def test_a(i):\n    assert i == 1, f'number {i} is wrong'\n"
    )
    done = grade(test, "--by-task", "--stop-at-task")
    lines = done.stdout.strip().splitlines()
    last = ["28 more fail: --all shows all of them", "number 0 is wrong"]
    assert done.returncode == 1 and lines[-2:] == last
    assert "number 2 is wrong" not in done.stdout and len(lines) < 30
    done = grade(test, "--by-task")  # as `--all` asks for it
    assert done.stdout.strip().endswith("\nnumber 0 is wrong") and "number 2 is wrong" in done.stdout


WITHOUT_A_RETURN = ["None.shape", "None + 1", "list(None)", "assert None == [1]"]
WITHOUT_A_RETURN += [f"Port('ref', '{port}', 'cpu').numpy(None)" for port in ("mlx", "torch")]


def test_what_an_error_often_means_is_said(grade):
    """A forgotten return on every port, and results that are too many."""
    lines = [*WITHOUT_A_RETURN, "list(zip([1], [1, 2], strict=True))"]
    tests = [f"def test_{number}():\n    {line}\n" for number, line in enumerate(lines)]
    said = grade("\n".join(["from tiny_llm_engine.solutions.port import Port", *tests])).stdout
    assert said.count(FORGOTTEN) == len(WITHOUT_A_RETURN) and said.count(LENGTHS) == 1, said


def test_a_raw_error_says_the_idea_of_its_test(grade):
    """The test's own local `idea`, or the first line of its docstring."""
    test = "@pytest.mark.task('1.1.1')\ndef test_a():\n    'What is right.'\n    {}[1, 2].shape\n"
    for named, said in (("", "What is right."), ("idea = 'the idea'; ", "the idea")):
        last = grade(test.format(named), *BY_TASK).stdout.strip().splitlines()[-1]
        assert last == f"{said} (AttributeError: 'list' object has no attribute 'shape')"


def test_every_blank_of_the_tasks_is_listed(grade, monkeypatch):
    """A test ends at the first blank that it meets; a later one would be news."""
    monkeypatch.setattr(plugin, "blank_labels", lambda parts, wanted: [f"{one}: f" for one in wanted])
    done = grade(
        TWO_TASKS.format("assert False", "pass"), *BY_TASK, "--solution=tiny_llm", f"--backends={PORT}"
    )
    assert "blank: 1.1.3: f (no test has come to it yet)" in done.stdout
    assert "no test has come" not in grade(TWO_TASKS.format("assert False", "pass"), *BY_TASK).stdout


def test_a_blank_task_does_not_stop_a_run(grade):
    done = grade(TWO_TASKS.format(BLANK, "assert False"), *BY_TASK)
    assert re.search("1 failed, 3 passed,.* 1 blank", done.stdout) and "later tests" not in done.stdout


# A call into C that lets other threads run, and hears no signal.
DEAF = "    import signal\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    time.sleep(60)\n"
SEARCH = "from hypothesis import given, strategies\n\n"


ENDLESS = [
    "def test_a():\n    while True: pass\n",
    "def test_a():\n    while True:\n        try: list(range(9))\n        except Exception: pass\n",
    SEARCH + "@given(strategies.integers())\ndef test_a(i):\n    while True: pass\n",
]


@pytest.mark.parametrize("loop", ENDLESS)
def test_an_endless_loop_ends_and_is_named(grade_in_a_fork, loop):
    """Also in a search, which would try a failing example again, and where the code under test catches errors."""
    done = grade_in_a_fork(loop + "\ndef test_b(): pass\n", "--time-limit=0.3")
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout
    assert "test_a ran for 0.3 s: a loop does not end" in done.stdout, done.stdout
    assert "while True" not in done.stdout, "a sentence, and no stack"


def test_a_call_into_c_that_never_returns_ends_the_run(grade_in_a_fork):
    """Python handles no signal in it."""
    loop = "import itertools\n\ndef test_a(): sum(itertools.repeat(0))\n"
    done = grade_in_a_fork(loop + "\ndef test_b(): pass\n", "--time-limit=0.3")
    assert done.returncode == 1 and "in test_a" in done.stderr, done
    done = grade_in_a_fork("import time\n\ndef test_a():\n" + DEAF, "--time-limit=0.2")
    assert done.returncode == 1 and "test_a ran for 0.2 s: a loop" in done.stderr
    assert "File" not in done.stderr


def test_a_run_stops_after_a_test_that_took_too_long(grade_in_a_fork):
    done = grade_in_a_fork(TWO_TASKS.format("exec('while True: pass')", "pass"), *BY_TASK, "--time-limit=0.3")
    assert order_of(done)[:1] == ["first"] and "1 failed" in done.stdout and "passed" not in done.stdout


def test_the_files_that_begin_first_are_there():
    """Of the table in `order.py`, which is a list of names."""
    names = [file.stem for folder in ("tests", "tests_refsol") for file in (ROOT / folder).rglob("test_*.py")]
    assert sorted(FIRST) == sorted(name for name in names if name in FIRST)


def test_every_loop_over_the_steps_of_a_scheduler_has_a_limit():
    """`support.steps` has it; a wrong scheduler has work for ever."""
    endless = re.compile(r"while .*(has_work_remaining|is_done|is_prefill_done|schedule_next|\.step\()")
    files = {file.name: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    lines = [(name, *each) for name, text in files.items() for each in enumerate(text.splitlines(), 1)]
    found = [f"{name}:{number}" for name, number, line in lines if endless.match(line.strip())]
    assert not found, f"{found}: `for _ in steps_of(scheduler, requests):`"


NEVER_END = [
    ('self.finish("length")', 'self.finish_reason = "length"', "end it through `finish`"),
    ("            self.running.append(admitted)\n", "", "append each request that `admit` returns"),
]


@pytest.mark.parametrize(("old", "new", "message"), NEVER_END)
def test_work_that_never_ends_is_explained(old, new, message):
    """Wrong ideas on Day 3.3 with which work remains for ever."""
    file = "sequence.py" if "finish" in old else "hybrid_scheduler.py"
    path = REFERENCE / "serving/batching" / file
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    with Overlay("tiny_llm_ref") as solution:
        solution.put({path: text.replace(old, new)})
        s = resolve_serving("tiny_llm_ref")
        allocator = s.BlockAllocator(3, 4, watermark=0, enable_prefix_caching=False)
        model = FakePackedModel(allocator, s.Sampled)
        loop = make_loop(s, "hybrid", model, allocator, max_num_batched_tokens=4, max_num_seqs=2)
        options = {"max_seq_len": 12, "sampling": s.SamplingParams(max_tokens=2)}
        sequences = [s.Sequence([97] * 8, ByteTokenizer(), request_id=i, **options) for i in range(3)]
        for sequence in sequences:
            loop.add(sequence)
        with pytest.raises(pytest.fail.Exception, match=re.escape(message)):
            for _ in steps_of(loop, sequences, 50):
                loop.step()


@pytest.mark.parametrize("actual", [[1.0, 2.1], [1.0, np.nan], [1.0, np.inf], [[1.0, 2.0]], [1.0]])
def test_assert_close_names_the_idea(actual):
    with pytest.raises(AssertionError, match="the idea"):
        assert_close(np.array(actual), [1.0, 2.0], idea="the idea")


def test_assert_close_accepts_what_is_close():
    assert_close([1.0, np.inf, -np.inf], [1.0 + 1e-6, np.inf, -np.inf], idea="the idea")


def verdicts(mutants: list[Mutant], part: str, backend: str | None = None) -> list[Verdict]:
    """All of one day, judged in one session of pytest."""
    days = sorted({mutant.address.of_day for mutant in mutants})
    ports = installed_backends()
    return with_day_tests(days, ports, "ref", lambda tests: [judge(tests, m, part, backend) for m in mutants])


@pytest.mark.parametrize("backend", installed_backends())
def test_a_mutant_is_judged_by_the_tests_of_its_task(backend):
    """Each as if it were alone: what one of them has done to the solution is gone before the next one is judged."""
    edits = {
        "survived": ("out = x @ w.T", "out = x @ w.T * 1.0"),
        "killed": ("out = x @ w.T", "out = x @ w.T + 1.0"),
        "crashed": ("out = x @ w.T", "out = x @ w.T.nonsense"),
        "stale": ("no such text", ""),
    }
    wrong = [Mutant("1.1.2", "an idea", "basics.py", both=edit) for edit in edits.values()]
    expected = [*edits, "survived"]
    assert [verdict.status for verdict in verdicts([*wrong, wrong[0]], backend)] == expected


def test_ctrl_c_ends_a_check_of_the_course():
    """pytest, in whose session the check runs, would keep it for itself."""

    def interrupted(tests):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_day_tests([Day(1, 1)], installed_backends(), "ref", interrupted)


def test_what_a_user_asks_of_their_own_pytest_changes_no_verdict(monkeypatch):
    """`-k nothing` would select no test, and a mutant that no test kills survives."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "-k nothing --maxfail=1")
    wrong = Mutant("1.1.2", "an idea", "basics.py", both=("out = x @ w.T", "out = x @ w.T + 1.0"))
    assert [verdict.status for verdict in verdicts([wrong], PORT)] == ["killed"]
    assert os.environ["PYTEST_ADDOPTS"] == "-k nothing --maxfail=1"


def test_a_text_put_over_a_file_is_seen_by_what_imports_it_and_leaves_the_rest_loaded():
    table, packing = "tiny_llm_ref.serving.blocks.block_table", "tiny_llm_ref.serving.batching.sequence"
    outside = import_module(packing)
    file = mutants.REFERENCE / "serving/batching/sequence.py"
    with Overlay("tiny_llm_ref") as solution:
        before = {name: import_module(name) for name in (table, packing, "tiny_llm_ref.serving")}
        solution.put({file: file.read_text(encoding="utf-8") + "MARK = 1\n"})
        after = {name: import_module(name) for name in before}
        assert after[packing].MARK == 1
        assert after["tiny_llm_ref.serving"].pack is after[packing].pack is not before[packing].pack
        assert after[table] is before[table]
        assert after["tiny_llm_ref.serving"].blocks.block_table is before[table], "a package has its modules"
        solution.put({})
        assert not hasattr(import_module(packing), "MARK")
    assert import_module(packing) is outside


def test_a_text_put_over_a_kernel_is_what_its_package_reads():
    """Also while nothing of Python changes; what has no text is read from the disk."""
    read, folder = "tiny_llm_ref.native.read_for_test", REFERENCE / "native"
    table = "tiny_llm_ref.serving.blocks.block_table"
    reader = "import pkgutil\nTEXT = pkgutil.get_data(__package__, 'k_for_test.cpp').decode()\n"
    package = {folder / "__init__.py": "", folder / "read_for_test.py": reader}
    with Overlay("tiny_llm_ref") as solution:
        for text in ("// é\n", "// two\n"):
            solution.put({**package, folder / "k_for_test.cpp": text})
            assert text == import_module(read).TEXT
            loaded = import_module(table)
        solution.put(package)
        assert import_module(table) is loaded
        with pytest.raises(FileNotFoundError):
            import_module(read)
        file = Path(loaded.__file__)
        assert pkgutil.get_data(loaded.__package__, file.name) == file.read_bytes()


def test_a_mutant_of_a_kernel_is_an_edit_of_one_of_its_functions(monkeypatch, tmp_path):
    monkeypatch.setattr(mutants, "REFERENCE", tmp_path)
    (tmp_path / "native").mkdir()
    file = tmp_path / "native" / "kernels.cpp"
    file.write_text("int f(int x) {\n  return x;\n}\n\nint g(int x) {\n  return x;\n}\n", encoding="utf-8")

    def mutant(inside):
        edit = ("return x;", "return 2 * x;")
        return Mutant("4.1.1", "twice", "kernels.cpp", native=edit, inside=inside)

    assert mutant("g").mutate("native") == {
        file: file.read_text(encoding="utf-8")[:-12] + "return 2 * x;\n}\n"
    }
    assert list(mutant("g").edits()) == ["native"], "and on no port for itself"
    for inside, problem in ((None, "2 times"), ("h", "no function h")):
        with pytest.raises(ValueError, match=problem):
            mutant(inside).mutate("native")


def test_the_prefix_check_cuts_kernels_too(monkeypatch, tmp_path):
    for name, folder in (("SOURCES", "src"), ("REFERENCE", "src/ref"), ("LEARNER", "src/mine")):
        monkeypatch.setattr(tree, name, tmp_path / folder)
    solved = "int f(int x) {\n  // TASK 4.1.2: it.\n  return x;\n  // END TASK\n}\n"
    files = {"k.cpp": solved, "k.h": "#pragma once\n", "k.py": "x = 1\n"}
    (tmp_path / "src/ref/native").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "src/ref/native" / name).write_text(text, encoding="utf-8")
    learner = tmp_path / "src/mine/native"
    assert prefix.course_with(lambda task: False) == {learner / name: text for name, text in files.items()}
    [cut] = [text for file, text in prefix.course_with(lambda task: True).items() if file.suffix == ".cpp"]
    assert cut == solved.replace("return x", "return 2")
    assert (tree.days(), tree.parts_of([])) == ([Day(4, 1)], ["native"])


def test_a_surviving_mutant_fails_the_report(monkeypatch):
    survivor = Mutant("1.1.2", "harmless", "basics.py", both=("out = x @ w.T", "out = x @ w.T * 1.0"))
    monkeypatch.setattr(mutants, "mutants_of", lambda day: [survivor] * 5)
    output = io.StringIO()
    assert mutants.report_mutants(Console(file=output), Day(1, 1), installed_backends()[:1]) == 1
    assert "0/5 killed" in output.getvalue() and f"survived: 1.1.2 {PORT}: harmless" in output.getvalue()


def test_the_matrix_says_which_tests_kill_which_mutant(monkeypatch, tmp_path):
    edits = {"twice": "out = x @ w.T * 2.0", "harmless": "out = x @ w.T * 1.0"}
    wrong = [Mutant("1.1.2", idea, "basics.py", both=("out = x @ w.T", new)) for idea, new in edits.items()]
    monkeypatch.setattr(mutants, "mutants_of", lambda day: wrong)
    write_matrix(Console(file=io.StringIO()), [Day(1, 1)], [PORT], tmp_path / "kills.json")
    [[task, kills]] = json.loads((tmp_path / "kills.json").read_text(encoding="utf-8"))["tasks"].items()
    assert task == "1.1.2" and all(name.startswith("test_linear") for name in kills["tests"])
    killed, survived = kills["mutants"]
    assert killed["idea"] == "twice" and killed[PORT].startswith("0")
    assert survived == {"idea": "harmless", PORT: ""}


def test_a_mutant_of_the_policy_is_judged_on_one_port():
    edits = {
        "survived": ("self.offset += 1", "self.offset += 1 * 1"),
        "killed": ("self.offset += 1", "self.offset += 2"),
        "crashed": ("self.offset += 1", "self.offset.nonsense()"),
        "stale": ("no such text", ""),
    }
    wrong = [
        Mutant("2.6.5", "an idea", "chunked_prefill/request.py", serving=edit) for edit in edits.values()
    ]
    assert {tuple(mutant.edits()) for mutant in wrong} == {("serving",)}, "and on no port for itself"
    found = verdicts(wrong, "serving", PORT)
    assert [(verdict.status, verdict.part) for verdict in found] == [(status, "serving") for status in edits]


def test_the_report_has_a_column_for_the_policy(monkeypatch):
    edit = ("self.offset += 1", "self.offset += 2")
    wrong = Mutant("2.6.5", "counts twice", "chunked_prefill/request.py", serving=edit)
    monkeypatch.setattr(mutants, "mutants_of", lambda day: [wrong] * 5)
    judged = []
    monkeypatch.setattr(
        mutants, "judge", lambda tests, m, part, port: judged.append(part) or judge(tests, m, part, port)
    )
    output = io.StringIO()
    assert mutants.report_mutants(Console(file=output), Day(2, 6), installed_backends()) == 0
    assert judged == ["serving"] * 5, "once, however many ports there are"
    parts = [part for part in parts_of(installed_backends()) if part != "native" or "c++" in mutants.tools()]
    columns = " ".join(["day", *parts])
    row = " ".join(["2.6", *("5/5 killed" if part == "serving" else "–" for part in parts)])
    assert f"{columns} {row}" in " ".join(output.getvalue().split())


def test_too_few_mutants_fail_the_report(monkeypatch):
    monkeypatch.setattr(mutants, "mutants_of", lambda day: [])
    output = io.StringIO()
    assert mutants.report_mutants(Console(file=output), Day(1, 1), installed_backends()[:1]) == 1
    assert "day 1.1 lists fewer than 5 mutants" in output.getvalue()


def test_too_many_mutants_of_a_task_are_named(monkeypatch):
    many = [Mutant("1.1.2", f"idea {number}", "basics.py") for number in range(9)]
    monkeypatch.setattr(mutants, "mutants_of", lambda day: many)
    assert mutants.miscounted(Day(1, 1)) == ["task 1.1.2 lists more than 8 mutants"]


def test_every_day_has_enough_wrong_solutions_and_no_task_too_many():
    assert [line for day in tree.days() for line in mutants.miscounted(day)] == []


def prefix_report(monkeypatch, blank, *alone: Task) -> str:
    """What the check of Day 1.1 prints if the same tasks are blank in all of its runs; it finds something wrong."""
    course, output = prefix.course_with(blank), io.StringIO()
    monkeypatch.setattr(prefix, "course_with", lambda blank: course)
    monkeypatch.setattr(prefix, "days", lambda: [Day(1, 1)])
    monkeypatch.setattr(prefix, "tasks", lambda: [*alone])
    assert prefix.report_prefix(Console(file=output, width=200), installed_backends()[:1]) == 1
    return output.getvalue()


def test_the_prefix_check_sees_tests_that_need_nothing(monkeypatch):
    output = prefix_report(monkeypatch, lambda task: False, Task(1, 1, 2))
    assert "right day 1.1, with all days up to it solved" in output
    assert "wrong task 1.1.2 alone blank" in output


def test_the_prefix_check_sees_tests_that_need_a_later_day(monkeypatch):
    output = prefix_report(monkeypatch, lambda task: True)
    assert "wrong day 1.1, with all days up to it solved" in output


def test_the_prefix_check_tries_each_sitting_without_the_later_ones(monkeypatch):
    """Of two sittings only the first one works; the other is blank when its turn comes."""
    first, second = Task(1, 1, 1), Task(1, 1, 2)
    monkeypatch.setattr(prefix, "sittings_of", lambda day: [[first], [second]])
    output = prefix_report(monkeypatch, lambda task: task != first)
    assert "right day 1.1, with its sittings up to 1 solved" in output
    assert "wrong day 1.1, with its sittings up to 2 solved" in output


def test_the_first_sitting_has_its_screen_and_its_timeline_without_the_later_ones():
    [first, *_] = sittings_of(Day(2, 7))
    with Overlay("tiny_llm") as solution:
        solution.put(prefix.course_with(lambda t: t.of_day >= Day(2, 7) and t not in first))
        console = Console(file=io.StringIO(), width=80)
        week_2_day_7.cut_and_schedule(Port("tiny_llm", installed_backends()[0], "cpu"), console)
        assert "15 stall steps" in console.file.getvalue()
        assert Comparison.of(among_decodes(256), resolve_serving("tiny_llm")).after.stall_steps == 0


def test_no_solution_asks_whether_a_task_is_blank():
    """The prefix check runs each day's tests once: what passed without a later day runs no code of it."""
    kernels = reference_files("native")  # an engine does without a blank one
    for file in set(reference_files()) - set(kernels):
        assert "NotImplementedError" not in file.read_text(encoding="utf-8"), file.name
