"""`pdm run setup-torch`: which build it chooses for which machine, and that pip then installs exactly that."""

import platform
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tiny_llm_course.doctor.setup_torch import IMPATIENT
from tiny_llm_engine.machine.installation import install_line
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.torch_build import CPU_INDEX, INTEL_MAC, Facts, choose, pinned_version

CPU, PLAIN = "torch==2.13.0+cpu", "torch==2.13.0"
# Machine, the action, what pip is asked for, a word of the reason.
ANSWERED, CONFIGURED = {"cpu_source": "pytorch"}, {"cpu_source": "configured"}
FROM_INDEX = (CPU, "--extra-index-url", CPU_INDEX)
BESIDE = {"installed": "2.11.0+cpu", "habana": "1.24.1", "gaudi": True, "outside": True}
TABLE = {
    "CPU box, pip has a CPU build": (CONFIGURED, "install", (CPU,), "configured"),
    "CPU box, PyTorch's index answers": (ANSWERED, "install", FROM_INDEX, "PyTorch's own index"),
    "CPU box, neither": ({}, "install", (PLAIN,), "no index with the (smaller) CPU build answered"),
    "NVIDIA": ({"nvidia": True}, "install", (PLAIN,), "NVIDIA GPU"),
    "Mac": ({"system": "Darwin", "machine": "arm64"}, "install", (PLAIN,), "the one for Darwin"),
    "Windows": ({"system": "Windows", "machine": "AMD64"}, "install", (PLAIN,), "the one for Windows"),
    "Intel Mac": ({"system": "Darwin"}, "refuse", (), "Intel Macs are not supported"),
    "installed": ({"installed": "2.13.0"}, "keep", (), "nothing to do"),
    "installed, CPU build": ({"installed": "2.13.0+cpu"}, "keep", (), "nothing to do"),
    "another version": ({"installed": "2.12.1+cpu", **CONFIGURED}, "install", (CPU,), "configured"),
    "Intel's own torch": ({"installed": "2.11.0+git1a2b3c"}, "keep", (), "never touched"),
    "stock torch beside the plug-in": (BESIDE, "keep", (), "never touched"),
    "the pinned version beside it": (
        {"installed": "2.13.0", "habana": "1.24.2"},  # the course's own version, in the image of that release
        "keep",
        (),
        "vendor's build",
    ),
    "a machine's torch": ({"installed": "2.10.0", "outside": True}, "keep", (), "belongs to the machine"),
    "a torch without metadata": ({"installed": "unknown"}, "keep", (), "not installed by pip"),
    "the plug-in without a torch": ({"habana": "1.24.1"}, "refuse", (), "without its torch"),
    "a Gaudi whose torch is hidden": ({"gaudi": True}, "refuse", (), "--system-site-packages"),
    "a Gaudi and an NVIDIA card": ({"gaudi": True, "nvidia": True}, "refuse", (), "has a Gaudi"),
}


def test_every_command_says_the_same_of_an_intel_mac(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert install_line("torch") == INTEL_MAC


@pytest.mark.parametrize("machine", TABLE)
def test_the_choice(machine):
    facts, action, requirement, reason = TABLE[machine]
    decision = choose(Facts(pinned="2.13.0", **facts))
    assert (decision.action, decision.requirement) == (action, requirement)
    assert reason in decision.why and "\n" not in decision.why


def test_the_version_is_pinned_once():
    assert pinned_version(ROOT / "pyproject.toml").count(".") == 2


def test_a_missing_pin_is_one_line(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[tool.tiny_llm]\n[tool.other]\ntorch = "1.0"\n', encoding="utf-8")
    with pytest.raises(SystemExit, match=r"\[tool.tiny_llm\] needs a line `torch"):
        pinned_version(file)


# The whole command, with pip, in an environment as PDM makes it: without pip. Wheels come from a folder.

CLOSED_PORT = "http://127.0.0.1:9/cpu"
NO_GPU = "command.nvidia_answers = lambda: False"
PINNED = pinned_version(ROOT / "pyproject.toml")


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@pytest.fixture
def index(tmp_path, write_wheel):
    """Makes an index of torch wheels in a folder and returns pip's settings for it."""

    def make(*versions: str, name: str = "index") -> dict[str, str]:
        for version in versions:
            write_wheel(tmp_path / name, "torch", version)
        (tmp_path / name).mkdir(exist_ok=True)
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / name)}

    return make


