"""How large the house is, and that its days are in order; `authors/house.py` counts."""

import ast

import pytest

from authors import house
from tiny_llm_course.address import Day
from tiny_llm_course.tree import LEARNER, REFERENCE, source_files
from tiny_llm_engine.machine.installation import installed_backends

SCHEDULER = REFERENCE / "serving/batching/hybrid_scheduler.py"


def model_of(port):
    return REFERENCE / f"{port}_backend/qwen3_week2.py"


def test_no_file_reaches_a_task_of_a_later_day():
    late = house.later_days()
    assert not late, "\n".join(
        f"{file.relative_to(REFERENCE)} ({house.first_day(file)}) imports {', '.join(each.name for each in reached)}"
        for file, reached in late.items()
    )


@pytest.mark.parametrize("port", installed_backends())
def test_a_days_file_imports_few_others(port):
    """What somebody opens who wants to understand one of them."""
    assert len(house.closure(model_of(port))) <= 20 and len(house.closure(SCHEDULER)) <= 20
    raw = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in house.closure(model_of(port)))
    assert raw <= 2300


def test_imports_in_functions_count_and_those_for_type_checkers_or_later_blanks_do_not():
    source = (
        "if TYPE_CHECKING:\n    from .sequence import Sequence\nfrom .padded_budget import tokens_to_delay\n\n\n"
        "def f():\n    from ..buckets.buckets import Buckets\n    return tokens_to_delay\n"
    )
    tree = ast.parse(source)
    found = {target.stem: names for target, names in house.imports_in(tree, SCHEDULER)}
    assert found == {"padded_budget": {"tokens_to_delay"}, "buckets": {"Buckets"}}
    used = found["padded_budget"]
    assert house.is_only_for({8}, used, tree) and not house.is_only_for({7}, used, tree)
    assert not house.is_only_for({8}, found["buckets"], tree), "nobody uses it, so no blank does"
    assert house.first_day(SCHEDULER) == Day(3, 3) and house.first_day(REFERENCE / "batch.py") is None


def test_documentation_is_no_code(tmp_path):
    file = tmp_path / "text.py"
    text = '"""Two\nlines."""\n\n# a comment\nx = """not a\ndocstring"""\n\n\n'
    file.write_text(text + 'def f():\n    """Says."""\n    return isinstance(x, str)\n')
    assert house.code_lines(file) == {5, 6, 9, 11} and house.docstring_lines(file.read_text()) == {1, 2, 10}
    assert house.count_names([file], "isinstance") == 1


@pytest.mark.parametrize("port", installed_backends())
def test_the_learner_writes_some_of_the_code(port):
    assert 0.09 < house.learners_share(port) < 0.5
    assert house.count_names(source_files(REFERENCE), "isinstance") <= 60


@pytest.mark.parametrize("name", house.ceilings())
def test_the_code_keeps_below_its_ceilings(name):
    _, code, _ = house.sizes(house.files_below(name))
    assert 0 < code <= house.ceilings()[name], (
        f"{name} has {code} lines of code: delete what is no longer needed, or raise the ceiling in pyproject.toml, in "
        "a commit that says why"
    )


def test_every_source_file_is_in_one_room():
    files = [file for room in house.rooms() for file in house.files_of(room)]
    assert len(files) == len(set(files)) and {*files} >= {*house.files_below("src")}


def test_the_learners_package_holds_lessons():
    """Few files without a task, and those are text for a learner to read."""
    number, _, raw = house.sizes(source_files(LEARNER))
    assert len(house.without_a_task()) <= 11 and number <= 127 and raw <= 11600
