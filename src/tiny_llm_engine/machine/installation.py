"""Which backends this machine has, which to use, and how to install a missing one."""

import os
import platform
from importlib.util import find_spec

from .repo import BACKENDS, IN_CHECKOUT
from .torch_build import INTEL_MAC, is_intel_mac

BACKEND = "TINY_LLM_BACKEND"
MLX_GLIBC = (2, 35)  # of its wheels for Linux, manylinux_2_35
# The lines that install a port. Outside a checkout there is no PDM, and pip knows the ports as extras.
INSTALL_MLX = "pdm install" if IN_CHECKOUT else 'pip install "tiny-llm[mlx]"'
INSTALL_TORCH = "pdm run setup-torch" if IN_CHECKOUT else 'pip install "tiny-llm[torch]"'
# PDM takes --without as "all groups but these", and fails on one that is not locked, as three of these are not.
INSTALL_WITHOUT_MLX = "pdm install --without mlx,ray,authors,torch" if IN_CHECKOUT else INSTALL_TORCH


def installed_backends() -> list[str]:
    """The backends whose array library is installed; imports neither."""
    return [name for name in BACKENDS if find_spec(name) is not None]


def backend_of_environment(wanted: str = "auto") -> str:
    """The backend that is asked for; for "auto" the one that the environment names, if any.

    Raises:
        ValueError: there is no such backend.
    """
    chosen = (os.environ.get(BACKEND) or "auto") if wanted == "auto" else wanted
    if chosen not in ("auto", *BACKENDS):
        where = BACKEND if wanted == "auto" else "backend"
        raise ValueError(f"{where} is {chosen!r}: choose auto, {' or '.join(BACKENDS)}")
    return chosen


def default_port() -> str:
    """The port used by default: mlx on a Mac; elsewhere torch if it is installed, else mlx, if it has wheels.

    Outside a checkout, where a user chose one with its extra, the only one that is installed.
    """
    if not IN_CHECKOUT and len(installed := installed_backends()) == 1:
        return installed[0]
    if "mlx" not in installed_backends() and not has_mlx_wheels():
        return "torch"
    if platform.system() == "Darwin" or "torch" not in installed_backends():
        return "mlx"
    return "torch"


def require_backend(name: str) -> None:
    """End the command with one line if this port is not installed.

    Raises:
        SystemExit: it is not, with the line that installs it.
    """
    if name not in installed_backends():
        raise SystemExit(f"the {name} port is not installed on this machine: {install_line(name)}")


def has_mlx_wheels() -> bool:
    """Whether MLX has wheels for this system: Apple silicon, and Linux with glibc 2.35 or later."""
    if platform.system() == "Linux":
        return glibc() >= MLX_GLIBC
    return (platform.system(), platform.machine()) == ("Darwin", "arm64")


def glibc() -> tuple[int, ...]:
    """The version of this Linux's glibc, for example (2, 35); empty where the C library is another one."""
    name, version = platform.libc_ver()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()


def install_line(port: str) -> str:
    """The line that installs a missing port, or the reason why that is impossible."""
    if is_intel_mac(platform.system(), platform.machine()):
        return INTEL_MAC
    if port == "torch":
        return f"run `{INSTALL_TORCH}`"
    if has_mlx_wheels():
        return f"run `{INSTALL_MLX}`"
    if not IN_CHECKOUT:
        return f"MLX has no wheel for this system: `{INSTALL_TORCH}` installs the other port"
    if platform.system() == "Linux":
        return f"MLX needs glibc 2.35: use `{INSTALL_WITHOUT_MLX}`, and `pdm run course port torch`"
    return "MLX has no build for this system: `pdm run course port torch` chooses the other port"
