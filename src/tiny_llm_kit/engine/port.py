"""One port of one solution: whether it is installed, its code, found by name, and conversion of arrays.

The kit never imports a solution: `resolve("tiny_llm_ref", "mlx")`. A `Port` is the object `b` of the
day tests and of the screens.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ..repo import BACKENDS, SOURCES, read_source
from ..solution_types import Array, ServingPackage
from .backend import Backend
from .backends.blas import preload
from .backends.installation import has_mlx_wheels, install_line
from .learner_errors import place_of, short_path

if TYPE_CHECKING:  # NumPy costs a tenth of a second, and `--help` needs none of it
    import numpy as np

    from .model_runner import ModelRunner
    from .packed_runner import PackedRunner

BACKEND = "TINY_LLM_BACKEND"
SOLUTIONS = {"tiny_llm": "tiny_llm", "ref": "tiny_llm_ref", "tiny_llm_ref": "tiny_llm_ref"}


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
    """The port used by default: mlx on a Mac; elsewhere torch if it is installed, else mlx, if it has wheels."""
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


def resolve(solution: str, backend: str) -> ModuleType:
    """The package of one port of one solution, for example `tiny_llm_ref.mlx_backend`."""
    require_backend(backend)
    if backend == "mlx":
        preload()  # before the solution imports mlx: after that it is too late
    return _checked(f"{SOLUTIONS[solution]}.{backend}_backend")


def resolve_serving(solution: str) -> ServingPackage:
    """The package of a solution's policy, `<solution>.serving`, which imports no array library."""
    return cast(ServingPackage, _checked(f"{SOLUTIONS[solution]}.serving"))


def _checked(name: str) -> ModuleType:
    """Import `name`, and end the command if it is not from this repository: tests must run the edited code."""
    solution, _, package = name.partition(".")
    if solution == "tiny_llm":
        _check_packages("native", "serving", package)
    module = _imported(name)
    expected = SOURCES.joinpath(*name.split("."), "__init__.py")
    if module.__file__ is None or Path(module.__file__).resolve() != expected:
        raise SystemExit(
            f"{name} was imported from {module.__file__} and not from {expected.parent}: "
            "another copy is installed in this environment; run `pdm install` again"
        )
    return module


def _check_packages(*packages: str) -> None:
    """End the command if a learner's package has lost its `__init__.py`.

    Python would import it as an empty package.
    """
    for package in packages:
        file = SOURCES / "tiny_llm" / package / "__init__.py"
        if not file.exists():
            raise SystemExit(f"{short_path(str(file))}: missing; `pdm run course sync` writes it again")


def _imported(name: str) -> ModuleType:
    """Import `name`; an error in a learner's file ends the command, one in the reference is raised."""
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:  # a learner's sys.exit(0) would pass for a success
        if name.split(".")[0] != "tiny_llm":
            raise
        for path in sorted((SOURCES / "tiny_llm").rglob("*.py")):
            read_source(path)  # names the file whose bytes Python cannot read
        file, line = place_of(error)
        raise SystemExit(
            f"{file}, line {line}: {type(error).__name__}: {getattr(error, 'msg', error)}. Mend it, or put the day "
            "back with `pdm run course reset --week W --day D --whole-files`, which keeps a copy"
        ) from None


class Port:
    """The public names of a solution on one backend, and a few methods that convert arrays.

    `b.softmax`, `b.RoPE`, … are the solution's; what is defined here belongs to the kit.

    Args:
        solution: "tiny_llm" (the learner's) or "tiny_llm_ref".
        backend: "mlx" or "torch".
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto", "float32", "bfloat16" or "float16": the type of the port's weights.
    """

    def __init__(self, solution: str, backend: str, device: str = "auto", dtype: str = "auto"):
        # The solution first: on a Gaudi its hpu.py must set the environment before torch is imported.
        self.solution = resolve(solution, backend)
        self.backend_module = cast(Backend, import_module(f"tiny_llm_kit.engine.backends.backend_{backend}"))
        self.name = backend
        self.device = self.backend_module.pick_device(device)
        self.float_dtype = self.backend_module.default_dtype(self.device) if dtype == "auto" else dtype
        # With "auto", a faster product may round what a model has stored; an explicit float32 may not.
        self.is_exact = dtype == "float32" and self.device == "cpu"

    def __getattr__(self, name: str) -> Any:
        if name == "solution":  # not yet set: __init__ failed
            raise AttributeError(name)
        try:
            return getattr(self.solution, name)
        except AttributeError:
            raise AttributeError(f"{self.solution.__name__} has no public name {name!r}") from None

    def __repr__(self) -> str:
        return f"Port({self.solution.__name__}, {self.device})"

    @property
    def serving(self) -> ServingPackage:
        """The policy of the same solution."""
        return resolve_serving(self.solution.__name__.partition(".")[0])

    def array(self, values: np.ndarray | Sequence, dtype: str | None = None) -> Array:
        """A NumPy array or a list as this backend's array on this port's device."""
        return self.backend_module.to_array(values, dtype, self.device)

    def numpy(self, array: Array) -> np.ndarray:
        return self.backend_module.to_numpy(array)

    def dtype(self, name: str) -> Any:
        """The backend's own object for "float32", "bfloat16" or "float16"."""
        return self.backend_module.DTYPES[name]

    def peak_bytes(self, run: Callable[[], Array]) -> int:
        """Peak bytes of memory that `run()` holds, with its result and without its inputs."""
        return self.backend_module.peak_bytes(run, self.device)

    def runner(self, model: Any, **options: Any) -> ModelRunner:
        """See `runners.model_runner`."""
        from .runners import model_runner

        return model_runner(self.solution, self.backend_module, self.device, model, **options)

    def packed_runner(
        self, model: Any, num_blocks: int, block_size: int = 128, **options: Any
    ) -> PackedRunner:
        """See `runners.packed_runner`."""
        from .runners import packed_runner

        where = self.solution, self.backend_module, self.device
        return packed_runner(*where, self.serving, model, num_blocks, block_size, **options)

    def seed(self, number: int) -> None:
        self.backend_module.seed(number)
