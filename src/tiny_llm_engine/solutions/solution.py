"""A solution's packages, found by name: given code imports none. An error in a learner's file names its line."""

import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from ..machine.blas import preload
from ..machine.installation import require_backend
from ..machine.repo import IN_CHECKOUT, SOURCES, read_source
from .solution_types import ServingPackage

# Whose code measures where any will do: a copy that a teacher hands out may be without the reference.
ANY = "tiny_llm_ref" if (SOURCES / "tiny_llm_ref").is_dir() else "tiny_llm"
SOLUTIONS = {"tiny_llm": "tiny_llm", "ref": "tiny_llm_ref", "tiny_llm_ref": "tiny_llm_ref"}


def resolve(solution: str, backend: str) -> ModuleType:
    """The package of one port of one solution, for example `tiny_llm_ref.mlx_backend`."""
    require_backend(backend)
    if backend == "mlx":
        preload()  # before the solution imports mlx: after that it is too late
    return _checked(f"{SOLUTIONS[solution]}.{backend}_backend")


def resolve_serving(solution: str) -> ServingPackage:
    """The package of a solution's policy, `<solution>.serving`, which imports no array library."""
    return cast(ServingPackage, _checked(f"{SOLUTIONS[solution]}.serving"))


# What stands above the engine and knows all that extends it, by name: the engine runs without.
LLMS = {"tiny_llm": ("tiny_llm_course.learner_llm", "LearnerLLM")}
LLM = ("tiny_llm_extensions.llm", "LLM")
# What to do about a solution that is not the one beside the engine.
ANOTHER = (
    "another copy is installed in this environment; run `pdm install` again"
    if IN_CHECKOUT
    else "two copies of tiny-llm are on Python's path; leave one of them"
)


def llm_class(solution: str) -> Any:
    """`LLM` of a solution. A learner's knows what is still blank."""
    _refuse_a_learners_outside_a_checkout(solution)
    module, name = LLMS.get(solution, LLM)
    return getattr(import_module(module), name)


def _refuse_a_learners_outside_a_checkout(solution: str) -> None:
    if solution == "tiny_llm" and not IN_CHECKOUT:
        raise SystemExit(
            "tiny_llm is the package of a learner's own code, which only a checkout of the repository has: "
            "import tiny_llm_ref instead"
        )


def _checked(name: str) -> ModuleType:
    """Import `name`, and end the command if it does not lie beside the engine.

    In a checkout tests must run the edited code; elsewhere two versions must not be mixed.
    """
    solution, _, package = name.partition(".")
    _refuse_a_learners_outside_a_checkout(solution)
    if not (SOURCES / solution).is_dir():
        raise SystemExit(
            f"this copy has no {solution}: it was handed out without; --solution tiny_llm runs your own code"
        )
    if solution == "tiny_llm":
        _check_packages("native", "serving", package)
    module = _imported(name)
    expected = SOURCES.joinpath(*name.split("."), "__init__.py")
    if module.__file__ is None or Path(module.__file__).resolve() != expected:
        raise SystemExit(
            f"{name} was imported from {module.__file__} and not from {expected.parent}: {ANOTHER}"
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


def place_of(error: BaseException) -> tuple[str, int]:
    """File and line of the last frame of an error that is in the repository's sources."""
    if isinstance(error, SyntaxError) and error.filename:
        return short_path(error.filename), error.lineno or 0
    frame = _frames(error, SOURCES)[-1]
    return short_path(frame.filename), frame.lineno or 0


def learners_line(error: BaseException) -> str | None:
    """The last line of a learner's file that an error went through, and the error; None without such a line."""
    frames = _frames(error, SOURCES / "tiny_llm")
    if not frames:
        return None
    message = str(error).partition("\n")[0]
    return f"{short_path(frames[-1].filename)}, line {frames[-1].lineno}: {type(error).__name__}: {message}"


def _frames(error: BaseException, folder: Path) -> list[traceback.FrameSummary]:
    """Where an error went through files of a folder."""
    return [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(folder)]


def short_path(file: str) -> str:
    """A file of the repository from its root, any other as it is."""
    path = Path(file)
    return str(path.relative_to(SOURCES.parent)) if path.is_relative_to(SOURCES) else file
