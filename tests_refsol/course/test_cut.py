"""The cut: exercises, their inverse, and the rules that keep solutions from leaking."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from authors.leaks import leaks
from tiny_llm_course.cut import cut, fill, is_blank
from tiny_llm_course.exercises import MarkerError, find_exercises

FILE = "file.py"
SOURCE = '''\
"""A file. # TASK 9.9.9: in a string is no marker."""
import math


def one(x):
    """Doc."""
    # TASK 1.2.3: do it.
    # A reason.
    y = math.sqrt(x)  # how
    return y
    # trailing thought


class Two:
    def three(self, x):
        # TASK 1.2.4: more.
        self.x = x
        # END TASK
        return self.x
'''


def test_the_exercise_is_one_line_with_its_address_and_all_else_stays():
    one = "    y = math.sqrt(x)  # how\n    return y\n    # trailing thought\n"
    stub = SOURCE.replace(one, '    raise NotImplementedError("week 1 day 2 task 3: one")\n')
    three = 'raise NotImplementedError("week 1 day 2 task 4: Two.three")'
    assert cut(SOURCE, FILE) == stub.replace("self.x = x", three)
    assert "how" not in stub and "thought" not in stub


def test_filling_gives_the_reference_back_byte_for_byte():
    assert fill(cut(SOURCE, FILE), SOURCE, FILE) == SOURCE


def test_only_the_wanted_tasks_are_cut_and_filled():
    half = cut(SOURCE, FILE, lambda task: task.number == 3)
    assert [each.qualname for each in find_exercises(SOURCE, FILE) if is_blank(half, each)] == ["one"]
    assert fill(cut(SOURCE, FILE), SOURCE, FILE, lambda task: task.number == 4) == half


LINES = ["    a = 1\n", "    # why\n", "\n", "    s = '''\nx\n'''\n", "    if a:\n        a\n"]


@given(st.lists(st.sampled_from(LINES)))
def test_any_body_can_be_cut_and_filled(body):
    begin, end = "def f(a):\n    # TASK 1.1.1: all of it.\n    b = a\n", "    return a\n\n\nx = 1\n"
    source = begin + "".join(body) + end
    stub = cut(source, FILE)
    assert "b = a" not in stub and "return a" not in stub and stub.endswith("\n\n\nx = 1\n")
    assert fill(stub, source, FILE) == source


ONE, IN_F = "    # TASK 1.1.1: a\n    x = 1\n", "def f():\n"
MISFITS = [
    (f"{IN_F}    # TASK 1.1: no task number\n    return 1\n", "write `# TASK w.d.t"),
    (f"{IN_F}    # Task 1.1.1: wrong case\n    return 1\n", "write `# TASK w.d.t"),
    (f"{IN_F}    return 1\n    # END TASK\n", "closes no TASK"),
    (f"{IN_F}    # TASK 1.1.1: empty\n    # END TASK\n    return 1\n", "has no code below it"),
    (f"{IN_F}    if f:\n        # TASK 1.1.1: too deep\n        return 1\n", "top level of a function"),
    ("# TASK 1.1.1: nowhere\nx = 1\n", "top level of a function"),
    (f"{IN_F}{ONE}    # TASK 1.1.2: b\n    return x\n", "before the next one"),
    (f"{IN_F}{ONE}    # END TASK\n    # TASK 1.2.1: b\n    return y\n", "already belongs to 1.1.1"),
]


@pytest.mark.parametrize(("source", "message"), MISFITS)
def test_a_marker_that_does_not_fit_is_named_with_its_line(source, message):
    with pytest.raises(MarkerError, match=message):
        find_exercises(source, FILE)


def test_a_helper_that_only_exercises_use_leaks():
    source = "def _trick(x):\n    return x\n\n\ndef f(x):\n    # TASK 1.1.1: go.\n    return _trick(x)\n"
    assert "only exercises use _trick" in leaks(source)[0]
    assert leaks("# GIVEN: shared with the next day\n" + source) == []
    assert leaks(source + "\n\ny = _trick(1)\n") == []


def test_a_constant_that_only_exercises_use_leaks():
    source = "_K = 3\n\n\ndef f(x):\n    # TASK 1.1.1: go.\n    return _K\n"
    assert "only exercises use _K" in leaks(source)[0]


def test_given_code_must_not_need_a_name_from_the_exercise():
    source = "def f(x):\n    # TASK 1.1.1: go.\n    y = x\n    # END TASK\n    return y\n"
    assert "y is bound only in the exercise" in leaks(source)[0]
    assert leaks(source.replace("    # TASK", "    y = 0\n    # TASK")) == []
