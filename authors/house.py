"""`pdm run course house`: how large the house is, how much of it the learner writes, and what a day's file imports.

Code lines have no blank lines, comments and docstrings: documentation costs nothing here.
"""

import ast
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType

from rich.console import Console
from rich.table import Table

from tiny_llm_course.address import Day
from tiny_llm_course.exercises import Exercise
from tiny_llm_course.tree import LEARNER, REFERENCE, exercises_of, source_files
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BACKENDS, ROOT, SOURCES
from tiny_llm_extensions.llm import LLM

from .overlay import statements

QUOTES = re.compile("\"{3}|'{3}")
GIVEN = "tiny_llm_engine", "tiny_llm_extensions", "tiny_llm_server", "tiny_llm_course"
BELOW = GIVEN[:2]  # what a solution imports by its whole name
Import = tuple[Path, frozenset[str]]  # a file, and the names that an import binds


@cache
def ceilings() -> dict[str, int]:
    """How many lines of code there may be, by what they are, from pyproject.toml; see `files_below`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table = text.partition("[tool.tiny_llm.ceilings]")[2].partition("\n[")[0]
    return {name: int(lines) for name, lines in re.findall(r'^"(.+)" = (\d+)$', table, re.MULTILINE)}


def files_below(name: str) -> list[Path]:
    """The source files of a ceiling.

    Args:
        name: a folder, with all that is below it; "tests" is all tests, and "js and css" what browsers read.
    """
    if name == "js and css":
        folders = [ROOT / folder for folder in ("src", "book/src", "book/theme", "book/tools")]
        return [file for folder in folders for file in folder.rglob("*.*") if file.suffix in (".js", ".css")]
    folders = ("tests", "tests_refsol") if name == "tests" else (name,)
    files = [file for folder in folders for file in source_files(ROOT / folder)]
    return [file for file in files if LEARNER not in file.parents]  # stubs are made from the reference


def rooms() -> list[str]:
    """The folders with sources: the packages of `src`, the folders in them, and what stands beside `src`."""
    packages = [folder for folder in sorted(SOURCES.iterdir()) if folder.is_dir() and folder != LEARNER]
    inner = [folder for package in packages for folder in (package, *sorted(package.iterdir()))]
    others = [
        ROOT / name
        for name in ("authors", "benchmarks", "book", "book/tools", "models", "tests", "tests_refsol")
    ]
    found = [folder for folder in (*inner, *others) if folder.is_dir() and source_files(folder)]
    return [folder.relative_to(ROOT).as_posix() for folder in found]


@cache
def code_lines(file: Path) -> frozenset[int]:
    """The numbers of the lines of code of a file: in C++ those that are not blank and no comment."""
    source = file.read_text(encoding="utf-8")
    lines = dict(enumerate(source.split("\n"), 1))
    code = re.compile(r"\s*(?!#)\S" if file.suffix == ".py" else r"\s*(?!//)\S")
    found = {number for number, line in lines.items() if code.match(line)}
    if file.suffix != ".py":
        return frozenset(found)
    docstrings = docstring_lines(source)
    if any(QUOTES.search(line) for number, line in lines.items() if number not in docstrings):
        found |= text_lines(source)
    return frozenset(found - docstrings)


def text_lines(source: str) -> set[int]:
    """The numbers of the lines of all texts of several lines, some of which may be blank or begin with #."""
    texts = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant | ast.JoinedStr))
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def docstring_lines(source: str) -> set[int]:
    """The numbers of the lines of all docstrings."""
    tree, owners = ast.parse(source), (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = (
        node.body[0]
        for node in [tree, *statements(tree)]
        if isinstance(node, owners) and ast.get_docstring(node, clean=False) is not None
    )
    return {line for text in texts for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}


def files_of(room: str) -> list[Path]:
    """The source files of a room, without those of the rooms below it."""
    below = [ROOT / other for other in rooms() if other.startswith(f"{room}/")]
    folder = ROOT / room
    return [file for file in source_files(folder) if not any(other in file.parents for other in below)]


def sizes(files: Iterable[Path]) -> tuple[int, int, int]:
    """Number of files, their code lines and all of their lines."""
    files = list(files)
    raw = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return len(files), sum(len(code_lines(file)) for file in files), raw


def without_a_task() -> list[Path]:
    """The learner's files that have none, but for those that only make a folder a package."""
    learners = [file for file in source_files(LEARNER) if file.name != "__init__.py"]
    return [file for file in learners if not exercises_of(REFERENCE / file.relative_to(LEARNER))]


def learners_share(port: str) -> float:
    """Code lines of the blanks, of those of a solution on one port and of the engine that it runs in."""
    parts = "serving", "native", f"{port}_backend"
    files = [file for part in parts for file in source_files(REFERENCE / part)]
    blanks = sum(len(code_lines(file) & lines_of(exercises_of(file))) for file in files)
    others = {name for other in BACKENDS if other != port for name in (other, f"backend_{other}")}
    engine = [
        file for file in source_files(SOURCES / "tiny_llm_engine") if not others & {*file.parts, file.stem}
    ]
    return blanks / sum(len(code_lines(file)) for file in files + engine)


def lines_of(exercises: Iterable[Exercise]) -> set[int]:
    """The numbers of the lines of some blanks."""
    return {line for each in exercises for line in range(each.start, each.end + 1)}


def first_day(file: Path) -> Day | None:
    """The first day that has a task in a file; None of a file without tasks."""
    return min((each.task.of_day for each in exercises_of(file)), default=None)


@cache
def imports_of(file: Path, day: Day | None) -> frozenset[Path]:
    """The files of the reference that a file imports, at any place but under TYPE_CHECKING.

    Args:
        day: leaves out what only blanks of later days use; None leaves out nothing.
    """
    if file.suffix != ".py" or file.name == "__init__.py":
        return frozenset()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    later = lines_of(each for each in exercises_of(file) if day is not None and each.task.of_day > day)
    imports = imports_in(tree, file)
    return frozenset(target for target, names in imports if not is_only_for(later, names, tree))


def imports_in(tree: ast.AST, file: Path) -> Iterator[Import]:
    """The files that a text of the reference imports when it runs, and the names that each import binds."""
    for node in _run(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith(BELOW)):
            start = file.parents[node.level - 1] if node.level else SOURCES
            folder = start.joinpath(*(node.module or "").split("."))
            for alias in node.names:
                targets = folder / f"{alias.name}.py", folder.with_suffix(".py"), folder / "__init__.py"
                if target := next(filter(Path.exists, targets), None):
                    yield target, frozenset([alias.asname or alias.name])


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from _run(node)


def is_only_for(lines: set[int], names: frozenset[str], tree: ast.AST) -> bool:
    """Whether names are used, and only in these lines."""
    if not lines:
        return False
    used = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in names]
    return bool(used) and lines.issuperset(used)


