"""Lends MLX a fast BLAS on Linux. Knows the loader's rules, knows no arrays.

MLX's Linux wheel carries the reference BLAS, which was written to be read and not to be fast. The loader takes
the first definition of a symbol that it finds, and looks into the process's global scope before the wheel's own
libraries: an OpenBLAS that was loaded globally before `import mlx` is what MLX then calls.

A torch that the same process imports later takes its matrix product from there too, at the speed and with the
accuracy of its own; a torch imported earlier keeps its own. Only tests have both.
"""

import ctypes
import os
import sys
from typing import Literal

SWITCH = "TINY_LLM_OPENBLAS"
# Debian and its kin; Fedora and its kin name the build with threads differently.
LIBRARIES = ("libopenblas.so.0", "libopenblasp.so.0")
INSTALL_LINES = {
    "apt-get": "apt-get install libopenblas0-pthread",
    "dnf": "dnf install openblas-threads",
}

Outcome = Literal["loaded", "absent", "off", "too late", "not needed"]


def preload() -> Outcome:
    """Loads the distribution's OpenBLAS for an `import mlx` that follows, and says what it did.

    Returns:
        "loaded"; "absent": no such library here, nothing changed; "off": the environment variable
        TINY_LLM_OPENBLAS is 0; "too late": mlx was imported before; "not needed": not Linux.
    """
    if not sys.platform.startswith("linux"):
        return "not needed"
    if os.environ.get(SWITCH) == "0":
        return "off"
    if "mlx.core" in sys.modules:
        return "too late"
    return "loaded" if any(_load_globally(library) for library in LIBRARIES) else "absent"


def _load_globally(library: str) -> bool:
    """Whether the loader found `library`, by its plain name, where the distribution keeps it."""
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def set_threads(count: int) -> None:
    """How many threads the BLAS that was preloaded uses; without one there is nothing to set."""
    setter = getattr(ctypes.CDLL(None), "openblas_set_num_threads", None) if os.name == "posix" else None
    if setter is not None:
        setter(count)
