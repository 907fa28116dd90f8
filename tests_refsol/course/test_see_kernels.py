"""The screen of Day 4.1 with invented speeds: what it says about kernels that are blank, wrong, or crash."""

import io

import pytest
from rich.console import Console

from tiny_llm_course.see import week_4_day_1 as screen

SPEEDS = {str(rows): 4e10 for rows in screen.ROWS}  # bf16 on a roof of 40 GB/s
FOUND = {
    "measure_memory": 4e10,
    "measure_plain": {"python": SPEEDS, "library": SPEEDS},
    "measure_products": {"lines": "week 4 day 1 task 1: multiply_line", "tiles": SPEEDS},
    "measure_quantized": RuntimeError("exit code -11"),
    "measure_attention": {"attention": 1e10},
}


@pytest.fixture
def shown(monkeypatch):
    """Draws the screen from what each process has found."""

    def show(**found):
        def measured(measure, b):
            answer = (FOUND | found)[measure.__name__]
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(screen, "in_own_process", measured)
        console = Console(file=io.StringIO(), width=80)
        screen.show(None, console)
        return console.file.getvalue()

    return show


def test_kernels_that_are_blank_or_crash_are_lines_of_the_screen(shown):
    text = shown()
    assert "bf16 in lines: week 4 day 1 task 1: multiply_line\n" in text
    assert "4 bits: it crashes, exit code -11: `pdm run test --week 4 --day 1` says where\n" in text
    assert "at 10.0 GB/s, 25 % of what memory gives." in text
    assert "attention: it crashes" in shown(measure_attention=RuntimeError("exit code -11"))


def test_a_version_has_its_bytes_per_second_for_each_number_of_rows(shown):
    [line] = [line for line in shown().splitlines() if line.startswith("bf16 in tiles")]
    assert line.split()[3:] == ["40"] * len(screen.ROWS)


def test_without_a_compiler_there_is_one_line(shown):
    text = shown(measure_memory=RuntimeError("tiny_llm.native.library.NativeError: TINY_LLM_NATIVE is 0"))
    assert text == "There is nothing to see here: TINY_LLM_NATIVE is 0\n"