@pytest.fixture
def without_torch(python) -> Path:
    """The environment, which loses its torch after the test."""
    yield python
    for path in site_packages(python).glob("torch*"):
        shutil.rmtree(path)


def site_packages(python: Path) -> Path:
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip())


def torch_in(python: Path) -> str:
    program = "import torch; print(torch.__version__)"
    return subprocess.run([python, "-c", program], capture_output=True, text=True).stdout.strip()


def linux(*changes: str) -> str:
    """Lets a test of the Linux path run anywhere, and on a machine with a GPU."""
    return "; ".join(["command.platform.system = lambda: 'Linux'", NO_GPU, *changes])


def test_installs_the_cpu_build_that_pip_knows_and_then_nothing_more(without_torch, index, setup_torch):
    settings = index(PINNED, f"{PINNED}+cpu")
    done = setup_torch(without_torch, linux(), **settings)
    assert done.returncode == 0, done.stderr
    assert f"installing torch=={PINNED}+cpu, the CPU build that pip is configured with" in done.stdout
    assert torch_in(without_torch) == f"{PINNED}+cpu"
    again = setup_torch(without_torch, linux(), **settings)
    assert again.stdout == f"setup-torch: torch {PINNED}+cpu is installed: nothing to do\n"
    assert again.returncode == 0


def test_replaces_another_version_of_its_own(without_torch, index, setup_torch, write_wheel, tmp_path):
    zipfile.ZipFile(write_wheel(tmp_path, "torch", "2.0.1")).extractall(site_packages(without_torch))
    settings = index(f"{PINNED}+cpu")
    assert setup_torch(without_torch, linux(), **settings).returncode == 0
    assert torch_in(without_torch) == f"{PINNED}+cpu"


def test_falls_back_to_the_default_build_and_says_so(without_torch, index, setup_torch):
    done = setup_torch(without_torch, linux(f"command.CPU_INDEX = {CLOSED_PORT!r}"), **index(PINNED))
    assert done.returncode == 0, done.stderr
    assert "no index with the (smaller) CPU build answered" in done.stdout
    assert torch_in(without_torch) == PINNED


def test_an_index_that_accepts_and_never_answers_costs_seconds(without_torch, index, setup_torch):
    assert IMPATIENT == ("--timeout", "5", "--retries", "0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/cpu"
        shorter = "command.IMPATIENT = ('--timeout', '0.1', '--retries', '0')"
        # pip's --no-index would hide the silent one as well.
        reachable = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "file:///no-such-folder", "NO_PROXY": "127.0.0.1"}
        settings = index(PINNED) | reachable
        done = setup_torch(without_torch, linux(shorter, f"command.CPU_INDEX = {address!r}"), **settings)
    assert done.returncode == 0 and "answered" in done.stdout, done.stderr
    assert torch_in(without_torch) == PINNED


def test_a_machine_with_an_nvidia_gpu_gets_the_default_build(without_torch, index, setup_torch):
    change = linux("command.nvidia_answers = lambda: True")
    done = setup_torch(without_torch, change, **index(PINNED, f"{PINNED}+cpu"))
    assert "the index's default build: this machine has an NVIDIA GPU" in done.stdout
    # pip itself prefers the longer of two equal versions, so the assertion is on what it was asked for.
    assert f"installing torch=={PINNED}," in done.stdout and done.returncode == 0


def test_without_an_index_one_line_says_what_to_do(python, index, setup_torch):
    done = setup_torch(python, linux(f"command.CPU_INDEX = {CLOSED_PORT!r}"), **index())
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "setup-torch: not installed, pip says why above: with a network"
    )
    assert torch_in(python) == ""


def test_a_gaudi_whose_torch_is_hidden_gets_none_from_an_index(python, index, setup_torch, tmp_path):
    tool = tmp_path / "hl-smi"
    tool.write_text("#!/bin/sh\n", encoding="utf-8")
    tool.chmod(0o755)
    done = setup_torch(python, linux(), PATH=str(tmp_path), **index(f"{PINNED}+cpu"))
    assert done.returncode == 1 and "python3 -m venv --clear --system-site-packages .venv" in done.stdout
    assert torch_in(python) == ""
