"""Who may import whom (design: the solution never imports kit's commands, kit never a solution, and so on)."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from authors.overlay import statements
from tiny_llm_kit.commands import main as command
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.repo import BACKENDS, ROOT, SOURCES

ARRAYS = {"mlx", "torch"}
# The only kit files that may import an array library.
WITH_ARRAYS = {
    "backend_mlx.py": {"mlx"},
    "backend_torch.py": {"torch"},
    # Baselines of the benchmarks, imported when they are asked for.
    "transformers_baseline.py": {"torch"},
    # What a GPU does with captured steps, imported by tests and screens of Day 3.4.
    "replay_emulator.py": {"torch"},
    # What a compiler would see of a run of torch, imported in the same way.
    "recorded_operations.py": {"torch"},
    "mlx_lm_baseline.py": {"mlx"},
}
COMMON = "tiny_llm_common"  # records and protocols that solutions and kit share
GIVEN = "tiny_llm_given"  # what both solutions use and nobody fills in
SOLUTION_TYPES = SOURCES / "tiny_llm_kit" / "solution_types.py"


@cache
def imports(path) -> set[str]:
    """The top-level packages that a file imports, also inside its functions; relative imports are left out."""
    return imports_of(path.read_text(encoding="utf-8"))


def imports_of(source: str) -> set[str]:
    found = set()
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def without_type_checking(source: str) -> str:
    """A file's source without the bodies of `if TYPE_CHECKING:`, which no Python runs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    return ast.unparse(tree)


def python_files(package: str):
    return sorted((SOURCES / package).rglob("*.py"))


def name(path) -> str:
    return str(path.relative_to(SOURCES))


def test_kit_imports_no_solution_and_arrays_only_in_its_backends():
    """One file names the reference, for the type checker: a learner's package is known by the same types."""
    for path in python_files("tiny_llm_kit"):
        source = path.read_text(encoding="utf-8")
        found = imports_of(without_type_checking(source) if path == SOLUTION_TYPES else source)
        assert not found & {"tiny_llm", "tiny_llm_ref"}, name(path)
        assert found & ARRAYS <= WITH_ARRAYS.get(path.name, set()), name(path)


OF_PART = {"mlx_backend": {"mlx"}, "torch_backend": {"torch"}}


def test_a_solution_imports_its_own_array_library_alone():
    for path in [*python_files("tiny_llm"), *python_files("tiny_llm_ref")]:
        found = imports(path)
        outside = (
            found - set(sys.stdlib_module_names) - OF_PART.get(path.parent.name, set()) - {COMMON, GIVEN}
        )
        if path.parent.parent == SOURCES and path.name == "__init__.py":
            outside -= {"tiny_llm_kit"}  # see the next test
        assert not outside, f"{name(path)} imports {outside}"


def test_what_all_share_imports_the_standard_library_alone():
    for path in python_files(COMMON):
        assert imports(path) <= set(sys.stdlib_module_names), name(path)


OF_GIVEN = {
    "mlx": {"mlx"},
    "torch": {"torch", "habana_frameworks"},
    "native": {"numpy"},
    "user_cache.py": {"platformdirs"},
}


def test_what_is_given_imports_no_solution_and_the_array_library_of_its_folder_alone():
    """It stands below the solutions, and gets their parts as arguments."""
    for path in python_files(GIVEN):
        room = path.relative_to(SOURCES / GIVEN).parts[0]
        allowed = {COMMON, GIVEN, *OF_GIVEN.get(room, set())}
        found = imports(path)
        assert found - set(sys.stdlib_module_names) <= allowed, name(path)
        assert "habana_frameworks" not in found or path.name == "hpu.py"


