"""Throwaway environments, wheels of a few bytes and an index in a folder: nothing here needs a network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tiny_llm_engine.machine.repo import SOURCES

# Vendors' builds of torch for Gaudi exist for Linux, and so does the machine that the tests of them build.
collect_ignore = [] if sys.platform == "linux" else ["test_vendor_torch.py"]

CLOSED_PORT = "http://127.0.0.1:9"


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """A wheel with one module, `name`, which knows its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(path, text)
    return wheel


def quiet_environment(**more: str) -> dict[str, str]:
    """Variables for a process that sees neither this environment nor its PDM project nor a network."""
    ours = ("PYTHON", "PIP_", "PDM_", "VIRTUAL_ENV", "PT_HPU_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    offline = {"HTTP_PROXY": CLOSED_PORT, "HTTPS_PROXY": CLOSED_PORT}
    return kept | offline | {"PIP_CONFIG_FILE": os.devnull, "PDM_CHECK_UPDATE": "0"} | more


def setup_torch(python: Path, change: str = "pass", **environment: str) -> subprocess.CompletedProcess:
    """`setup-torch` in the environment of `python`; `change` is a line of Python that may alter it before."""
    program = (
        "import sys; import tiny_llm_course.doctor.setup_torch as command; "
        f"{change}; sys.exit(command.install())"
    )
    env = quiet_environment(PYTHONPATH=str(SOURCES), **environment)
    return subprocess.run([python, "-c", program], env=env, capture_output=True, text=True)


@pytest.fixture(scope="session", name="write_wheel")
def _write_wheel():
    return write_wheel


@pytest.fixture(scope="session", name="setup_torch")
def _setup_torch():
    return setup_torch


@pytest.fixture(scope="session", name="quiet_environment")
def _quiet_environment():
    return quiet_environment
