"""The pytest plugin of the course: fixtures `b` and `s`, task marks, blank exercises, no silent skips.

`pdm run test` and `pdm run test-refsol` load it and pass its options.
"""

import gc
import os
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.smollm2 import GET, NAME, smollm2_file
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import SOLUTIONS, resolve_serving
from tiny_llm_extensions.kernels.native import library
from tiny_llm_extensions.profiling.product_choice import MEASURED, USUAL, VARIABLE

from ..address import Day, Task, parse_task, task_of_label
from ..learner import blank_labels
from ..progress import record_results
from ..trace.text import counted
from ..tree import LEARNER, parts_of, tasks_of_part
from .ideas import idea_of
from .order import FirstFailure, in_order_of_tasks, port_of, task_of
from .results import ResultFile
from .time_limit import TimeLimit

# Without the last phase, which traces every line to explain a failure: it took minutes on a day of blank stubs.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
settings.register_profile(
    "course",
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow],  # slowness on a busy machine is not a wrong solution
)
settings.load_profile("course")
# Where only pass or fail counts, the first failing example is enough; it is not shrunk.
VERDICT = "verdict"
settings.register_profile(VERDICT, settings.get_profile("course"), phases=(Phase.explicit, Phase.generate))


def pytest_addoption(parser: pytest.Parser) -> None:
    add, products = parser.getgroup("tiny-llm").addoption, [MEASURED, USUAL]
    add("--solution", default="ref", choices=sorted(SOLUTIONS), help="solution under test")
    add("--backends", default=",".join(installed_backends()), help="mlx, torch or mlx,torch")
    add("--device", default="cpu", help="device of the arrays; the tolerances are those of the CPU")
    add("--record", action="store_true", help="remember which tasks are green, for `course status`")
    add("--products", default=USUAL, choices=products, help="what the machine measures decides no test")
    add("--long", action="store_true", help="also tests of the machine, such as real training")
    add("--task", action="append", default=[], dest="tasks", help="only this task, as 1.3.2")
    add("--by-task", action="store_true", help="in the order of the tasks")
    add("--stop-at-task", action="store_true", help="end after the first task that fails")
    add("--time-limit", type=float, default=0, help="seconds per test; 0 is no limit")
    add("--results", type=Path, help="write the results of each task into this file")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[VARIABLE] = config.option.products
    config.pluginmanager.register(Grader(config), "tiny-llm-grader")
    first = FirstFailure(config.option.stop_at_task)
    if config.option.by_task:
        config.pluginmanager.register(first, "tiny-llm-first-failure")
    if config.option.results:
        config.pluginmanager.register(ResultFile(config.option.results), "tiny-llm-results")
    if config.option.time_limit:
        limit = TimeLimit(config.option.time_limit, first.last_lines)
        config.pluginmanager.register(limit, "tiny-llm-time-limit")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "b" in metafunc.fixturenames:
        metafunc.parametrize("b", metafunc.config.option.backends.split(","), indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keeps the garbage collector away from what is collected, which lives as long as the session: it took seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    vars(item)["repr_failure"] = partial(_repr_failure, item.repr_failure)  # a method, of this item alone


@pytest.fixture(scope="session")
def b(request: pytest.FixtureRequest) -> Port:
    """The names under test on one backend, with `b.array(numpy)` and `b.numpy(array)`."""
    option = request.config.option
    return Port(SOLUTIONS[option.solution], request.param, option.device)


@pytest.fixture(scope="session")
def s(request: pytest.FixtureRequest):
    """The policy under test, `serving`; it uses no arrays, so its tests run once."""
    return resolve_serving(SOLUTIONS[request.config.option.solution])


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random inputs that are the same in every run and on every backend."""
    return np.random.default_rng(zlib.crc32(request.function.__name__.encode()))


def devices() -> set[str]:
    """Every device of every installed backend, for example {"cpu", "gpu"}."""
    modules = (f"tiny_llm_engine.backends.backend_{name}" for name in installed_backends())
    return {device for module in modules for device in import_module(module).devices()}


class Grader:
    """Records one session: tasks that passed, blank functions, and what was not tested."""

    def __init__(self, config: pytest.Config):
        self.config = config
        self.outcomes: dict[tuple[str, Task], bool] = {}
        self.not_run: dict[str, tuple[str, str]] = {}  # what each test grades that has not run yet
        self.asked: set[Task] = set()
        self.blanks: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.untested: list[tuple[str, str]] = []
        self.shared = {task: part for part in parts_of([]) for task in tasks_of_part(part)}
        self.not_kept: OSError | None = None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self._keep_wanted(items)
        self._set_aside_what_needs_more(items)
        if self.config.option.by_task:
            items[:] = in_order_of_tasks(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.not_run = {item.nodeid: grades for item in session.items if (grades := self._grades(item))}
        self.asked = {parse_task(task) for _, task in self.not_run.values()}

    def _keep_wanted(self, items: list[pytest.Item]) -> None:
        wanted = {parse_task(text) for text in self.config.option.tasks}
        if wanted:
            unwanted = [item for item in items if task_of(item) not in wanted]
            self.config.hook.pytest_deselected(items=unwanted)
            items[:] = [item for item in items if task_of(item) in wanted]

    def _set_aside_what_needs_more(self, items: list[pytest.Item]) -> None:
        """Deselect and list tests that are long, or need a device, a port or a tool that is missing."""
        present = {
            "device": cache(devices),
            "port": cache(lambda: set(installed_backends())),
            "tool": cache(tools),
        }
        needs = [(item, _missing(item, present) or self._too_long(item)) for item in items]
        self.untested = [(item.nodeid, missing) for item, missing in needs if missing]
        if self.untested:
            self.config.hook.pytest_deselected(items=[item for item, missing in needs if missing])
            items[:] = [item for item, missing in needs if not missing]

    def _too_long(self, item: pytest.Item) -> str | None:
        is_long = item.get_closest_marker("long") is not None
        return "--long" if is_long and not self.config.option.long else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        blank = call.excinfo and _blank_exercise(call.excinfo)
        if blank:
            report.blank = blank
            report.longrepr = f"blank: {blank}"
        elif call.excinfo and (idea := idea_of(call.excinfo, _contract(item))):
            report.idea = idea
            if hasattr(report.longrepr, "addsection"):
                report.longrepr.addsection("what this often means", idea)
        report.grades = self._grades(item)
        return report

    def _grades(self, item: pytest.Item) -> tuple[str, str] | None:
        """The part and the task that a test grades; a report carries them as text from one process to another."""
        task = task_of(item)
        if task is None:
            return None
        # A task that all ports share is judged as a whole, also by its tests that run a port's model.
        return self.shared.get(task) or port_of(item) or "serving", str(task)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a result from its report, which is all that other processes (pytest-xdist) send."""
        grades = getattr(report, "grades", None)  # a process that died sends only a plain report
        if grades and (report.failed or report.when == "call"):
            self.not_run.pop(report.nodeid, None)
            key = grades[0], parse_task(grades[1])
            self.outcomes[key] = self.outcomes.get(key, True) and report.passed
        if report.skipped:
            self.skipped.append(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node) -> None:
        """Take the list of deselected tests from a finished pytest-xdist process; all processes have the same."""
        self.untested = node.workeroutput.get("untested", self.untested)

    def pytest_report_teststatus(self, report):
        if getattr(report, "blank", None):
            self.blanks[report.blank] += 1
            return "blank", "_", "BLANK"
        return None

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        output = getattr(self.config, "workeroutput", None)  # of a process of xdist
        if output is not None:
            output["untested"] = self.untested
        elif self.config.option.record:
            try:
                record_results(*self._results())
            except OSError as error:  # a read-only checkout: the results count anyway
                self.not_kept = error
        if self.skipped and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _results(self) -> tuple[dict[tuple[str, Task], bool], set[tuple[str, Task]]]:
        """Whether each task has passed or failed, and the tasks with a test that the run ended before."""
        left = {(port, parse_task(task)) for port, task in self.not_run.values()}
        unknown = {key for key in left if self.outcomes.get(key, True)}
        return {key: passed for key, passed in self.outcomes.items() if key not in unknown}, unknown

    def pytest_terminal_summary(self, terminalreporter) -> None:
        option = self.config.option
        where = f"ports: {option.backends}, device: {option.device}"
        terminalreporter.write_line(f"tested: src/{SOLUTIONS[option.solution]}, {where}")
        if self.not_kept:
            where = f"{self.not_kept.filename} ({self.not_kept.strerror})"
            terminalreporter.write_line(f"not remembered for `course status`: {where}", yellow=True)
        for label in sorted({*self.blanks, *self._blanks_of_learner()}):
            tests = self.blanks[label]
            why = f"needed by {counted(tests, 'test')}" if tests else "no test has come to it yet"
            terminalreporter.write_line(f"blank: {label} ({why})", yellow=True)
        if earlier := self._blank_days_before():
            fix = f"fill them, or `pdm run course skip --through {earlier[-1]}`"
            terminalreporter.write_line(f"earlier days are blank: {fix}", yellow=True)
        for nodeid, missing in self.untested:
            needed = f"the model {NAME}" if missing == NAME else missing
            terminalreporter.write_line(f"not tested {_where(missing)} (needs {needed}): {nodeid}")
        if any(missing == NAME for _, missing in self.untested):
            terminalreporter.write_line(f"the model {NAME}: `{GET}` gets it")
        for nodeid in self.skipped:
            terminalreporter.write_line(f"skipped, and a skip is no pass: {nodeid}", red=True)

    def _blanks_of_learner(self) -> list[str]:
        """Every blank of the tasks that this run grades: a test ends at the first one that it meets."""
        if SOLUTIONS[self.config.option.solution] != LEARNER.name:
            return []
        return blank_labels(parts_of(self.config.option.backends.split(",")), self.asked)

    def _blank_days_before(self) -> list[Day]:
        """Earlier days, not selected, whose blank tasks the tests ran into."""
        asked = {task.of_day for task in self.asked}
        blanks = {found[0].of_day for label in self.blanks if (found := task_of_label(label))}
        return sorted(blanks - asked)


def _where(missing: str) -> str:
    return "in this run" if missing == "--long" else "on this machine"


def tools() -> set[str]:
    """What some tests need and this machine has: a C++ compiler, oneDNN's products for bf16, the model `smollm2`."""
    present = {NAME} if smollm2_file() else set()
    with suppress(library.NativeError):
        library.compiler()
        present.add("c++")
    if (
        "torch" in installed_backends()
        and import_module("tiny_llm_extensions.kernels.torch.products").has_onednn()
    ):
        present.add("onednn")
    return present


def _missing(item: pytest.Item, present: dict[str, Callable[[], set[str]]]) -> str | None:
    """The missing device, port or tool that a test needs.

    What no test needs is not looked for.
    """
    needed = [(kind, mark.args[0]) for kind in present for mark in item.iter_markers(kind)]
    return next((name for kind, name in needed if name not in present[kind]()), None)


def _repr_failure(in_full: Callable, failure: pytest.ExceptionInfo):
    """The report of a failed test: for a blank task its address, so that pytest need not parse the source.

    pytest parses the file of each frame again for each failure; for a blank Day 2.7 alone that took a minute. Of a
    kernel that does not compile the compiler has said all there is to say, and a test that took too long has named
    its line.
    """
    if blank := _blank_exercise(failure):
        return f"blank: {blank}"
    is_said = type(failure.value).__name__ in ("CompileError", "TestTookTooLong")
    return str(failure.value) if is_said else in_full(failure)


def _contract(item: pytest.Item) -> str | None:
    return getattr(getattr(item, "function", None), "__doc__", None)


def _blank_exercise(failure: pytest.ExceptionInfo) -> str | None:
    """The address in the message of a blank exercise's NotImplementedError."""
    error = failure.value
    if isinstance(error, NotImplementedError) and error.args and task_of_label(str(error.args[0])):
        return str(error.args[0])
    return None