@pytest.mark.parametrize("package", ["tiny_llm", "tiny_llm_ref"])
def test_a_package_imports_the_kit_only_for_the_engine_that_is_asked_for(package):
    """Inside `__getattr__`, and nothing of kit is loaded with a port or with the policy."""
    tree = ast.parse((SOURCES / package / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    program = (
        f"import sys, {package}.serving; print([m for m in sys.modules if m.startswith('tiny_llm_kit')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("port", installed_backends())
def test_each_port_works_with_the_other_library_blocked(port):
    """The import system refuses the other array library, and the whole port still loads."""
    other = "torch" if port == "mlx" else "mlx"
    program = f"""import sys
sys.modules[{other!r}] = None
from tiny_llm_kit.engine.port import Port
b = Port("tiny_llm_ref", {port!r}, "cpu")
print(b.numpy(b.softmax(b.array([[0.0, 0.0]]), -1)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[[0.5 0.5]]", done.stderr


def test_no_file_outside_kit_asks_which_backend_it_is():
    for path in [*python_files("tiny_llm_ref"), *SOURCES.parent.joinpath("tests").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(part, ast.Constant) and part.value in BACKENDS for part in ast.walk(node)
                ), f"{path.name}:{node.lineno} compares with a port's name"


def test_text_files_are_read_and_written_in_utf_8():
    """Windows reads files in its own encoding unless told otherwise, and our texts have letters beyond ASCII."""
    for path in python_files("tiny_llm_kit"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in ("read_text", "write_text"):
                assert "encoding" in {k.arg for k in node.keywords}, f"{name(path)}:{node.lineno}"


def test_a_name_of_a_class_means_one_thing_in_the_kit():
    """A name that two classes share makes the reader ask which one it is."""
    found: dict[str, list[str]] = {}
    for path in python_files("tiny_llm_kit"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name(path))
    assert len(found) > 80
    assert {key: files for key, files in found.items() if len(files) > 1} == {}


# ---- the rooms of kit

KIT = SOURCES / "tiny_llm_kit"
# Each imports only those before it.
ROOMS = ("model", "engine", "trace", "server", "course", "commands")
OUTSIDE = {"__init__", "repo", "solution_types", "terminal", "torch_build"}
# Each of these imports the kit and those before it; the kit imports none of them.
AFTER_KIT = {
    "tiny_llm_lab": SOURCES / "tiny_llm_lab",
    **{name: ROOT / name for name in ("benchmarks", "authors", "models")},
    "book": ROOT / "book" / "tools",
    "support": ROOT / "tests" / "support",
    "tests_refsol": ROOT / "tests_refsol" / "long",
}
OPTIMIZED = 1  # the flag of a function's code, which those of modules and classes lack
BY_NAME = {"import_module", "__import__", "find_spec"}


def kit_imports(
    source: str, place: tuple[str, ...], is_package: bool = False
) -> Iterator[tuple[tuple, ast.AST]]:
    """Every part of kit that a file imports, as names below `tiny_llm_kit`, and where it stands.

    Args:
        place: the file, as names below `tiny_llm_kit`.
    """
    here = place if is_package else place[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                module = ("tiny_llm_kit", *here[: len(here) - node.level + 1], *module)
            found = [(*module, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found = [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.Call) and _called(node) in BY_NAME and node.args:
            text = next((n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)), "")
            above = len(text) - len(text.lstrip("."))
            prefix = ("tiny_llm_kit", *here[: len(here) - above + 1]) if above else ()
            found = [(*prefix, *filter(None, text.split(".")))]
        else:
            continue
        yield from ((names[1:], node) for names in found if names[:1] == ("tiny_llm_kit",))


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def against_the_rooms(source: str, place: tuple[str, ...]) -> list[str]:
    """What a file imports and may not."""
    room, found = place[0], []
    for names, node in kit_imports(source, place):
        other = names[0] if names else ""
        if other not in ROOMS:
            continue
        if room not in ROOMS:
            # Its package alone reaches a room, when a name of it is asked for.
            allowed = place == ("__init__",) and node.col_offset > 0
        elif room == other == "commands":
            allowed = names[:2] == place[:2]
        else:
            allowed = ROOMS.index(other) <= ROOMS.index(room)
        if not allowed:
            found.append(f"{'/'.join(place)}.py, line {node.lineno}, imports {'.'.join(names)}")
    return found


def test_the_kit_does_without_what_is_made_of_it():
    for path in KIT.rglob("*.py"):
        assert not imports(path) & {*AFTER_KIT}, name(path)


@pytest.mark.parametrize("package", AFTER_KIT)
def test_what_is_made_of_the_kit_has_an_order(package):
    """The lab is for benchmarks, both are for the book; what tests share is for tests alone."""
    later = [*AFTER_KIT][[*AFTER_KIT].index(package) + 1 :]
    files = sorted(AFTER_KIT[package].rglob("*.py"))
    assert files
    for path in files:
        assert not imports(path) & {*later}, path.relative_to(ROOT)


def place_of(path: Path) -> tuple[str, ...]:
    return path.relative_to(KIT).with_suffix("").parts


def test_kit_stands_in_its_rooms():
    assert {place_of(path)[0] for path in KIT.rglob("*.py")} <= {*ROOMS, *OUTSIDE}
    texts = {path: path.read_text(encoding="utf-8") for path in KIT.rglob("*.py")}
    found = [line for path, text in texts.items() for line in against_the_rooms(text, place_of(path))]
    assert not found, "\n".join(found)


UP = [
    ("model/hub", "from ..engine.port import Port"),
    ("model/hub", "def f():\n    from ..course import tree"),
    ("engine/port", "from .. import trace"),
    ("engine/port", "import tiny_llm_kit.course.tree"),
    ("trace/serve", "from tiny_llm_kit.course.capabilities import load"),
    ("trace/demo/runs", "from ...commands import main"),
    ("trace/serve", "import importlib\nimportlib.import_module('tiny_llm_kit.course.tree')"),
    ("trace/serve", "__import__('tiny_llm_kit.commands.main')"),
    ("trace/demo/runs", "import_module('...course.tree', __package__)"),
    ("course/see", "find_spec(f'tiny_llm_kit.commands.{name}')"),
    ("commands/demo", "from .main import answer"),
    ("commands/demo", "from ..commands import main"),
    ("repo", "from .model import hub"),
    ("terminal", "def f():\n    from .engine.port import Port"),
    ("__init__", "from .course.capabilities import load"),
]


@pytest.mark.parametrize(("place", "source"), UP)
def test_an_import_up_or_across_is_found(place, source):
    assert against_the_rooms(source, tuple(place.split("/")))


DOWN = [
    ("commands/demo", "from ..trace.serve import serve\nfrom ..repo import ROOT"),
    ("trace/demo/runs", "from ...engine.port import Port\nfrom ..serve import serve\nimport json"),
    ("__init__", "def __getattr__(name):\n    from .course.capabilities import load"),
]


@pytest.mark.parametrize(("place", "source"), DOWN)
def test_an_import_down_is_none_of_them(place, source):
    assert not against_the_rooms(source, tuple(place.split("/")))


def test_only_what_no_python_runs_is_left_out():
    source = "if TYPE_CHECKING:\n    import tiny_llm_ref\nelse:\n    import tiny_llm\nimport torch"
    assert imports_of(without_type_checking(source)) == {"tiny_llm", "torch"}


# What these folders of `engine/` may import of it.
FLOORS = {
    "backends": {"backend", "backends", "samples"},
    "weights": {"backend", "backends", "machine", "weights"},
}


def test_the_engine_has_floors():
    """Array functions know no weights, and what reads weights knows no port."""
    for path in (KIT / "engine").rglob("*.py"):
        place = place_of(path)
        for names, _ in kit_imports(path.read_text(encoding="utf-8"), place):
            if names[0] == "engine" and len(names) > 1:
                assert names[1] in FLOORS.get(place[1], {names[1]}), f"{name(path)} imports {names[1]}"


# What every answer runs through, and what is put on it from outside.
SPINE = {
    "tiny_llm_given/serving": ("hooks", "admission", "step_loop"),
    "tiny_llm_kit/engine": ("llm_engine", "engine_request", "outputs", "packed_runner"),
}
EXTENSIONS = """
drafted drafting proposals speculation moves returns cold_store block_folder in_flight pipeline ahead
async_runner pipelined_runner prompt_rules padded_steps step_shapes parallel grammar profiling policies
backfill slack_plans graphs native hpu quantized_pages open_engine planning server commands course trace
"""


@pytest.mark.parametrize(
    "path", [KIT.parent / room / f"{file}.py" for room in SPINE for file in SPINE[room]], ids=name
)
def test_the_spine_imports_nothing_that_extends_it(path):
    source = without_type_checking(path.read_text(encoding="utf-8"))
    modules = re.findall(r"^\s*(?:from|import) ([\w.]+)", source, re.MULTILINE)
    extensions = set(EXTENSIONS.split()).intersection(
        part for module in modules for part in module.split(".")
    )
    assert not extensions, f"{name(path)} imports {extensions}"


@pytest.mark.parametrize("room", ["engine", "trace", "server", "course"])
def test_no_two_files_of_a_room_import_each_other(room):
    """Neither directly nor through others, in functions and for type hints neither."""
    left = {}
    for path in (KIT / room).rglob("*.py"):
        found = {names for names, _ in kit_imports(path.read_text(encoding="utf-8"), place_of(path))}
        left[place_of(path)] = found | {names[:-1] for names in found}
    while ready := [place for place, needs in left.items() if not needs & left.keys()]:
        for place in ready:
            del left[place]
    assert not left, f"they import each other: {sorted(left)}"


# ---- from a prompt to its first token


class UntilText:
    """Standard output that stops the profiler at the first piece of text.

    Args:
        stream: where the text goes.
    """

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if text:
            sys.setprofile(None)
        return self._stream.write(text)


@pytest.mark.parametrize("port", installed_backends())
def test_a_prompt_enters_few_files_and_is_encoded_once(port, monkeypatch, capsys):
    """Files of kit that are called between `main` of the README and its first token, but for reading the model."""
    called, encoded = set(), []

    def profile(frame, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)
            if frame.f_code.co_name == "encode" and str(KIT) in frame.f_code.co_filename:
                encoded.append(Path(frame.f_code.co_filename).stem)

    monkeypatch.setattr(sys, "stdout", UntilText(sys.stdout))
    sys.setprofile(profile)
    try:
        command.main(["--solution", "ref", "--backend", port, "--device", "cpu", "--max-tokens", "1"])
    finally:
        sys.setprofile(None)
    # The bodies of modules and classes are run by imports.
    paths = {Path(code.co_filename) for code in called if code.co_flags & OPTIMIZED}
    places = {place_of(path) for path in paths if KIT in path.parents}
    entered = {"/".join(place) for place in places if place[0] != "model"}
    assert {"commands/main", "engine/loading"} <= entered
    assert len(entered) <= 11, "\n".join(sorted(entered))
    assert encoded == ["tokenization"]


def imported(file: Path) -> set[str]:
    """Modules of its own folder that a file imports, anywhere in it and also for type hints alone."""
    found = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if is_near(node)]
    return {
        name for node in found for name in ([node.module] if node.module else [a.name for a in node.names])
    }


def is_near(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level == 1


@pytest.mark.parametrize("folder", ["serving", "serving/policies", "mlx_backend", "torch_backend"])
def test_no_file_of_a_solution_is_imported_by_what_it_imports(folder):
    """Neither at once nor in a function, nor for a type hint: each file can be read after those that it names."""
    files = (SOURCES / "tiny_llm_ref" / folder).glob("*.py")
    left = {file.stem: imported(file) for file in files if file.stem != "__init__"}
    while ready := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in ready:
            del left[name]
    assert not left, f"they import each other: {', '.join(sorted(left))}"
