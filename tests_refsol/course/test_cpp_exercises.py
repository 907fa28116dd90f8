"""Exercises in C++: the rules of their markers, their blanks, and what a learner's text is asked."""

import pytest

from authors.cpp_leaks import cpp_leaks
from tiny_llm_course.address import Task, task_of_label
from tiny_llm_course.cpp_exercises import find_exercises, functions_of, span_of
from tiny_llm_course.cut import cut, fill, is_blank
from tiny_llm_course.exercises import MarkerError

FILE = "native/products.cpp"
SOURCE = """\
// A file. It has TASKs, and this comment is no marker.
/* Nor is this one:
// TASK 9.9.9: in a comment of C.
*/
#include "words.h"

static const char* TEXT = "// TASK 9.9.9: in a string }";
static const char* RAW = R"(
  // TASK 9.9.9: in a raw string.
)";

static inline float half(float x) { return x / 2; }

template <int N>
static int multiply_line(const uint16_t* w,
                         float* out) {
  // TASK 4.1.3: one row by sixteen outputs.
  // A line is two columns.
  // END
  for (int i = 0; i < N; i++) {
    out[i] = half(w[i]);  // }
  }
  return 0;
  // END TASK
}

extern "C" {

__attribute__((target("avx2"))) int multiply(int rows, float* out) noexcept
{
  if (rows < 0) return -1;
  // TASK 4.1.3: all rows.
  return multiply_line<16>(nullptr, out);
  // END TASK
}

}  // extern "C"
"""
LOOP = "  for (int i = 0; i < N; i++) {\n    out[i] = half(w[i]);  // }\n  }\n  return 0;\n"
STUB = SOURCE.replace(LOOP, "  return 3;\n")
STUB = STUB.replace("  return multiply_line<16>(nullptr, out);\n", "  return 3;\n")


def body(*lines: str) -> str:
    """An `int` function with these lines."""
    return "\n".join(["int f(int a) {", *lines, "}", ""])


def test_the_blank_returns_the_number_of_its_task_and_all_else_stays():
    assert cut(SOURCE, FILE) == STUB != SOURCE
    found = [(e.task, e.qualname) for e in find_exercises(SOURCE, FILE)]
    assert found == [(Task(4, 1, 3), "multiply_line"), (Task(4, 1, 3), "multiply")]


def test_the_name_of_the_function_makes_the_label_that_python_raises():
    [first, _] = find_exercises(SOURCE, FILE)
    label = first.task.label(first.qualname)
    assert label == "week 4 day 1 task 3: multiply_line"
    assert task_of_label(label) == (Task(4, 1, 3), "multiply_line")


def test_filling_gives_the_reference_back_byte_for_byte():
    assert fill(STUB, SOURCE, FILE) == SOURCE


def test_only_the_wanted_tasks_are_cut_and_filled():
    source = SOURCE.replace("4.1.3: all", "4.1.4: all")
    half = cut(source, FILE, lambda task: task.number == 3)
    assert [e.qualname for e in find_exercises(source, FILE) if is_blank(half, e)] == ["multiply_line"]
    assert fill(cut(source, FILE), source, FILE, lambda task: task.number == 4) == half


def test_a_header_is_cut_as_a_file_of_kernels_and_other_files_are_not():
    assert cut(SOURCE, "native/words.h") == STUB
    with pytest.raises(KeyError):
        cut(SOURCE, "native/kernels.cu")


def test_a_text_without_markers_has_no_exercises():
    assert cut("#pragma once\nint f(int a);\n", FILE) == "#pragma once\nint f(int a);\n"


TASK, END = "  // TASK 4.1.1: go.", "  // END TASK"


