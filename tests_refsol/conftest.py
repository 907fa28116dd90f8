"""What the tests of the product share: a copy of the repository to do things to, and a way to run its commands."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from compileall import compile_dir
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from tiny_llm_engine.machine import blas
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS, ROOT, command_modules

from .order import place_in_a_run

# What people have set for themselves is nothing for what the tests run: options of pytest and Python, their terminal,
# a proxy, keys and choices, the repository of a Git hook.
THEIRS = re.compile(
    r"PYTEST_(ADDOPTS|PLUGINS|DISABLE_PLUGIN_AUTOLOAD)$"
    r"|PYTHON(DEVMODE|DONTWRITEBYTECODE|IOENCODING|OPTIMIZE|VERBOSE|WARNINGS)$"
    r"|(COLUMNS|LINES|FORCE_COLOR|NO_COLOR|PY_COLORS|TTY_COMPATIBLE|TTY_INTERACTIVE)$"
    r"|(ALL|HTTP|HTTPS|NO)_PROXY$|OPENAI_|TINY_LLM_|GIT_",
    re.IGNORECASE,
)
for name in filter(THEIRS.match, [*os.environ]):
    del os.environ[name]
# No test judges by seconds: the steps of servers have 512 tokens, however fast this machine is.
os.environ["TINY_LLM_MAX_STEP_SECONDS"] = "0"

# Some test files import MLX before the engine does, and then all tests of a process would have its slow BLAS.
blas.preload()

# Tests of one port alone import its library at the top; where that port is missing they cannot even be collected.
# test_hpu.py imports torch inside the processes that it starts.
ONE_PORT = re.compile(r"^(?:import|from) (mlx|torch)\b", re.MULTILINE)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_in_a_run)


def ports_of_file(path: Path) -> set[str]:
    """The ports without which a test file cannot run."""
    return (
        {"torch"} if path.name == "test_hpu.py" else set(ONE_PORT.findall(path.read_text(encoding="utf-8")))
    )


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    missing = collection_path.suffix == ".py" and ports_of_file(collection_path) - set(installed_backends())
    return True if missing else None


def pytest_terminal_summary(terminalreporter) -> None:
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for port in ports_of_file(path) - set(installed_backends()):
            line = f"not tested on this machine (the {port} port is missing): {path.name}"
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def two_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two of the shipped model's four layers: a step takes half as long.

    What it answers means nothing. It is for tests that compare answers with answers, or prescribe them.
    """
    folder = shutil.copytree(MODELS / "tiny-qwen3", tmp_path_factory.mktemp("model") / "two-layers")
    config = folder / "config.json"
    shape = json.loads(config.read_text(encoding="utf-8")) | {"num_hidden_layers": 2}
    config.write_text(json.dumps(shape), encoding="utf-8")
    return folder


class Forks:
    """Runs modules in forks of one process that has imported the large libraries; see `fork_server.py`."""

    def __init__(self, folder: Path):
        self.folder = folder  # of what the forks print
        self.server: subprocess.Popen | None = None

    def run(
        self, module: str, *arguments: str, folder: Path = ROOT, **environment: str
    ) -> subprocess.CompletedProcess:
        """`python -m MODULE ARGUMENTS` in `folder`, with the environment of the tests and what is added to it."""
        self.server = self.server or self._start()
        out, errors = self.folder / "out", self.folder / "errors"
        job = {"module": module, "arguments": arguments, "folder": str(folder)}
        job |= {"environment": os.environ | environment, "stdout": str(out), "stderr": str(errors)}
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        code = json.loads(self.server.stdout.readline())
        return subprocess.CompletedProcess(
            arguments, code, *(f.read_text(encoding="utf-8") for f in (out, errors))
        )

    def _start(self) -> subprocess.Popen:
        line = [sys.executable, str(ROOT / "tests_refsol" / "fork_server.py")]
        env = os.environ | {"PYTHONIOENCODING": "utf-8"}
        return subprocess.Popen(line, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        if self.server:
            self.server.communicate()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    made = Forks(tmp_path_factory.mktemp("forks"))
    yield made
    made.close()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture) -> Callable[..., str]:
    """What a command prints on standard error when it ends with exit code 2, that of unusable input."""

    def run(command: Callable[..., object], *arguments: object) -> str:
        with pytest.raises(SystemExit) as end:
            command(*arguments)
        assert end.value.code == 2
        return capsys.readouterr().err

    return run


class Clone:
    """A copy of the repository under Git, whose commands run on the copy and not on the original."""

    def __init__(self, root: Path, forks: Forks):
        self.root, self.forks = root, forks
        self.learner = root / "src" / "tiny_llm"

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a learner", "-c", "user.email=learner@example.org"]
        command = ["git", *identity, *arguments]
        # Somebody's own settings may sign every commit, or run hooks.
        env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        done = subprocess.run(command, cwd=self.root, env=env, check=True, capture_output=True, text=True)
        return done.stdout

    def environment(self, **more: str) -> dict[str, str]:
        return {"PYTHONPATH": str(self.root / "src"), "COLUMNS": "120"} | more

    def run(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs `pdm run COMMAND ARGUMENTS` of the copy, in a fork."""
        module, environment = command_modules()[command], self.environment(**environment)
        return self.forks.run(module, *arguments, folder=self.root, **environment)

    def start_over(self) -> None:
        """As it was at first, but what was compiled stays."""
        self.git("reset", "-q", "--hard", "start")
        self.git("clean", "-fdxq", "--exclude=__pycache__")


@pytest.fixture(scope="session")
def committed(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Clone:
    """A committed copy of the sources, the tests and the book."""
    root = tmp_path_factory.mktemp("clone") / "tiny-llm"
    ignore = shutil.ignore_patterns("__pycache__", "*.safetensors", ".hypothesis")
    for name in ("src", "tests", "authors", "book/src"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    made = Clone(root, forks)
    # Tests write the learner's files twice within a second, the precision of a time: these are known by their text.
    compile_dir(made.learner, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    made.git("init", "-q", "-b", "main")
    made.git("add", "-A")
    made.git("commit", "-q", "-m", "start")
    made.git("tag", "start")
    return made


@pytest.fixture
def clone(committed: Clone) -> Clone:
    """The one copy of this session, as fresh as at first."""
    committed.start_over()
    return committed
