"""How this machine gets a backend that is missing, or why it cannot."""

import platform

from ...torch_build import INTEL_MAC, is_intel_mac

MLX_GLIBC = (2, 35)  # of its wheels for Linux, manylinux_2_35
# PDM takes --without as "all groups but these", and fails on a group that is not in the lock file, as Ray is not.
INSTALL_WITHOUT_MLX = "pdm install --without mlx,ray"


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
        return "run `pdm run setup-torch`"
    if has_mlx_wheels():
        return "run `pdm install`"
    if platform.system() == "Linux":
        return f"MLX needs glibc 2.35: use `{INSTALL_WITHOUT_MLX}`, and `pdm run course port torch`"
    return "MLX has no build for this system: `pdm run course port torch` chooses the other port"
