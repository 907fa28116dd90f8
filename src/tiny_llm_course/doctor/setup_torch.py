"""Chooses and installs the torch build that fits this machine.

Standard library only: it runs before torch is there. `torch_build.choose` decides; this file gathers the facts and
runs pip, which PDM leaves out of the environments that it makes.
"""

import importlib
import importlib.metadata
import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

from tiny_llm_engine.machine.repo import IN_CHECKOUT, ROOT, run_line
from tiny_llm_engine.machine.torch_build import CPU_INDEX, Facts, choose, pinned_version

# One try of 5 seconds: a machine that cannot reach PyTorch's index should fail quickly.
IMPATIENT = ("--timeout", "5", "--retries", "0")


def gather() -> Facts:
    """Facts about this machine, found without importing torch and without a network."""
    return Facts(
        pinned=pinned_version(ROOT / "pyproject.toml") if IN_CHECKOUT else "",
        system=platform.system(),
        machine=platform.machine(),
        installed=torch_version(),
        outside=torch_is_outside(),
        habana=version_of("habana-torch-plugin"),
        gaudi=shutil.which("hl-smi") is not None or Path("/sys/module/habanalabs").exists(),
        nvidia=nvidia_answers(),
    )


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_version() -> str | None:
    """The version of the torch that an import would find; "unknown" for a build without metadata."""
    return version_of("torch") or ("unknown" if torch_folder() else None)


def torch_folder() -> Path | None:
    """Folder of the torch that an import would find."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


def torch_is_outside() -> bool:
    """Whether that torch is outside this environment: in system site packages, PYTHONPATH or a user's folder."""
    folder = torch_folder()
    return folder is not None and Path(sys.prefix) not in folder.parents


def nvidia_answers() -> bool:
    """Whether an NVIDIA driver is installed; on some systems `nvidia-smi` is the only sign of it."""
    tool = shutil.which("nvidia-smi")
    return Path("/proc/driver/nvidia/version").exists() or (tool is not None and _succeeds([tool, "-L"], 10))


def pip_command(command: str = "setup-torch") -> list[str]:
    """A pip of this environment: its own, else a fresh one, else one from outside. `command` is who asks."""
    own = [sys.executable, "-m", "pip"]
    if importlib.util.find_spec("pip") or _succeeds([sys.executable, "-m", "ensurepip"], 120):
        return own
    outer = shutil.which("pip3") or shutil.which("pip")
    if outer is None:
        raise SystemExit(
            f"{command}: there is no pip: install python3-pip, then run `{run_line(command)}` again"
        )
    return [outer, "--python", sys.executable]


def _succeeds(command: list[str], timeout: float) -> bool:
    """Whether a command succeeds within `timeout` seconds; its output is dropped."""
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_cpu_source(pip: list[str], pinned: str) -> Literal["configured", "pytorch", None]:
    """The index that has the CPU build: pip's configured one first, then PyTorch's."""
    if f"{pinned}+cpu" in _offered(pip):
        return "configured"
    if f"{pinned}+cpu" in _offered(pip, "--extra-index-url", CPU_INDEX, *IMPATIENT):
        return "pytorch"
    return None


def _offered(pip: list[str], *options: str) -> list[str]:
    """The versions of torch that pip could install here; nothing is downloaded."""
    answer = subprocess.run([*pip, "index", "versions", "torch", *options], capture_output=True, text=True)
    line = re.search(r"^Available versions: (.*)$", answer.stdout, re.MULTILINE)
    return line[1].split(", ") if line else []


def install() -> int:
    """Install torch, print which build and why, and return the exit code."""
    facts = gather()
    decision = choose(facts)
    if decision.action != "install":
        print(f"setup-torch: {decision.why}")
        return 0 if decision.action == "keep" else 1
    pip = pip_command()
    if facts.wants_cpu_build:
        decision = choose(replace(facts, cpu_source=find_cpu_source(pip, facts.pinned)))
    print(f"setup-torch: installing {decision.requirement[0]}, {decision.why}", flush=True)
    if subprocess.run([*pip, "install", *decision.requirement]).returncode != 0:
        fix = "with a network, or with an index that has it in pip's configuration, run `pdm run setup-torch` again"
        print(f"setup-torch: not installed, pip says why above: {fix}", file=sys.stderr)
        return 1
    importlib.invalidate_caches()
    print(f"setup-torch: torch {torch_version()} is installed")
    return 0
