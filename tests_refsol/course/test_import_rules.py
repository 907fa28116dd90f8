"""Who may import whom: packages one way, no package a solution, a solution its own array library alone, and so on."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from authors.overlay import statements
from authors.prefix import course_with
from tiny_llm_course.commands import main as command
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BACKENDS, ROOT, SOURCES

ARRAYS = {"mlx", "torch"}
# The only files beside those in folders of a port that may import an array library.
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
# What nobody fills in. Each package imports only those before it.
PACKAGES = ("tiny_llm_engine", "tiny_llm_extensions", "tiny_llm_server", "tiny_llm_course")
ENGINE = SOURCES / "tiny_llm_engine"
CACHE_ANSWER = (
    "A KV cache keeps the keys and values of past tokens, so each new token is computed once instead of the whole text "
    "again."
)
SOLUTION_TYPES = ENGINE / "solutions" / "solution_types.py"


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


def given_files():
    return [path for package in PACKAGES for path in python_files(package)]


def test_what_is_given_imports_no_solution_and_arrays_only_where_it_says_so():
    """One file names the reference, for the type checker: a learner's package is known by the same types."""
    for path in given_files():
        source = path.read_text(encoding="utf-8")
        found = imports_of(without_type_checking(source) if path == SOLUTION_TYPES else source)
        assert not found & {"tiny_llm", "tiny_llm_ref"}, name(path)
        of_folder = ARRAYS.intersection(path.parts) | (
            {"torch"} if {"gaudi", "nvidia"} & {*path.parts} else set()
        )
        assert found & ARRAYS <= of_folder | WITH_ARRAYS.get(path.name, set()), name(path)
        assert "habana_frameworks" not in found or path.name.startswith("hpu"), name(path)


OF_PART = {"mlx_backend": {"mlx"}, "torch_backend": {"torch"}}


def test_a_solution_imports_its_own_array_library_alone():
    for path in [*python_files("tiny_llm"), *python_files("tiny_llm_ref")]:
        found = imports(path)
        own = OF_PART.get(path.parent.name, set()) | {"tiny_llm_engine", "tiny_llm_extensions"}
        outside = found - set(sys.stdlib_module_names) - own
        assert not outside, f"{name(path)} imports {outside}"


