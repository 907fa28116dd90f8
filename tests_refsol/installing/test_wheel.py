"""The wheel, built and unpacked outside the checkout: what is in it, what it says of itself, and that it answers.

It is not installed, so no network is needed: the libraries are those of this environment, without its editable install.
`.ci/wheel` installs it with pip, in a fresh environment of each Python.
"""

import os
import subprocess
import sys
import sysconfig
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from pdm.backend import build_wheel

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS, ROOT

OURS = {f"tiny_llm_{part}" for part in ("ref", "engine", "extensions", "server", "course")}
LIBRARIES = sysconfig.get_path("purelib")
EXAMPLE = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
ANSWERS = ["Chunked prefill splits a long prompt", "A KV cache keeps the keys and values"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The folder with the content of the wheel, which is built in a folder of links: another process may build too."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "pdm_build.py", "README.md", "LICENSE", "NOTICE", "src", "models"):
        (folder / name).symlink_to(ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        name = build_wheel(str(folder))
    with zipfile.ZipFile(folder / name) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def python(wheel: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process that sees the wheel and the libraries, and, without `site`, no editable install."""
    seen = {"PYTHONPATH": os.pathsep.join([str(wheel), LIBRARIES])}
    command, env = [sys.executable, "-S", "-c", *arguments], os.environ | seen | environment
    return subprocess.run(command, env=env, cwd=wheel.parent, capture_output=True, text=True)


def test_a_user_gets_the_engine_the_reference_and_the_small_model(wheel):
    files = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    packages = {file.partition("/")[0] for file in files} - {"tiny_llm-0.1.0.dist-info"}
    assert packages == OURS, "no stubs, no lab, no tests"
    assert {f"{name}/py.typed" for name in ("tiny_llm_ref", "tiny_llm_engine")} <= files
    of_model = {path.name for path in (MODELS / "tiny-qwen3").iterdir()} - {"training_log.json"}
    assert {file.rpartition("/")[2] for file in files if "/shipped/" in file} == of_model
    assert not [file for file in files if "moe" in file or "/see/" in file or "/grading/" in file]
    assert sum(path.stat().st_size for path in wheel.rglob("*.*")) < 8_000_000


def test_its_part_of_the_course_needs_no_other_part(wheel):
    files = [file.relative_to(wheel) for file in (wheel / "tiny_llm_course").rglob("*.py")]
    names = [".".join(file.with_suffix("").parts) for file in files]
    program = "import sys, importlib; [importlib.import_module(name) for name in sys.argv[1:]]"
    done = python(wheel, program, *names)
    assert done.returncode == 0 and len(names) < 30, done.stderr


def test_what_it_says_of_itself(wheel):
    text = (wheel / "tiny_llm-0.1.0.dist-info" / "METADATA").read_text(encoding="utf-8")
    said = Parser().parsestr(text)
    assert said["License-Expression"] == "Apache-2.0"
    assert {"LICENSE", "NOTICE"} == set(said.get_all("License-File"))
    assert {"mlx", "torch", "ray"} <= set(said.get_all("Provides-Extra"))
    assert said["Requires-Python"] == "<3.14,>=3.10"
    assert all("example.org" in url for url in said.get_all("Project-URL")), "placeholders"
    [torch] = [line for line in said.get_all("Requires-Dist") if line.startswith("torch")]
    assert torch.startswith("torch>=") and "==" not in torch.partition(";")[0]
    entry = (wheel / "tiny_llm-0.1.0.dist-info" / "entry_points.txt").read_text(encoding="utf-8")
    assert "tiny-llm = tiny_llm_course.commands.program:main" in entry


@pytest.mark.parametrize("port", installed_backends())
def test_the_example_of_the_readme_answers_with_the_wheel(wheel, port):
    done = python(wheel, EXAMPLE, TINY_LLM_BACKEND=port)
    answers = done.stdout.splitlines()
    assert all(map(str.startswith, answers, ANSWERS)) and len(answers) == len(ANSWERS), done.stderr


MESSAGES = """
from tiny_llm_course.doctor import checks, get_model
from tiny_llm_engine.machine import installation
from tiny_llm_engine.models import files, hub, smollm2
from tiny_llm_server.replicas import replica_options
installation.installed_backends = checks.installed_backends = list
print(*map(installation.install_line, ("mlx", "torch")), smollm2.GET, get_model.TRY, replica_options.INSTALL, sep="\\n")
print(*(check.fix for check in map(checks.run, checks.CHECKS) if check.status != "ok"), sep="\\n")
for act in (lambda: hub.find_model("tiny-qwen3-moe"), lambda: installation.require_backend("torch")):
    try:
        act()
    except (files.CheckpointError, SystemExit) as error:
        print(error)
"""


def test_outside_a_checkout_messages_name_pip(wheel):
    done = python(wheel, MESSAGES)
    assert done.returncode == 0, done.stderr
    assert "pdm" not in done.stdout
    for said in ("pip install", "tiny-llm get-model smollm2", "`models/tiny-qwen3-moe` of the repository"):
        assert said in done.stdout


def test_the_program_has_four_commands_and_names_itself(wheel):
    program = "import sys; from tiny_llm_course.commands.program import main; sys.exit(main())"
    for name in ("chat", "serve", "get-model", "doctor"):
        done = python(wheel, program, name, "--help")
        assert done.stdout.startswith(f"usage: tiny-llm {name}") and "pdm" not in done.stdout, done.stderr
    done = python(wheel, program, "chat", "--solution", "tiny_llm")
    assert done.returncode == 1 and done.stderr.endswith("import tiny_llm_ref instead\n")


def test_two_copies_are_not_mixed(wheel, tmp_path):
    """The engine of the wheel, and before it on the path a reference from elsewhere."""
    port = installed_backends()[0]
    folder = tmp_path / "tiny_llm_ref" / f"{port}_backend"
    folder.mkdir(parents=True)
    for place in (folder.parent, folder):
        (place / "__init__.py").touch()
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); "
    program += f"from tiny_llm_engine.solutions.solution import resolve; resolve('ref', {port!r})"
    done = python(wheel, program)
    assert done.returncode == 1
    assert "two copies of tiny-llm are on Python's path" in done.stderr and str(tmp_path) in done.stderr