def closure(file: Path, day: Day | None = None) -> set[Path]:
    """All files of the reference that a file imports, directly or through others, itself included."""
    reached, left = {file}, [file]
    while left:
        new = imports_of(left.pop(), day) - reached
        reached |= new
        left += new
    return {target for target in reached if target.name != "__init__.py"}


def later_days() -> dict[Path, list[Path]]:
    """The files with tasks that reach a task of a later day, and which files of these days they reach."""
    late = {}
    for file in source_files(REFERENCE):
        if day := first_day(file):
            reached = sorted(target for target in closure(file, day) if (first_day(target) or day) > day)
            late |= {file: reached} if reached else {}
    return late


def count_names(files: Iterable[Path], name: str) -> int:
    """How often a name is used in Python files."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".py")
    return sum(isinstance(node, ast.Name) and node.id == name for tree in trees for node in ast.walk(tree))


def files_entered(call: Callable[[], object]) -> set[str]:
    """The files of the course in which a call runs a function, on this thread."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    # The bodies of modules and classes are run by imports.
    functions = (code for code in codes if code.co_flags & CO_OPTIMIZED)
    return {code.co_filename for code in functions if str(SOURCES) in code.co_filename}


def files_of_an_answer(port: str) -> tuple[int, int]:
    """In how many files one decode step of one request runs, and `LLM.generate`."""
    with LLM("tiny-qwen3", backend=port, device="cpu", num_blocks=4) as llm:
        sampling = llm.engine.names.SamplingParams(max_tokens=8, ignore_eos=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # this is a chat model, and the text is no conversation
            whole = files_entered(lambda: llm.generate("What is a KV cache?", sampling, use_tqdm=False))
        llm.engine.add(llm.engine.request(None, [1, 2, 3], sampling))
        llm.engine.step()  # the prompt
        return len(files_entered(llm.engine.step)), len(whole)


def report_house(console: Console) -> int:
    """Print the sizes of all rooms, and the figures of the learner's package."""
    table = Table("room", "files", "code lines", "ceiling", "lines", box=None, pad_edge=False)
    for room in rooms():
        files, code, raw = sizes(files_of(room))
        table.add_row(room, f"{files:,}", f"{code:,}", "", f"{raw:,}")
    table.add_section()
    for name, ceiling in ceilings().items():
        files, code, raw = sizes(files_below(name))
        table.add_row(f"all of {name}", *(f"{number:,}" for number in (files, code, ceiling, raw)))
    console.print(table)
    number, code, raw = sizes(source_files(LEARNER))
    console.print(f"\nsrc/tiny_llm: {raw:,} lines, {code:,} of code, in {number} files")
    console.print(f"{len(without_a_task())} of them without a task, those called __init__.py left out")
    for port in BACKENDS:
        model, scheduler = f"{port}_backend/qwen3_week2.py", "serving/batching/hybrid_scheduler.py"
        parts = (f"{name}: {_in_words(closure(REFERENCE / name))}" for name in (model, scheduler))
        console.print(f"{port}: the learner writes {learners_share(port):.1%}; {'; '.join(parts)}")
    for port in installed_backends():
        step, whole = files_of_an_answer(port)
        console.print(f"{port}: a decode step runs through {step} files, LLM.generate through {whole}")
    late = later_days()
    console.print(f"files with tasks that reach a later day: {len(late)}")
    for file, reached in late.items():
        console.print(f"  {file.relative_to(REFERENCE)} → {', '.join(each.stem for each in reached)}")
    given = [file for name in GIVEN for file in source_files(SOURCES / name)]
    for name, files in (("the reference", source_files(REFERENCE)), ("what is given", given)):
        console.print(f"isinstance in {name}: {count_names(files, 'isinstance')}")
    console.print(f"Any in what is given: {count_names(given, 'Any')}")
    return 0


def _in_words(files: set[Path]) -> str:
    number, code, raw = sizes(files)
    return f"imports {number} files, {raw:,} lines, {code:,} of code"