@pytest.mark.parametrize("package", ["tiny_llm", "tiny_llm_ref"])
def test_a_package_imports_nothing_before_it_is_asked(package):
    """The policy loads no array library, no server and no part of the course."""
    tree = ast.parse((SOURCES / package / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    heavy = ("mlx", "torch", "numpy", "tiny_llm_server", "tiny_llm_course")
    program = f"import sys, {package}.serving; print([m for m in sys.modules if m.startswith({heavy!r})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("port", installed_backends())
def test_each_port_answers_with_the_other_library_the_server_and_the_course_blocked(port):
    """The import system refuses them, and the whole port loads, and `LLM` answers."""
    other = "torch" if port == "mlx" else "mlx"
    program = f"""import sys
for blocked in ({other!r}, "tiny_llm_server", "tiny_llm_course", "tiny_llm_lab"):
    sys.modules[blocked] = None
from tiny_llm_ref import LLM, SamplingParams
ids = {{"prompt_token_ids": [5, 6, 7]}}
with LLM("tiny-qwen3", backend={port!r}, device="cpu", num_blocks=4, cpu_products="usual") as llm:
    print(len(llm.generate(ids, SamplingParams(max_tokens=3, ignore_eos=True))[0].outputs[0].token_ids))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "3", done.stderr


ALONE = """import json, sys
from pathlib import Path
from authors.overlay import Overlay
package, ports, hidden, texts = json.load(sys.stdin)
sys.modules.update(dict.fromkeys(hidden))
from tiny_llm_engine.llm import PlainLLM
from tiny_llm_engine.sampling import SamplingParams
question = [{"role": "user", "content": "What is a KV cache?"}]
with Overlay("tiny_llm") as overlay:
    overlay.put({Path(file): text for file, text in texts.items()})
    for port in ports:
        with PlainLLM("tiny-qwen3", backend=port, device="cpu", solution=package, num_blocks=4) as llm:
            print(llm.chat(question, SamplingParams(max_tokens=64))[0].outputs[0].text)
"""


@pytest.mark.parametrize("package", ["tiny_llm_ref", "tiny_llm"])
def test_the_engine_runs_alone(package):
    """It answers on every port with all that extends it hidden: the reference's, and a learner's filled package's.

    In a process of its own: what is imported here already could not be hidden.
    """
    ports, hidden = list(installed_backends()), [*PACKAGES[1:], "tiny_llm_lab"]
    filled = {str(file): text for file, text in course_with(lambda task: False).items()}
    given = json.dumps([package, ports, hidden, filled])
    command = [sys.executable, "-c", ALONE]
    done = subprocess.run(command, input=given, capture_output=True, text=True, cwd=ROOT)
    answers = done.stdout.splitlines()
    assert len(answers) == len(ports), done.stderr
    assert set(answers) == {CACHE_ANSWER}


def test_no_solution_and_no_test_asks_which_backend_it_is():
    for path in [*python_files("tiny_llm_ref"), *SOURCES.parent.joinpath("tests").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(part, ast.Constant) and part.value in BACKENDS for part in ast.walk(node)
                ), f"{path.name}:{node.lineno} compares with a port's name"


def test_text_files_are_read_and_written_in_utf_8():
    """Windows reads files in its own encoding unless told otherwise, and our texts have letters beyond ASCII."""
    for path in given_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and _called(node) in ("read_text", "write_text"):
                assert "encoding" in {k.arg for k in node.keywords}, f"{name(path)}:{node.lineno}"


# Protocols beside the classes that they describe.
TWICE = {"Tokenizer", "Checkpoint"}


def test_a_name_of_a_class_means_one_thing():
    """A name that two classes share makes the reader ask which one it is. The two ports share theirs."""
    found: dict[str, list[str]] = {}
    for path in (path for path in given_files() if "mlx" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name(path))
    assert len(found) > 80
    assert {key for key, files in found.items() if len(files) > 1} == TWICE


# ---- packages one way

# Each of these imports the packages above and those before it; those import none of them.
AFTER = {
    "tiny_llm_lab": SOURCES / "tiny_llm_lab",
    **{name: ROOT / name for name in ("benchmarks", "authors", "models")},
    "book": ROOT / "book" / "tools",
    "support": ROOT / "tests" / "support",
    "tests_refsol": ROOT / "tests_refsol" / "long",
}
OPTIMIZED = 1  # the flag of a function's code, which those of modules and classes lack
BY_NAME = {"import_module", "__import__", "find_spec"}


def modules_of(source: str, package: tuple[str, ...]) -> Iterator[str]:
    """Every module that a file imports, at any place and also by name, with its whole name.

    Args:
        package: the file's.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*start, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) in BY_NAME and node.args:
            text = next((n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)), "")
            above = len(str(text)) - len(str(text).lstrip("."))
            yield ".".join([*package[: len(package) - above + 1], str(text)[above:]]) if above else str(text)


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def imports_up(source: str, package: tuple[str, ...]) -> list[str]:
    """What a file imports of packages after its own."""
    later = PACKAGES[PACKAGES.index(package[0]) + 1 :]
    return [module for module in modules_of(source, package) if module.split(".")[0] in later]


def test_packages_import_one_way():
    """The engine nothing that extends it, extensions nothing of the server, and nobody the course."""
    found = set()
    for path in given_files():
        package = path.relative_to(SOURCES).parent.parts
        source = without_type_checking(path.read_text(encoding="utf-8"))
        found |= {(name(path), ".".join(up.split(".")[:2])) for up in imports_up(source, package)}
    assert not found


UP = [
    ("tiny_llm_engine.models", "from tiny_llm_course import tree"),
    ("tiny_llm_engine", "def f():\n    from tiny_llm_extensions.drafts import drafting"),
    ("tiny_llm_extensions.drafts", "import tiny_llm_server.server"),
    ("tiny_llm_server", "import importlib\nimportlib.import_module('tiny_llm_course.tree')"),
    ("tiny_llm_engine", "__import__('tiny_llm_course.commands.main')"),
    ("tiny_llm_server", "find_spec(f'tiny_llm_course.commands.{name}')"),
]


@pytest.mark.parametrize(("package", "source"), UP)
def test_an_import_up_is_found(package, source):
    assert imports_up(source, tuple(package.split(".")))


DOWN = [
    (
        "tiny_llm_course.commands",
        "from ..trace.serve import serve\nfrom tiny_llm_engine.machine.repo import ROOT",
    ),
    (
        "tiny_llm_extensions.drafts",
        "from .drafted import Drafted\nimport tiny_llm_engine.events\nimport json",
    ),
]


@pytest.mark.parametrize(("package", "source"), DOWN)
def test_an_import_down_is_none_of_them(package, source):
    assert not imports_up(source, tuple(package.split(".")))


def test_what_is_given_does_without_what_is_made_of_it():
    for path in given_files():
        assert not imports(path) & {*AFTER}, name(path)


@pytest.mark.parametrize("package", AFTER)
def test_what_is_made_of_it_has_an_order(package):
    """The lab is for benchmarks, both are for the book; what tests share is for tests alone."""
    later = [*AFTER][[*AFTER].index(package) + 1 :]
    files = sorted(AFTER[package].rglob("*.py"))
    assert files
    for path in files:
        assert not imports(path) & {*later}, path.relative_to(ROOT)


def test_only_what_no_python_runs_is_left_out():
    source = "if TYPE_CHECKING:\n    import tiny_llm_ref\nelse:\n    import tiny_llm\nimport torch"
    assert imports_of(without_type_checking(source)) == {"tiny_llm", "torch"}


OF_THE_REFERENCE = [f"tiny_llm_ref/{name}" for name in ("serving/policies", "mlx_backend", "torch_backend")]


@pytest.mark.parametrize("package", [*PACKAGES, *OF_THE_REFERENCE])
def test_no_two_files_of_a_package_import_each_other(package):
    """Neither directly nor through others, in functions and for type hints neither."""
    left = {}
    for path in (path for path in python_files(package) if "models" not in path.parts):
        place = path.relative_to(SOURCES).with_suffix("").parts
        found = set(modules_of(path.read_text(encoding="utf-8"), place[:-1]))
        left[".".join(place)] = found | {module.rpartition(".")[0] for module in found}
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
    """Files that are given and called between `main` of the README and its first token, but for reading the model."""
    called, encoded = set(), []

    def profile(frame, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_code)
            if frame.f_code.co_name == "encode" and str(ENGINE) in frame.f_code.co_filename:
                encoded.append(Path(frame.f_code.co_filename).stem)

    monkeypatch.setattr(sys, "stdout", UntilText(sys.stdout))
    sys.setprofile(profile)
    try:
        command.main(["--solution", "ref", "--backend", port, "--device", "cpu", "--max-tokens", "1"])
    finally:
        sys.setprofile(None)
    # The bodies of modules and classes are run by imports.
    paths = {Path(code.co_filename) for code in called if code.co_flags & OPTIMIZED}
    given = [path for path in paths if path.is_relative_to(SOURCES) and name(path).startswith(PACKAGES)]
    entered = {name(path) for path in given if ENGINE / "models" not in path.parents}
    assert {"tiny_llm_course/commands/main.py", "tiny_llm_engine/loading.py"} <= entered
    assert len(entered) <= 21, "\n".join(sorted(entered))
    assert encoded == ["tokenization"]
