"""Wrong solutions of Week 4 Day 1. None of them needs a tile of several blocks, which only AVX-512 has."""

from authors.mutants import Mutant

PRODUCT, QUANTIZED, ATTENTION = "product.cpp", "quantized_product.cpp", "decode_attention.cpp"
IN_BF16 = "{ uint16_t half[LINE]; store(half, SUM, LINE); SUM = load(half); }"

# Task 1.
START = "const Number *w = p.block(b), *x = p.x + row * p.columns;"
LOOP = (
    "for (int64_t k = 0; k < whole; k++) sum = dot(w + k * LINE * p.COLUMNS, x + k * p.COLUMNS, false, sum);"
)
LAST = "if (whole < p.lines()) sum = dot(w + whole * LINE * p.COLUMNS, x + p.columns - 1, true, sum);"
STORE = "store_outputs(p.y + row * p.outputs + b * LINE, sum, p.bias, b, p.outputs);"


def _line(idea: str, survives: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.1", idea, PRODUCT, survives, native=(old, new), inside="multiply_line")


LINES = [
    _line("the last of an odd number of columns is forgotten", "a test of even numbers", LAST, ""),
    _line(
        "reads a pair where one bf16 column is left, and so the number behind x",
        "a test in which a 0 or any finite number is there",
        f"{LOOP}\n  {LAST}",
        LOOP.replace("k < whole", "k < p.lines()"),
    ),
    _line(
        "takes the last column from the wrong place",
        "a test of one column",
        "x + p.columns - 1, true",
        "x + whole, true",
    ),
    _line(
        "counts columns, where a line has two of bf16",
        "a test in float32",
        LOOP,
        LOOP.replace("whole", "p.columns"),
    ),
    _line("x moves on by one number a line", "a test in float32", "x + k * p.COLUMNS", "x + k"),
    _line("W moves on by 16 numbers a line", "a test in float32", "w + k * LINE * p.COLUMNS", "w + k * LINE"),
    _line(
        "block b begins at 16 b", "a test of one block", START, START.replace("p.block(b)", "p.w + b * LINE")
    ),
    _line(
        "rows of x are as long as those of y",
        "a test of one row",
        START,
        START.replace("p.columns", "p.outputs"),
    ),
    _line("always row 0 of x", "a test of one row", START, START.replace(" + row * p.columns", "")),
    _line("blocks of y are one number apart", "a test of one block", STORE, STORE.replace("b * LINE", "b")),
    _line(
        "the last block writes 16 outputs as well",
        "a test that looks at y alone, and not behind it",
        STORE,
        STORE.replace("p.outputs);", "(b + 1) * LINE);"),
    ),
    _line("no bias", "a test without a bias", STORE, STORE.replace("p.bias", "nullptr")),
    _line(
        "the sum begins with the bias, and store_outputs adds it once more",
        "a test without a bias",
        "Line sum = line_of(0);",
        "Line sum = p.bias ? load(p.bias + b * LINE) : line_of(0);",
    ),
    _line(
        "adds up in bf16",
        "a test of few columns with a tolerance of bf16",
        LOOP,
        LOOP.replace("sum = dot", "{ sum = dot").replace(
            "sum);", f"sum); {IN_BF16.replace('SUM', 'sum')} }}"
        ),
    ),
]

# Task 2.
STEP = "k++, w += LINE * p.COLUMNS)"
DOT = "sums[r][i] = dot(w + i * next, x + r * p.columns + k * p.COLUMNS, k == whole, sums[r][i]);"
WRITE = "store_outputs(p.y + (row + r) * p.outputs + (b + i) * LINE, sums[r][i], p.bias, b + i, p.outputs);"


def _tile(idea: str, survives: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.2", idea, PRODUCT, survives, native=(old, new), inside="multiply_tile")


TILES = [
    _tile(
        "reads a pair where one column is left",
        "a test of even numbers",
        DOT,
        DOT.replace("k == whole", "false"),
    ),
    _tile("stops before an odd last column", "a test of even numbers", "k < p.lines()", "k < whole"),
    _tile(
        "rows of x are as long as a block has lines",
        "a test in float32",
        DOT,
        DOT.replace("r * p.columns", "r * p.lines()"),
    ),
    _tile(
        "all rows add to the sums of the first",
        "a test of one row",
        DOT,
        DOT.replace("sums[r][i]", "sums[0][i]"),
    ),
    _tile(
        "every tile begins at row 0 of x",
        "a test with the rows of one tile",
        START,
        START.replace(" + row * p.columns", ""),
    ),
    _tile(
        "every tile begins at row 0 of y",
        "a test with the rows of one tile",
        WRITE,
        WRITE.replace("(row + r)", "r"),
    ),
    _tile("W moves on by 16 numbers a line", "a test in float32", STEP, "k++, w += LINE)"),
    _tile(
        "only the first row has a bias",
        "a test of one row",
        WRITE,
        WRITE.replace("p.bias", "r == 0 ? p.bias : nullptr"),
    ),
    _tile(
        "the sums of a tile are those of the tile before",
        "a test of one tile",
        "Line sums[R][B];",
        "static thread_local Line sums[R][B], none;\n  const auto line_of = [](float) { return none; };"
        "\n  none = sums[0][0];",
    ),
    _tile(
        "adds up in bf16",
        "a test of few columns with a tolerance of bf16",
        DOT,
        f"{{ {DOT} {IN_BF16.replace('SUM', 'sums[r][i]')} }}",
    ),
]

# Task 3.
FIRST = "BITS == 4 ? low_nibbles(line) : line;"
SECOND = "BITS == 4 ? high_nibbles(line) : bytes_at(w + (k + 4) * LINE);"
SECOND_DOT = "sums[r] = dot_fours<BITS == 4>(second, x + r * columns + k + 4, sums[r]);"


def _group(idea: str, survives: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.3", idea, QUANTIZED, survives, native=(old, new), inside="multiply_group")


GROUPS = [
    _group(
        "the upper halves first",
        "a test in which all columns are equal",
        f"{FIRST}\n    const Bytes second = {SECOND}",
        f"{FIRST.replace('low', 'high')}\n    const Bytes second = {SECOND.replace('high', 'low')}",
    ),
    _group("leaves the upper halves in the bytes", "a test of 8 bits", FIRST, "line;"),
    _group(
        "the second four columns of 8 bits begin four bytes further",
        "a test of 4 bits",
        SECOND,
        SECOND.replace("w + (k + 4) * LINE", "w + k * LINE + 4"),
    ),
    _group(
        "lines of 4 bits as far apart as those of 8",
        "a test of 8 bits",
        "w + k * LINE * BITS / 8",
        "w + k * LINE",
    ),
    _group("groups of 32, whatever was asked for", "a test of groups of 32", "k < group", "k < 32"),
    _group(
        "rows of x are as long as a group",
        "a test of one group",
        SECOND_DOT,
        SECOND_DOT.replace("r * columns", "r * group"),
    ),
    _group("the second four columns are never added", "a test in which half of x is 0", SECOND_DOT, ""),
    _group(
        "the second four columns replace the sum",
        "a test in which half of x is 0",
        SECOND_DOT,
        SECOND_DOT.replace("4, sums[r]", "4, no_ints()"),
    ),
    _group(
        "the same four columns of x twice",
        "a test in which x repeats",
        SECOND_DOT,
        SECOND_DOT.replace("k + 4", "k"),
    ),
]

# Task 4.
OF_EACH = "for (int i = 0; i < Q; i++) {\n    const int own = q + i;\n    "
MOST = "const float most = fmaxf(state.most[own], largest_of(lines[i]));"
SHRINK = "const float shrink = exp2f(state.most[own] - most);"
WEIGHTS = "lines[i] = powers_of_two(add(lines[i], line_of(-most)));"
TOTAL = "state.total[own] = state.total[own] * shrink + sum_of(lines[i]);"
SUM = (
    "for (int at = 0; at < d.lines(); at++) state.sum[own][at] = times(state.sum[own][at], line_of(shrink));"
)
KEPT = "state.most[own] = most;"
VALUES = "add_values<Q>(d, kv_head, tokens, state, q, lines);"


def _attend(idea: str, survives: str, old: str, new: str) -> Mutant:
    return Mutant("4.1.4", idea, ATTENTION, survives, native=(old, new), inside="attend_tokens")


ATTENDS = [
    _attend("`sum` never shrinks", "a test of at most 16 tokens", SUM, ""),
    _attend("`total` never shrinks", "a test of at most 16 tokens", TOTAL, TOTAL.replace(" * shrink", "")),
    _attend(
        "only the first line of `sum` shrinks",
        "a test of heads of 16",
        SUM,
        SUM.replace("at < d.lines()", "at < 1"),
    ),
    _attend("the largest score is not kept", "a test of at most 16 tokens", KEPT, ""),
    _attend(
        "the largest score of these tokens alone",
        "a test of scores that rise",
        MOST,
        "const float most = largest_of(lines[i]);",
    ),
    _attend(
        "the largest score is at least 0",
        "a test with a score above 0",
        MOST,
        MOST.replace("state.most[own]", "fmaxf(0, state.most[own])"),
    ),
    _attend(
        "grows where it must shrink",
        "a test of at most 16 tokens",
        SHRINK,
        SHRINK.replace("state.most[own] - most", "most - state.most[own]"),
    ),
    _attend(
        "e^x for what shrinks, and 2^x for the weights",
        "a test of at most 16 tokens",
        SHRINK,
        SHRINK.replace("exp2f", "expf"),
    ),
    _attend(
        "weights without the largest score",
        "a test of small scores",
        WEIGHTS,
        WEIGHTS.replace("line_of(-most)", "line_of(0)"),
    ),
    _attend(
        "the new weights shrink as well",
        "a test of at most 16 tokens",
        TOTAL,
        "state.total[own] = (state.total[own] + sum_of(lines[i])) * shrink;",
    ),
    _attend(
        "a sum of values that were added before it shrinks",
        "a test of scores that fall",
        SUM,
        "if (i == 0) add_values<Q>(d, kv_head, tokens, state, q, lines);\n    " + SUM,
    ),
    _attend(
        "the first Q queries, whatever q is",
        "a test of one head",
        "const int own = q + i;",
        "const int own = i;",
    ),
    _attend(
        "the largest score of the first query for all",
        "a test of one head",
        MOST,
        MOST.replace("lines[i]", "lines[0]"),
    ),
    _attend(
        "one largest score for the Q queries together",
        "a test in which all queries have scores of the same size",
        OF_EACH + MOST,
        "float most = -INFINITY;\n  for (int i = 0; i < Q; i++)\n    "
        "most = fmaxf(most, fmaxf(state.most[q + i], largest_of(lines[i])));\n  " + OF_EACH,
    ),
    _attend(
        "absent tokens count as one each",
        "a test of whole lines",
        TOTAL,
        TOTAL + "\n    state.total[own] += LINE - tokens.count;",
    ),
    _attend(
        "scores as weights of the values",
        "a test of `total`",
        WEIGHTS,
        WEIGHTS.replace("lines[i] =", "const Line weights ="),
    ),
]

MUTANTS = [*LINES, *TILES, *GROUPS, *ATTENDS]
