"""Where things are in the repository, and what this learner chose. Knows files, knows no arrays."""

import json
import platform
from importlib.util import find_spec
from pathlib import Path

from .torch_build import INTEL_MAC, is_intel_mac

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"
MODELS = ROOT / "models"
BOOK = ROOT / "book"
TESTS = ROOT / "tests"
# Git ignores this folder: the chosen port, results of the last test runs, backups of a learner's work.
PRIVATE = ROOT / ".tiny-llm"
SETTINGS = PRIVATE / "settings.json"

PORTS = ("mlx", "torch")


def installed_backends() -> list[str]:
    """The ports whose array library can be imported here; finding out imports neither."""
    return [name for name in PORTS if find_spec(name) is not None]


def has_mlx_wheels() -> bool:
    """MLX is built for Apple silicon and for Linux, not for Windows or Intel Macs."""
    return platform.system() == "Linux" or (platform.system(), platform.machine()) == ("Darwin", "arm64")


def install_line(port: str) -> str:
    """How a port that is missing gets here, or why it cannot."""
    if is_intel_mac(platform.system(), platform.machine()):
        return INTEL_MAC
    if port == "torch":
        return "run `pdm run setup-torch`"
    if has_mlx_wheels():
        return "run `pdm install`"
    return "MLX has no build for this system: `pdm run course port torch` chooses the other port"


def default_port() -> str:
    """mlx on a Mac, else torch where it is installed, else mlx; torch where MLX has no build."""
    if not has_mlx_wheels():
        return "torch"
    if platform.system() == "Darwin" or "torch" not in installed_backends():
        return "mlx"
    return "torch"


def learner_port() -> str:
    """The port this learner works on: `mlx`, `torch` or `both`."""
    if not SETTINGS.exists():
        return default_port()
    try:
        port = json.loads(SETTINGS.read_text(encoding="utf-8"))["port"]
        if port not in (*PORTS, "both"):
            raise ValueError(port)
    except (ValueError, KeyError, TypeError):
        raise SystemExit(f"{SETTINGS}: not a settings file; delete it to start with the defaults") from None
    return port


def set_learner_port(port: str) -> None:
    PRIVATE.mkdir(exist_ok=True)
    SETTINGS.write_text(json.dumps({"port": port}) + "\n", encoding="utf-8")


def ports_of(choice: str) -> list[str]:
    """`mlx`, `torch`, or both for `both`; `all` means every port installed here."""
    if choice == "all":
        return installed_backends()
    return list(PORTS) if choice == "both" else [choice]


def require_backend(name: str) -> None:
    """Ends the command with one line when a port is asked for that is not installed."""
    if name not in installed_backends():
        raise SystemExit(f"the {name} port is not installed on this machine: {install_line(name)}")
