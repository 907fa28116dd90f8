"""Which torch a machine should have. Decides from facts; looks at nothing itself and changes nothing.

torch is not in the lock file: its build depends on the machine, and a vendor's must never be replaced.
`course/doctor/setup_torch.py` gathers the facts and carries the decision out; `doctor` prints its lines.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .repo import IN_CHECKOUT

# PyTorch's own index of CPU builds, for a Linux machine without a GPU whose pip finds no such build.
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_HERE = "pdm install" if IN_CHECKOUT else ".venv/bin/pip install tiny-llm"
GAUDI_FIX = (
    "make the environment again so that it sees the container's packages: "
    f"`python3 -m venv --clear --system-site-packages .venv && {INSTALL_HERE}`"
)
INTEL_MAC = "Intel Macs are not supported: neither MLX nor a current PyTorch has a build for them"


@dataclass(frozen=True)
class Facts:
    """The facts that `choose` decides from.

    Attributes:
        pinned: the version in pyproject.toml, [tool.tiny_llm].
        system: Linux, Darwin or Windows, as `platform.system()` says it.
        machine: as `platform.machine()` says it.
        installed: the version of the torch that an import would find; "unknown" where it has no metadata.
        outside: whether that torch is outside this environment.
        habana: the version of habana-torch-plugin.
        gaudi: whether Intel's driver or tool is on this machine.
        nvidia: whether an NVIDIA driver answers.
        cpu_source: where the pinned version's CPU build is: at pip's configured index, or at PyTorch's.
    """

    pinned: str
    system: str = "Linux"
    machine: str = "x86_64"
    installed: str | None = None
    outside: bool = False
    habana: str | None = None
    gaudi: bool = False
    nvidia: bool = False
    cpu_source: Literal["configured", "pytorch", None] = None

    @property
    def wants_cpu_build(self) -> bool:
        """Whether this machine wants the CPU build; elsewhere the index's default build is right."""
        return self.system == "Linux" and not self.nvidia

    @property
    def is_vendors(self) -> bool:
        """Whether the installed torch belongs to Intel's Gaudi software; its own fork's versions end in +git…"""
        return self.installed is not None and (self.habana is not None or "+git" in self.installed)


@dataclass(frozen=True)
class Decision:
    """What to do, why (for the learner), and the requirement that pip installs."""

    action: Literal["keep", "install", "refuse"]
    why: str
    requirement: tuple[str, ...] = ()


def choose(facts: Facts) -> Decision:
    """Decide what to do about torch."""
    reason_to_keep = _reason_to_keep(facts)
    if reason_to_keep:
        return Decision("keep", f"torch {facts.installed} {reason_to_keep}")
    reason_to_refuse = _reason_to_refuse(facts)
    if reason_to_refuse:
        return Decision("refuse", reason_to_refuse)
    return _install(facts)


def _reason_to_keep(facts: Facts) -> str | None:
    """Why the installed torch stays, None if it does not.

    A vendor's torch stays, one that belongs to the machine, one built by hand, and the pinned one.
    """
    if facts.installed is None:
        return None
    if facts.is_vendors:
        return "is the vendor's build for Gaudi: it is never touched"
    if facts.outside:
        return "belongs to the machine and not to this environment: it is left alone"
    if facts.installed == "unknown":
        return "was not installed by pip: it is left alone"
    return "is installed: nothing to do" if facts.installed.partition("+")[0] == facts.pinned else None


def _reason_to_refuse(facts: Facts) -> str | None:
    """Why no torch from an index is installed here: the build would be wrong, or does not exist."""
    if facts.habana:
        return "habana-torch-plugin is here without its torch: install the torch of the same Gaudi release"
    if facts.gaudi:
        return f"this machine has a Gaudi, but its torch is not visible from here: {GAUDI_FIX}"
    return f"{INTEL_MAC}; use a Linux machine" if is_intel_mac(facts.system, facts.machine) else None


def _install(facts: Facts) -> Decision:
    """The build to install on a machine where the pinned torch is missing."""
    plain, cpu = f"torch=={facts.pinned}", f"torch=={facts.pinned}+cpu"
    if not facts.wants_cpu_build:
        why = "this machine has an NVIDIA GPU" if facts.nvidia else f"it is the one for {facts.system}"
        return Decision("install", f"the index's default build: {why}", (plain,))
    if facts.cpu_source == "configured":
        return Decision("install", "the CPU build that pip is configured with: no GPU here", (cpu,))
    if facts.cpu_source == "pytorch":
        why = f"the CPU build of PyTorch's own index, {CPU_INDEX}: no GPU here"
        return Decision("install", why, (cpu, "--extra-index-url", CPU_INDEX))
    why = "the index's default build: no GPU here, but no index with the (smaller) CPU build answered"
    return Decision("install", why, (plain,))


def is_intel_mac(system: str, machine: str) -> bool:
    return system == "Darwin" and machine == "x86_64"


def pinned_version(pyproject: Path) -> str:
    """The torch that the course is tested with. Python 3.10 has no TOML reader, and this is one line.

    Raises:
        SystemExit: pyproject.toml does not name it.
    """
    section = pyproject.read_text(encoding="utf-8").partition("[tool.tiny_llm]")[2].partition("\n[")[0]
    found = re.search(r'^torch\s*=\s*"([^"]+)"', section, re.MULTILINE)
    if found is None:
        raise SystemExit(f'{pyproject}: [tool.tiny_llm] needs a line `torch = "<version>"`')
    return found[1]
