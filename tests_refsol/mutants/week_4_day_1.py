"""Wrong solutions of Week 4 Day 1. None of them needs a tile of several blocks, which only AVX-512 has."""

from authors.mutants import Mutant

PRODUCT, QUANTIZED, ATTENTION = "product.cpp", "quantized_product.cpp", "decode_attention.cpp"

# Task 1.
START = "const Number *w = p.block(b), *x = p.x + row * p.columns;"
LAST = "if (whole < p.lines()) sum = dot(w + whole * LINE * p.COLUMNS, x + p.columns - 1, true, sum);"
STORE = "store_outputs(p.y + row * p.outputs + b * LINE, sum, p.bias, b, p.outputs);"


def _line(idea: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.1", idea, PRODUCT, native=(old, new), inside="multiply_line")


LINES = [
    _line("the last of an odd number of columns is forgotten", LAST, ""),
    _line("block b begins at 16 b", START, START.replace("p.block(b)", "p.w + b * LINE")),
    _line("no bias", STORE, STORE.replace("p.bias", "nullptr")),
]

# Task 2.
DOT = "sums[r][i] = dot(w + i * next, x + r * p.columns + k * p.COLUMNS, k == whole, sums[r][i]);"
WRITE = "store_outputs(p.y + (row + r) * p.outputs + (b + i) * LINE, sums[r][i], p.bias, b + i, p.outputs);"


def _tile(idea: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.2", idea, PRODUCT, native=(old, new), inside="multiply_tile")


TILES = [
    _tile("reads a pair where one column is left", DOT, DOT.replace("k == whole", "false")),
    _tile(
        "one row by one block after the other, as before",
        START,
        "for (int r = 0; r < R; r++)\n"
        "    for (int i = 0; i < B; i++) multiply_line(p, row + r, b + i);\n"
        f"  return 0;\n  {START}",
    ),
    _tile("only the first row has a bias", WRITE, WRITE.replace("p.bias", "r == 0 ? p.bias : nullptr")),
]

# Task 3.
FIRST = "BITS == 4 ? low_nibbles(line) : line;"
SECOND = "BITS == 4 ? high_nibbles(line) : bytes_at(w + (k + 4) * LINE);"
SECOND_DOT = "sums[r] = dot_fours<BITS == 4>(second, x + r * columns + k + 4, sums[r]);"


def _group(idea: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.3", idea, QUANTIZED, native=(old, new), inside="multiply_group")


GROUPS = [
    _group(
        "the upper halves first",
        f"{FIRST}\n    const Bytes second = {SECOND}",
        f"{FIRST.replace('low', 'high')}\n    const Bytes second = {SECOND.replace('high', 'low')}",
    ),
    _group(
        "the second four columns of 8 bits begin four bytes further",
        SECOND,
        SECOND.replace("w + (k + 4) * LINE", "w + k * LINE + 4"),
    ),
    _group("groups of 32, whatever was asked for", "k < group", "k < 32"),
    _group("rows of x are as long as a group", SECOND_DOT, SECOND_DOT.replace("r * columns", "r * group")),
]

# Task 4.
OF_EACH = "for (int i = 0; i < Q; i++) {\n    const int own = q + i;\n    "
MOST = "const float most = fmaxf(state.most[own], largest_of(lines[i]));"
SUM = (
    "for (int at = 0; at < d.lines(); at++) state.sum[own][at] = times(state.sum[own][at], line_of(shrink));"
)


def _attend(idea: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.4", idea, ATTENTION, native=(old, new), inside="attend_tokens")


ATTENDS = [
    _attend("only the first line of `sum` shrinks", SUM, SUM.replace("at < d.lines()", "at < 1")),
    _attend(
        "the largest score is at least 0", MOST, MOST.replace("state.most[own]", "fmaxf(0, state.most[own])")
    ),
    _attend("the first Q queries, whatever q is", "const int own = q + i;", "const int own = i;"),
    _attend(
        "one largest score for the Q queries together",
        OF_EACH + MOST,
        "float most = -INFINITY;\n  for (int i = 0; i < Q; i++)\n    "
        "most = fmaxf(most, fmaxf(state.most[q + i], largest_of(lines[i])));\n  " + OF_EACH,
    ),
]

MUTANTS = [
    *LINES,
    *TILES,
    *GROUPS,
    *ATTENDS,
]
