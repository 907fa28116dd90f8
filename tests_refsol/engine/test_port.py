"""Which port a machine gets, and what it is told when one cannot be had."""

import shutil
from functools import partial

import pytest

from tiny_llm_course import answers, capabilities
from tiny_llm_engine.machine import installation
from tiny_llm_engine.solutions import solution as solutions


@pytest.fixture(autouse=True)
def current_glibc(monkeypatch):
    monkeypatch.setattr(installation.platform, "libc_ver", lambda: ("glibc", "2.35"))


MACHINES = [
    ("Darwin", "arm64", ["mlx", "torch"], "mlx"),
    ("Darwin", "arm64", ["mlx"], "mlx"),
    ("Linux", "x86_64", ["mlx", "torch"], "torch"),
    ("Linux", "aarch64", ["mlx"], "mlx"),
    ("Windows", "AMD64", ["torch"], "torch"),
    ("Windows", "AMD64", [], "torch"),
]


@pytest.mark.parametrize(("system", "machine", "installed", "port"), MACHINES)
def test_the_default_port_fits_the_machine(monkeypatch, system, machine, installed, port):
    monkeypatch.setattr(installation.platform, "system", lambda: system)
    monkeypatch.setattr(installation.platform, "machine", lambda: machine)
    monkeypatch.setattr(installation, "installed_backends", lambda: installed)
    assert installation.default_port() == port


OLD, NEW, NONE = ("glibc", "2.34"), ("glibc", "2.41"), ("", "")
LIBRARIES = [(OLD, [], "torch"), (OLD, ["mlx"], "mlx"), (NONE, [], "torch"), (NEW, [], "mlx")]


@pytest.mark.parametrize(("libc", "installed", "port"), LIBRARIES)
def test_an_older_glibc_has_no_mlx_unless_somebody_built_it(monkeypatch, libc, installed, port):
    monkeypatch.setattr(installation.platform, "system", lambda: "Linux")
    monkeypatch.setattr(installation.platform, "libc_ver", lambda: libc)
    monkeypatch.setattr(installation, "installed_backends", lambda: installed)
    assert installation.default_port() == port
    is_old = port == "torch" or installed
    assert ("pdm install --without mlx,ray,authors,torch" in installation.install_line("mlx")) == bool(is_old)


MISSING = [
    ("Linux", "x86_64", "torch", "run `pdm run setup-torch`"),
    ("Linux", "x86_64", "mlx", "run `pdm install`"),
    ("Windows", "AMD64", "mlx", "course port torch"),
    ("Darwin", "x86_64", "mlx", "Intel Macs are not supported"),
    ("Darwin", "x86_64", "torch", "Intel Macs are not supported"),
]


@pytest.mark.parametrize(("system", "machine", "backend", "line"), MISSING)
def test_a_missing_port_says_how_to_get_it(monkeypatch, system, machine, backend, line):
    monkeypatch.setattr(installation.platform, "system", lambda: system)
    monkeypatch.setattr(installation.platform, "machine", lambda: machine)
    monkeypatch.setattr(installation, "installed_backends", list)
    with pytest.raises(SystemExit, match=line):
        installation.require_backend(backend)


@pytest.fixture
def begun(monkeypatch, tmp_path):
    """A learner's package with one answer on MLX, of somebody who has chosen no port."""
    shutil.copytree(answers.LEARNER / "mlx_backend", tmp_path / "mlx_backend")
    shutil.copytree(answers.LEARNER / "torch_backend", tmp_path / "torch_backend")
    monkeypatch.setattr(answers.has_answers, "__defaults__", (tmp_path,))
    monkeypatch.setattr(capabilities, "SETTINGS", tmp_path / "settings.json")
    monkeypatch.delenv("TINY_LLM_BACKEND", raising=False)
    file = tmp_path / "mlx_backend" / "attention.py"
    text = file.read_text(encoding="utf-8")
    assert answers.BLANK in text and not answers.has_answers("mlx")
    file.write_text(text.replace(answers.BLANK, "return softmax(", 1), encoding="utf-8")


def test_a_port_that_is_installed_later_takes_nobody_away_from_the_one_that_was_begun(begun, monkeypatch):
    monkeypatch.setattr(capabilities, "default_port", lambda: "torch")
    assert capabilities.learner_port() == "mlx"
    assert answers.other_port(["mlx"]) is None and answers.other_port(["mlx", "torch"]) is None
    line = "you work on torch, but mlx_backend has answers: `pdm run course port mlx` goes on with them"
    assert answers.other_port(["torch"]) == line


@pytest.mark.parametrize("solution", ["ref", "tiny_llm"])
@pytest.mark.parametrize("name", ["mlx", "torch"])
def test_the_environment_names_the_port_of_every_command(monkeypatch, solution, name):
    """Before the learner's setting, and after an option."""
    monkeypatch.setenv("TINY_LLM_BACKEND", name)
    other = "mlx" if name == "torch" else "torch"
    assert capabilities.learner_port() == capabilities.choose_backend(solution, "auto") == name
    assert capabilities.choose_backend(solution, other) == other
    assert capabilities.tested_ports(None) == [name] and capabilities.tested_ports(other) == [other]


def test_a_port_of_the_environment_that_does_not_exist_ends_a_command_with_one_line(monkeypatch, refused):
    monkeypatch.setenv("TINY_LLM_BACKEND", "jax")
    for asked in (capabilities.learner_port, partial(capabilities.choose_backend, "ref", "auto")):
        assert refused(asked) == "TINY_LLM_BACKEND is 'jax': choose auto, mlx or torch\n"


@pytest.mark.parametrize("lost", ["native", "serving", "torch_backend"])
def test_a_learners_package_without_its_init_is_named(monkeypatch, tmp_path, lost):
    """Python would import an empty package instead."""
    for package in {"native", "serving", "torch_backend"} - {lost}:
        (tmp_path / "tiny_llm" / package).mkdir(parents=True)
        (tmp_path / "tiny_llm" / package / "__init__.py").touch()
    monkeypatch.setattr(solutions, "SOURCES", tmp_path)
    monkeypatch.setattr(installation, "installed_backends", lambda: ["torch"])
    with pytest.raises(SystemExit, match=rf"{lost}/__init__.py: missing; `pdm run course sync` writes it"):
        solutions.resolve("tiny_llm", "torch")
