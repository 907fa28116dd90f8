"""No idea is lost: every test and wrong solution of a baseline is still there, or `changed.txt` says what became of it.

`ideas/aadac27.txt` lists them as they were before the house was rebuilt, and `ideas/10c9d2e.txt` those that Week 3 has
added. A test counts by its name, a wrong solution by its day and idea, wherever they stand now.
"""

import ast
import re
from pathlib import Path

from authors.mutants import mutants_of
from tiny_llm_kit.course.tree import days
from tiny_llm_kit.repo import ROOT

FOLDER = Path(__file__).parent / "ideas"
BASELINES = ("aadac27.txt", "10c9d2e.txt")


def name_of(line: str) -> str:
    """`test tests/file.py::test_name` -> `test_name`; `mutant 1.1.1 mlx+torch: idea` -> `1.1: idea`."""
    if line.startswith("test "):
        return line.split("::")[-1]
    day, idea = re.fullmatch(r"mutant (\d\.\d)\.\d+ \S+: (.*)", line).groups()
    return f"{day}: {idea}"


def names_of_tests() -> set[str]:
    files = [file for folder in ("tests", "tests_refsol") for file in (ROOT / folder).rglob("test_*.py")]
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    functions = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def mutants_now() -> set[str]:
    return {f"{day}: {mutant.idea}" for day in days() for mutant in mutants_of(day)}


def changed() -> dict[str, str]:
    """Name in the baseline -> what replaces it, or `dropped: reason`."""
    lines = (FOLDER / "changed.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split(" => ") for line in lines if line and not line.startswith("#"))


def test_every_idea_of_the_baseline_is_still_tested():
    lines = [line for name in BASELINES for line in (FOLDER / name).read_text(encoding="utf-8").splitlines()]
    baseline = {name_of(line) for line in lines}
    now, explained = names_of_tests() | mutants_now(), changed()
    assert explained.keys() <= baseline, "changed.txt explains what the baseline does not have"
    lost = sorted(baseline - now - explained.keys())
    assert not lost, "say in ideas/changed.txt what replaces them:\n" + "\n".join(lost)
    absent = {
        old: new for old, new in explained.items() if not new.startswith("dropped: ") and new not in now
    }
    assert not absent, f"they are to be replaced by what does not exist: {absent}"
