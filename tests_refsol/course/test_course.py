"""The course as it is committed: stubs, chapters, tests and reference agree."""

import re

import pytest

from authors.stub_check import problems_of_stubs
from tiny_llm_course.address import Day, Task, parse_task
from tiny_llm_course.pages import hints, pages_of, sittings_of, tasks_on
from tiny_llm_course.tree import PARTS, day_tests, days, exercises_of_part, tasks


def text_of_tests(day) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in day_tests(day))


def test_the_stubs_are_generated_and_leak_nothing():
    assert problems_of_stubs() == []


@pytest.mark.parametrize("day", days(), ids=str)
def test_every_test_of_a_day_is_marked_with_a_task_and_every_task_has_tests(day):
    text = text_of_tests(day)
    marked = re.findall(r'^@pytest\.mark\.task\("([\d.]+)"', text, re.M)
    assert len(re.findall(r"^def test_", text, re.M)) == len(marked)
    assert {*map(parse_task, marked)} == {task for task in tasks() if task.of_day == day}


@pytest.mark.parametrize("day", days(), ids=str)
def test_each_task_has_one_heading_and_hints_in_its_chapter(day):
    """A large day has several pages, and may take its tasks in another order. A terminal shows no formulas."""
    headings = [task for page in pages_of(day) for task in tasks_on(page, day)]
    assert sorted(headings) == [task for task in tasks() if task.of_day == day]
    for task in headings:
        assert hints(task), f"no hint for {task}"
        assert not any("$" in hint.text for hint in hints(task)), f"a formula in a hint of {task}"


def test_the_great_day_has_three_sittings():
    numbers = [[task.number for task in sitting] for sitting in sittings_of(Day(2, 7))]
    assert numbers == [[1, 2, 3, 6], [7, 8, 4, 5], [9]]


def test_a_page_may_serve_two_days():
    """Each day is one sitting with its own tasks, although both have the same page."""
    first, second = Day(2, 2), Day(2, 3)
    [page] = pages_of(first)
    assert pages_of(second) == [page]
    for day, last in ((first, 4), (second, 3)):
        assert sittings_of(day) == [tasks_on(page, day)] == [[Task(*day, n + 1) for n in range(last)]]


def test_both_ports_have_the_same_exercises():
    mlx, torch = ([(h.task, h.qualname) for _, h in exercises_of_part(part)] for part in ("mlx", "torch"))
    assert mlx == torch


def test_the_tasks_by_their_markers_are_those_that_are_cut():
    assert tasks() == sorted({exercise.task for part in PARTS for _, exercise in exercises_of_part(part)})


def test_numbers_of_tasks_have_no_gaps():
    for day in days():
        assert [t.number for t in tasks() if t.of_day == day] == list(
            range(1, 1 + sum(t.of_day == day for t in tasks()))
        )
