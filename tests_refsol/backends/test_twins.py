"""The two ports are twins: the same files, public names, parameters and defaults; compared as syntax trees."""

import ast
import re

import pytest

from tiny_llm_course.tree import reference_files
from tiny_llm_engine.machine.repo import SOURCES

# Of the given code: hpu.py holds every call into Intel's plug-in; attention on a Gaudi and on a CPU is cut for the
# kernels that there are. Pages in eight bits have the methods of their port's arrays. Only torch has several products
# on a CPU, an int4 kernel with its own layout, and operators of our own for a compiler.
WITHOUT_TWIN = """
    cpu_attention cpu_products expert_weights fused hpu hpu_attention hpu_mixture hpu_quantized hpu_self_check int4
    large_pages operators quantized_pages solution
"""
INIT = "tiny_llm_ref/__init__.py"
# Functions that other files of the same port use, and the other port has no need of.
ONE_PORTS = {"evaluates_tiles", "has_kernels", "has_onednn", "matrices_of", "mlx_array"}
ONE_PORTS |= {"static_mixture", "torch_array", "why_no_texts"}
SPELLINGS = [
    (r"mx\.array", "Array"),
    (r"torch\.Tensor", "Array"),
    (r"mx\.Dtype", "dtype"),
    (r"torch\.dtype", "dtype"),
    (r"MlxSolution|TorchSolution", "Solution"),
]
SPELLINGS += [(r"\b(mx|torch)\.", "lib.")]


def neutral(node: ast.AST | None) -> str:
    """An annotation or a default in the spelling that both ports share."""
    text = "" if node is None else ast.unparse(node)
    for spelling, shared in SPELLINGS:
        text = re.sub(spelling, shared, text)
    return text


def parameters(function: ast.FunctionDef) -> list[tuple[str, str, str]]:
    """(name, annotation, default) of each parameter; torch alone may add a keyword-only `device`."""
    spec = function.args
    plain = [*spec.posonlyargs, *spec.args]
    defaults = [None] * (len(plain) - len(spec.defaults)) + spec.defaults
    keyword = [(a, d) for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if a.arg != "device"]
    return [
        (a.arg, neutral(a.annotation), neutral(d)) for a, d in [*zip(plain, defaults, strict=True), *keyword]
    ]


def public_interface(source: str) -> dict[str, list]:
    """Public functions, classes and methods with their parameters; torch alone may have a property `device`."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in ONE_PORTS:
            found[node.name] = parameters(node)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for method in (n for n in node.body if isinstance(n, ast.FunctionDef)):
                if method.name == "device" or method.name in ONE_PORTS:
                    continue
                if not method.name.startswith("_") or method.name in ("__init__", "__call__"):
                    found[f"{node.name}.{method.name}"] = parameters(method)
    return found


def files(port: str) -> dict[str, str]:
    """The files of a port, of the reference and of what is given."""
    given = [
        path for name in ("tiny_llm_engine", "tiny_llm_extensions") for path in (SOURCES / name).rglob("*.py")
    ]
    paths = [*reference_files(port), *(path for path in given if path.parent.name == port)]
    of_package = {f"{path.parent.parent.name}/{path.name}": path for path in paths}
    twins = {name: path for name, path in of_package.items() if path.stem not in WITHOUT_TWIN.split()}
    return {name: path.read_text(encoding="utf-8") for name, path in twins.items()}


def test_both_ports_have_the_same_files():
    assert files("mlx").keys() == files("torch").keys()


@pytest.mark.parametrize("name", sorted(files("mlx")))
def test_twins_have_the_same_interface(name):
    assert public_interface(files("mlx")[name]) == public_interface(files("torch")[name])


@pytest.mark.parametrize(
    "change", [("x: Array", "y: Array"), ("=3", "=4"), ("def f(", "def g("), (", k=3", "")]
)
def test_the_comparison_sees_a_difference(change):
    source = "def f(x: Array, k=3): pass\nclass C:\n    def __call__(self, x): pass\n"
    assert public_interface(source) != public_interface(source.replace(*change))


def test_both_ports_export_the_same_names():
    exported = []
    for port in ("mlx", "torch"):
        tree = ast.parse(files(port)[INIT])
        names = [alias for node in ast.walk(tree) for alias in names_of(node)]
        later = [ast.literal_eval(node) for node in ast.walk(tree) if isinstance(node, ast.Dict)]
        listed = {name for modules in later for names in modules.values() for name in names.split()}
        exported.append(listed | {alias.asname or alias.name for alias in names})
    assert exported[0] == exported[1] and len(exported[0]) > 80


def names_of(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.ImportFrom) else []
