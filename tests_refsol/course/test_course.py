"""The course as it is committed: stubs, chapters, tests and reference agree."""

import re

import pytest

from authors.stub_check import problems_of_stubs
from tiny_llm_kit.course.address import Day, parse_task
from tiny_llm_kit.course.hints import hints
from tiny_llm_kit.course.pages import pages_of, sittings_of, tasks_on, text_of
from tiny_llm_kit.course.tree import day_tests, days, exercises_of_part, tasks


def text_of_tests(day) -> str:
    return "\n".join(file.read_text(encoding="utf-8") for file in day_tests(day))


def test_the_stubs_are_generated_and_leak_nothing():
    assert problems_of_stubs() == []


@pytest.mark.parametrize("day", days(), ids=str)
def test_every_task_has_tests_and_every_marked_test_a_task(day):
    marked = {parse_task(text) for text in re.findall(r'mark\.task\("([\d.]+)"', text_of_tests(day))}
    assert marked == {task for task in tasks() if task.of_day == day}


@pytest.mark.parametrize("day", days(), ids=str)
def test_every_test_of_a_day_is_marked_with_its_task(day):
    text = text_of_tests(day)
    assert len(re.findall(r"^def test_", text, re.M)) == len(
        re.findall(r"^@pytest\.mark\.task\(", text, re.M)
    )


@pytest.mark.parametrize("task", tasks(), ids=str)
def test_every_task_has_a_heading_and_hints_in_its_chapter(task):
    assert pages_of(task.of_day), f"day {task.of_day} has no chapter"
    assert task in tasks_on(text_of(task.of_day)), f"no heading for {task}"
    assert hints(task), f"no hint for {task}"


@pytest.mark.parametrize("task", tasks(), ids=str)
def test_hints_can_be_read_in_a_terminal(task):
    assert not [hint for hint in hints(task) if "$" in hint.text], (
        f"a hint of {task} has a formula: write it in plain text"
    )


@pytest.mark.parametrize("day", days(), ids=str)
def test_every_heading_of_a_chapter_is_a_task(day):
    """Over all its pages; each task has its heading once. A large day may take them in another order."""
    assert sorted(tasks_on(text_of(day))) == [task for task in tasks() if task.of_day == day]


def test_the_great_day_has_three_sittings():
    numbers = [[task.number for task in sitting] for sitting in sittings_of(Day(2, 7))]
    assert numbers == [[1, 2, 3, 6], [7, 8, 4, 5], [9]]


def test_both_ports_have_the_same_exercises():
    mlx, torch = ([(h.task, h.qualname) for _, h in exercises_of_part(part)] for part in ("mlx", "torch"))
    assert mlx == torch


def test_numbers_of_tasks_have_no_gaps():
    for day in days():
        assert [t.number for t in tasks() if t.of_day == day] == list(
            range(1, 1 + sum(t.of_day == day for t in tasks()))
        )