WHOLE = body(TASK, "  return 0;", END)
IN_A_STRUCT = "struct S {\n" + WHOLE.replace("int f", "  int f") + "};\n"
MISFITS = [
    (body("  // TASK 4.1: no number", "  return 0;", END), ":2: write `// TASK w.d.t"),
    (body("  // Task 4.1.1: wrong case", "  return 0;", END), ":2: write `// TASK w.d.t"),
    (body("  // TASK 4.1.0: no error", "  return 0;", END), ":2: .* 0 means success"),
    (body("  return 0;  // TASK 4.1.1: behind code"), ":2: a TASK comment must be alone"),
    (body("  return 0;", END), ":3: // END TASK closes no TASK"),
    (body(TASK, "  return 0;"), ":2: close TASK 4.1.1 with // END TASK"),
    (body(TASK, "  return 0;  // END TASK"), ":2: close TASK 4.1.1 with // END TASK"),
    (body(TASK, TASK, "  return 0;", END), ":2: close TASK 4.1.1 with // END TASK"),
    (body(TASK, "  return 0;", "    // END TASK"), ":4: // END TASK needs the indentation of TASK 4.1.1"),
    (body(TASK, "  // why", "", "  /* not */", END), ":2: TASK 4.1.1 has no code below it"),
    (body(TASK, "  a = 1;", END, "  return 0;"), ":4: only the closing brace of f may follow"),
    (body("  if (a) {", TASK, "  return 0;", END, "  }"), ":5: only the closing brace of f may follow"),
    (body(TASK.strip(), "return 0;", END.strip()), ":2: TASK 4.1.1 is in no function"),
    (WHOLE[:-2], ":2: TASK 4.1.1 is in no function"),
    (WHOLE[:-1] + ";\n", ":2: TASK 4.1.1 is in no function"),
    (body("}", TASK, "  return 0;", END), ":3: TASK 4.1.1 is in no function"),
    (f"{TASK}\nint x = 1;\n{END}\n", ":1: TASK 4.1.1 is in no function"),
    (IN_A_STRUCT, "in no function"),
    (2 * WHOLE, ":2: TASK 4.1.1: the file has two functions f"),
]
TYPES = ("void ", "int* ", "static float ", "unsigned int ", "long  int ", "std::vector<int> ")
MISFITS += [(WHOLE.replace("int f", f"{each}f"), ":2: TASK 4.1.1: f does not return int") for each in TYPES]


@pytest.mark.parametrize(("source", "message"), MISFITS)
def test_a_marker_that_does_not_fit_is_named_with_its_line(source, message):
    with pytest.raises(MarkerError, match=f"^{FILE}.*{message}"):
        find_exercises(source, FILE)


def test_the_lines_of_a_function_are_those_from_its_template_to_its_brace():
    lines = SOURCE.splitlines()
    first, end = span_of(SOURCE, "multiply_line")
    assert (lines[first], lines[end - 1], lines[end]) == ("template <int N>", "}", "")
    assert [f.name for f in functions_of(SOURCE)] == ["half", "multiply_line", "multiply"]
    assert span_of(SOURCE, "printf") is None


def test_another_function_with_the_same_blank_counts_for_nothing():
    """Both blanks are `return 3;`."""
    [first, second] = find_exercises(SOURCE, FILE)
    mine = STUB.replace("  // END\n  return 3;", "  // END\n  return 0;  // my attempt")
    assert not is_blank(mine, first) and is_blank(mine, second)
    assert "my attempt" in fill(mine, SOURCE, FILE) and "nullptr" in fill(mine, SOURCE, FILE)


ATTEMPTS = [
    "  int x = 1;\n  // wrong sizes\n  return 3;\n",
    "  // my idea\n  if (out) {\n    // why\n    return 3;\n  }\n  return 0;\n",
    "  return 3;\n  out[0] = 1;\n",
    "",
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_code_that_returns_the_same_number_is_no_blank(attempt):
    [first, _] = find_exercises(SOURCE, FILE)
    mine = STUB.replace("  // END\n  return 3;\n", "  // END\n" + attempt)
    assert mine != STUB and not is_blank(mine, first)


def test_a_blank_may_have_lost_its_end_and_have_more_comments():
    [first, _] = find_exercises(SOURCE, FILE)
    assert is_blank(STUB.replace("  return 3;\n  // END TASK\n", "  // my plan\n  return 3;\n"), first)


def test_a_function_that_is_not_closed_is_no_blank_and_not_gone():
    [first, _] = find_exercises(SOURCE, FILE)
    mine = STUB.replace("  return 3;\n  // END TASK\n}\n", "  return 3;\n", 1)
    assert span_of(mine, "multiply_line") is None
    assert not is_blank(mine, first) and first.has_function(mine)
    assert not first.has_function(STUB.replace("multiply_line", "multiply_row"))


TRICKS = [
    "static inline int trick(int x) { return x; }",
    "template <int N>\nint trick(int x) {\n  return x;\n}",
    "static const int trick[2] = {1, 2};",
    "constexpr int trick = 2;",
    "#define trick 2",
    "struct trick {\n  int x;\n};",
    "using trick = int;",
]


@pytest.mark.parametrize("trick", TRICKS)
def test_a_helper_that_only_exercises_use_leaks(trick):
    user = body(TASK, "  return trick;", END)
    assert cpp_leaks(f"{trick}\n{user}") == [
        "line 1: only exercises use trick: mark it, or write `// GIVEN: reason`"
    ]
    assert cpp_leaks(f"// GIVEN: shared with the next day\n{trick}\n{user}") == []
    assert cpp_leaks(f"{trick}\n{user}\nstatic int y = trick;\n") == []
    assert cpp_leaks(f"{trick}\n{user.replace('return trick', 'return 0')}// trick\n") == []


def test_a_helper_that_is_an_exercise_itself_leaks_nothing():
    helper = body(TASK, "  return a;", END).replace("int f", "static int trick")
    assert cpp_leaks(helper + body(TASK, "  return trick(a);", END)) == []
