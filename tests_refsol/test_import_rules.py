"""Who may import whom (design: the solution never imports kit's commands, kit never a solution, and so on)."""

import ast
import subprocess
import sys

import pytest

from tiny_llm_kit.repo import PORTS, SOURCES
from tiny_llm_kit.runtime.port import installed_backends

ARRAYS = {"mlx", "torch"}
# The only kit files that may import an array library.
WITH_ARRAYS = {
    "backend_mlx.py": {"mlx"},
    "backend_torch.py": {"torch"},
    # Peers of the benchmarks, imported when they are asked for.
    "transformers_peer.py": {"torch"},
    "mlx_lm_peer.py": {"mlx"},
}


def imports(path) -> set[str]:
    """The top-level packages that a file imports, also inside its functions; relative imports are left out."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def python_files(package: str):
    return sorted((SOURCES / package).rglob("*.py"))


def name(path) -> str:
    return str(path.relative_to(SOURCES))


@pytest.mark.parametrize("path", python_files("tiny_llm_kit"), ids=name)
def test_kit_imports_no_solution_and_arrays_only_in_its_backends(path):
    found = imports(path)
    assert not found & {"tiny_llm", "tiny_llm_ref"}
    assert found & ARRAYS <= WITH_ARRAYS.get(path.name, set())


@pytest.mark.parametrize("path", [*python_files("tiny_llm"), *python_files("tiny_llm_ref")], ids=name)
def test_a_solution_imports_its_own_array_library_alone(path):
    part = path.parent.name
    allowed = {"mlx_backend": {"mlx"}, "torch_backend": {"torch", "habana_frameworks"}}.get(part, set())
    outside = imports(path) - set(sys.stdlib_module_names) - allowed
    assert not outside, f"{name(path)} imports {outside}"
    assert "habana_frameworks" not in imports(path) or path.name == "hpu.py"


@pytest.mark.parametrize("port", installed_backends())
def test_each_port_works_with_the_other_library_blocked(port):
    """The import system refuses the other array library, and the whole port still loads."""
    other = "torch" if port == "mlx" else "mlx"
    program = f"""
import sys
sys.modules[{other!r}] = None
from tiny_llm_kit.runtime.port import Port
b = Port("tiny_llm_ref", {port!r}, "cpu")
print(b.numpy(b.softmax(b.array([[0.0, 0.0]]), -1)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[[0.5 0.5]]", done.stderr


def test_no_file_outside_kit_asks_which_backend_it_is():
    for path in [*python_files("tiny_llm_ref"), *SOURCES.parent.joinpath("tests").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                assert not any(
                    isinstance(part, ast.Constant) and part.value in PORTS for part in ast.walk(node)
                ), f"{path.name}:{node.lineno} compares with a port's name"


@pytest.mark.parametrize("path", python_files("tiny_llm_kit"), ids=name)
def test_text_files_are_read_and_written_in_utf_8(path):
    """Windows reads files in its own encoding unless told otherwise, and our texts have letters beyond ASCII."""
    calls = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
    ]
    for call in calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("read_text", "write_text"):
            assert "encoding" in {k.arg for k in call.keywords}, f"{name(path)}:{call.lineno}"


def test_a_name_of_a_class_means_one_thing_in_the_kit():
    """In the rooms that the others build on. A name that two classes share makes the reader ask which one it is."""
    found: dict[str, list[str]] = {}
    for path in python_files("tiny_llm_kit"):
        if path.parent.parts[len(SOURCES.parts) + 1 :][:1] not in (("model",), ("runtime",), ("course",)):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name(path))
    assert len(found) > 30
    assert {key: files for key, files in found.items() if len(files) > 1} == {}
