"""Week 4 Day 1: kernels of your own. Oracle: NumPy in float64.

Tests with `s` give a kernel arrays of NumPy in a child process, with guards around them; those with `b` use it through
the port's own classes, after the same arrays have gone through a child.
"""

import os

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.kernels import attend, multiply, multiply_quantized, rounded
from support.quantized import FORMATS
from tiny_llm_course.cut import language_of
from tiny_llm_engine.machine.ram import processor_name
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.native import library

pytestmark = pytest.mark.tool("c++")

TYPES = ["float32", "bfloat16"]
ROUNDING = {"float32": 2**-20, "bfloat16": 2**-8}  # of an output, beside that of its sum


@pytest.fixture
def b(b):
    """The port on a CPU, for which the kernels are, whatever device the run has."""
    return b if b.device == "cpu" else Port(b.solution.__name__.partition(".")[0], b.name, "cpu")


def drawn(rng, *shapes, biased: bool = False) -> list:
    """For each (R, O, I) x, W and a bias or None, of any numbers."""
    return [
        (rng.normal(size=(R, I)), rng.normal(size=(O, I)), rng.normal(size=O) if biased else None)
        for R, O, I in shapes
    ]


def check_products(solution, cases: list, dtype: str, idea: str, in_tiles: bool) -> None:
    """Compare x @ Wᵀ + bias of each case with NumPy, of numbers that are rounded to the type."""
    __tracebackhide__ = True
    for (x, w, bias), actual in zip(cases, multiply(solution, cases, dtype, in_tiles), strict=True):
        assert_product(actual, x, w, bias, dtype, idea)


def assert_product(actual, x, w, bias, dtype: str, idea: str) -> None:
    __tracebackhide__ = True
    x, w = rounded(x, dtype), rounded(w, dtype)
    size = 1e-6 * (np.abs(x) @ np.abs(w).T).max(initial=1)
    expected = x @ w.T + (0 if bias is None else bias)
    named = f"{idea} ({len(x)} rows, {len(w)} outputs, {x.shape[1]} columns, {dtype})"
    assert_close(actual, expected, atol=size, rtol=ROUNDING[dtype], idea=named)


def check_port(b, cases: list, dtype: str, idea: str) -> None:
    """The same products through `NativeMatrix`, on this port's arrays and threads."""
    __tracebackhide__ = True
    check_products(b, cases, dtype, idea, in_tiles=True)
    for x, w, bias in cases:
        y = given_of(b).native_matrix(b.array(w, dtype))(
            b.array(x, dtype), None if bias is None else b.array(bias)
        )
        assert y.dtype == b.dtype(dtype), "the product must have the type of x"
        assert_product(b.numpy(y), x, w, bias, dtype, idea)


# A line: one row of x by one block of 16 outputs.


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_takes_the_columns_in_order(s, dtype):
    """Column k of x is 2^k and a weight is 1 at one column, so an output says which column it has read."""
    x, w = 2.0 ** np.arange(8)[None], np.eye(16, 8)
    idea = (
        f"output o is Σ x[k] · W[o, k]: a line has {2 if dtype == 'bfloat16' else 1} columns of each output"
    )
    check_products(s, [(x, w, None)], dtype, idea, in_tiles=False)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_of_each_row_and_block(s, rng, dtype):
    """Rows of x, blocks of W and outputs of y begin where the rows and blocks before them end."""
    idea = "row r of x is at r · columns, block b of W at p.block(b), output (r, 16 b) at r · outputs + 16 b"
    check_products(s, drawn(rng, (1, 16, 6), (1, 32, 8), (3, 48, 4)), dtype, idea, in_tiles=False)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_of_any_number_of_columns(s, rng, dtype):
    """Behind x in memory is NaN, which times the 0 of the padding is NaN; the last bf16 column has no partner."""
    idea = "an odd number of columns: the last one of bf16 goes alone, and nothing is read behind it"
    check_products(s, drawn(rng, (1, 16, 1), (2, 16, 7), (3, 32, 33)), dtype, idea, in_tiles=False)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_writes_the_outputs_that_there_are(s, rng, dtype):
    """The last block may have 1 to 16 outputs; what follows y in memory stays as it is."""
    idea = "the last block has outputs - 16 b of them: store_outputs takes the number of all outputs"
    check_products(s, drawn(rng, (1, 1, 4), (1, 17, 6), (3, 37, 5)), dtype, idea, in_tiles=False)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_adds_the_bias_once(s, rng, dtype):
    cases = drawn(rng, (1, 16, 4), (3, 37, 5), biased=True)
    cases.append((np.zeros((2, 6)), np.zeros((40, 6)), np.arange(40.0)))
    idea = "each output has its own bias, once: store_outputs adds it"
    check_products(s, cases, dtype, idea, in_tiles=False)


@pytest.mark.task("4.1.1")
def test_line_adds_up_in_float32(s):
    """4,096 ones: a sum in bf16 would stop at 256 or 512, where adding 1 or 2 changes nothing any more.

    Of 2,048 weights of 1 + 1/64 it loses 2 in every 128, also if it is rounded now and then only.
    """
    cases = [(np.ones((1, n)), np.full((16, n), w), None) for n, w in ((4096, 1.0), (2048, 1 + 2**-6))]
    check_products(s, cases, "bfloat16", "the sum is a Line of floats until it is stored", in_tiles=False)


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_keeps_nan_where_it_belongs(s, rng, dtype):
    """A NaN in one row of x makes that row NaN, one in a row of W makes that output NaN, and nothing else."""
    [(x, w, _)] = drawn(rng, (3, 20, 6))
    x[1, 5], w[18, 0] = np.nan, np.nan
    [y] = multiply(s, [(x, w, None)], dtype, in_tiles=False)
    expected = np.zeros((3, 20), bool)
    expected[1], expected[:, 18] = True, True
    assert_close(np.isnan(y), expected, idea="NaN reaches exactly the outputs that have it among their terms")


@pytest.mark.task("4.1.1")
@pytest.mark.parametrize("dtype", TYPES)
def test_line_through_the_port(b, rng, dtype):
    """One row and few outputs: a product that has no whole tile."""
    cases = [*drawn(rng, (1, 16, 6), (1, 7, 9)), *drawn(rng, (1, 16, 31), biased=True)]
    check_port(b, cases, dtype, "x @ Wᵀ + bias" + OR_EARLIER)


# A tile: several rows of x by several blocks.


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_of_neighbouring_blocks(s, rng, dtype):
    """As many blocks as a tile may have, and more of them."""
    idea = "the lines of neighbouring blocks are p.block(b + 1) - p.block(b) numbers apart"
    check_products(s, drawn(rng, (1, 64, 2), (2, 64, 8), (2, 192, 6)), dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_of_four_blocks_on_any_processor(s, rng, dtype, monkeypatch):
    """Without AVX-512 a tile has one block; yours has to be right on every processor."""
    monkeypatch.setenv(library.FLAGS, f"{os.environ.get(library.FLAGS, '')} -DBLOCKS_OF_A_TILE=4")
    idea = (
        "with BLOCKS_OF_A_TILE=4, as on AVX-512: block b + i has its own lines, p.block(b + 1) - p.block(b) numbers "
        "after those of block b + i - 1, and its own outputs, from 16 (b + i) on"
    )
    check_products(s, drawn(rng, (2, 64, 8), (7, 130, 5), biased=True), dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_of_several_rows(s, rng, dtype):
    """More rows than a tile has, so that a tile begins at a row that is not 0, and rows are left over."""
    idea = (
        "row + r of x is at (row + r) · columns, and of y at (row + r) · outputs; each row has its own sums"
    )
    check_products(s, drawn(rng, *((R, 64, 8) for R in range(2, 15))), dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_of_any_number_of_columns(s, rng, dtype):
    """An odd last column, behind the last row NaN, and before that one the numbers of the next row."""
    idea = "the last of an odd number of bf16 columns goes alone, in each row"
    check_products(s, drawn(rng, (1, 64, 1), (6, 64, 5), (13, 64, 33)), dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_writes_the_outputs_that_there_are(s, rng, dtype):
    """The last block of the last tile is not full."""
    idea = "output (row + r, 16 (b + i)), and store_outputs knows how many outputs there are"
    check_products(s, drawn(rng, (1, 50, 4), (7, 61, 6), (13, 113, 7)), dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_adds_the_bias_of_each_output(s, rng, dtype):
    cases = drawn(rng, (1, 64, 4), (13, 70, 5), biased=True)
    cases.append((np.zeros((7, 6)), np.zeros((64, 6)), np.arange(64.0)))
    idea = "block b + i has the biases from 16 (b + i) on, the same for every row"
    check_products(s, cases, dtype, idea, in_tiles=True)


@pytest.mark.task("4.1.2")
def test_tile_is_no_loop_over_lines(s, rng):
    """One row by one block after the other loads every line of W again for each row, which a tile is there to save."""
    check_products(s, drawn(rng, (2, 64, 8)), "float32", "x @ Wᵀ" + OR_EARLIER, in_tiles=True)
    text = library.source("product.cpp", f"{s.__name__.partition('.')[0]}.native")
    first, after = language_of("product.cpp").span_of(text, "multiply_tile")
    tile = "".join(text.splitlines(keepends=True)[first:after])
    assert "multiply_line" not in tile, "multiply_tile calls multiply_line: keep R × B sums side by side"


@pytest.mark.task("4.1.2")
def test_tile_adds_up_in_float32(s):
    cases = [(np.ones((7, 4096)), np.ones((64, 4096)), None)]
    check_products(s, cases, "bfloat16", "the sums are Lines of floats until they are stored", in_tiles=True)


@pytest.mark.task("4.1.2")
@pytest.mark.parametrize("dtype", TYPES)
def test_tile_through_the_port(b, rng, dtype):
    """Any sizes, on this port's arrays and threads."""
    cases = [*drawn(rng, (1, 64, 7), (5, 70, 33)), *drawn(rng, (13, 300, 96), biased=True)]
    check_port(b, cases, dtype, "x @ Wᵀ + bias" + OR_EARLIER)


# Integer products of a group.


def whole(rng, rows: int, groups: int, group_size: int) -> np.ndarray:
    """(R, I) whole numbers that rounding to bytes leaves alone: each group has 127 among them."""
    x = rng.integers(-127, 128, size=(rows, groups, group_size))
    x[..., rng.integers(group_size)] = 127
    return x.reshape(rows, -1).astype(float)


def check_groups(s, cases: list, group_size: int, bits: int, idea: str) -> None:
    """x (whole numbers), the matrix's numbers, its scales and its biases, against NumPy."""
    __tracebackhide__ = True
    found = multiply_quantized(s, cases, group_size, bits)
    for (x, q, scales, biases), actual in zip(cases, found, strict=True):
        w = q.reshape(len(q), -1, group_size) * scales[..., None] + biases[..., None]
        expected = x @ w.reshape(len(q), -1).T
        named = f"{idea} ({bits} bits, groups of {group_size}, {len(x)} rows, {len(q)} outputs)"
        assert_close(actual, expected, atol=1e-5 * np.abs(expected).max(), rtol=1e-5, idea=named)


def plain(x: np.ndarray, q: np.ndarray, group_size: int) -> tuple:
    """A case whose scales are 1 and biases 0: the products of its integers."""
    shape = len(q), q.shape[1] // group_size
    return x, q, np.ones(shape), np.zeros(shape)


def words_of(q: np.ndarray, bits: int) -> np.ndarray:
    """Words of 32 bits as on Day 2.2: the first number of a word is in its lowest bits."""
    neighbours = q.astype(np.uint32).reshape(len(q), -1, 32 // bits)
    return np.bitwise_or.reduce(neighbours << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)


@pytest.mark.task("4.1.3")
@pytest.mark.parametrize("bits", [4, 8])
def test_group_takes_the_columns_in_order(s, bits):
    """One column of x is not 0: the output is that column of the matrix, times 127."""
    q = (np.arange(16)[:, None] * 5 + np.arange(32) * 3) % 2**bits
    cases = [plain(127.0 * np.eye(32)[k : k + 1], q, 32) for k in range(32)]
    halves = "of 8 columns the first four are in the lower halves of the bytes, the others in the upper ones"
    bytes_ = "a line has four columns, and the next four are 64 bytes further"
    check_groups(s, cases, 32, bits, halves if bits == 4 else bytes_)


@pytest.mark.task("4.1.3")
@pytest.mark.parametrize(("group_size", "bits"), FORMATS)
def test_group_of_every_size(s, rng, group_size, bits):
    """All columns of a group, and no more: the next group has another scale."""
    cases = []
    for R, O, G in ((1, 16, 1), (1, 16, 3), (1, 37, 2)):
        q, x = rng.integers(0, 2**bits, size=(O, G * group_size)), whole(rng, R, G, group_size)
        cases.append((x, q, rng.uniform(0.5, 2, size=(O, G)), rng.normal(size=(O, G))))
    check_groups(s, cases, group_size, bits, f"a group has {group_size} columns, from `w` and from `x` on")


@pytest.mark.task("4.1.3")
@pytest.mark.parametrize("bits", [4, 8])
def test_group_of_several_rows(s, rng, bits):
    """Rows of x are `columns` bytes apart, which is more than a group."""
    cases = []
    for R in (2, 3, 5, 8, 9, 17):
        q, x = rng.integers(0, 2**bits, size=(20, 96)), whole(rng, R, 3, 32)
        cases.append((x, q, rng.uniform(0.5, 2, size=(20, 3)), rng.normal(size=(20, 3))))
    check_groups(s, cases, 32, bits, "row r of the group is at x + r · columns, and has its own sums")


@pytest.mark.task("4.1.3")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("flags", ["", "-mno-avx512f"] if "avx512" in processor_name() else [""])
def test_group_of_the_largest_numbers(s, monkeypatch, bits, flags):
    """128 times 127 · 255: the sums are integers of 32 bits, and the matrix's numbers have no sign.

    Also as on a processor without AVX-512, where only the numbers of 4 bits are small.
    """
    monkeypatch.setenv(library.FLAGS, f"{os.environ.get(library.FLAGS, '')} {flags}".strip())
    most = np.full((16, 128), 2**bits - 1)
    cases = [plain(sign * np.full((R, 128), 127.0), most, 128) for sign in (1, -1) for R in (1, 9)]
    idea = f"{2**bits - 1} is {2**bits - 1} and not a negative number; the rounded row has signs"
    check_groups(s, cases, 128, bits, idea)


@pytest.mark.task("4.1.3")
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("group_size", "bits"), FORMATS)
def test_group_through_the_port(b, rng, group_size, bits, dtype):
    """The words of Day 2.2 and any x, which is rounded to bytes: about 0.6 % of the product's norm."""
    sizes, cases = ((1, 16), (9, 37)), []
    for R, O in sizes:
        q = rng.integers(0, 2**bits, (O, 2 * group_size))
        scales = rounded(rng.uniform(0.5, 2, (O, 2)), dtype)
        biases = rounded(-(2**bits) * rng.random((O, 2)), dtype)
        cases.append((whole(rng, R, 2, group_size), q, scales, biases))
    check_groups(b, cases, group_size, bits, "x @ Wᵀ" + OR_EARLIER)
    for (R, O), (_, q, scales, biases) in zip(sizes, cases, strict=True):
        x, bias = rng.normal(size=(R, 2 * group_size)), rng.normal(size=O)
        parts = b.array(words_of(q, bits)), b.array(scales, dtype), b.array(biases, dtype)
        weights = b.QuantizedWeights(*parts, group_size, bits)
        actual = given_of(b).native_quantized(weights)(b.array(x, dtype), b.array(bias))
        assert actual.dtype == b.dtype(dtype), "the product must have the type of x"
        w = q.reshape(O, 2, -1) * scales[..., None] + biases[..., None]
        expected = rounded(x, dtype) @ w.reshape(O, -1).T + bias
        off = np.linalg.norm(b.numpy(actual) - expected) / np.linalg.norm(expected)
        assert off < 0.02, f"{100 * off:.1f} % of the product's norm is more than rounding costs" + OR_EARLIER


# Attention of decodes.

SLOTS = 160


def attended(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, texts: list, scale: float
) -> np.ndarray:
    """Softmax attention of each row over the slots of its runs, in float64."""
    out = np.zeros(query.shape)
    for row, text in enumerate(texts):
        seen = np.concatenate([np.arange(start, start + count) for start, count in text])
        for head in range(query.shape[1]):
            kv_head = head // (query.shape[1] // keys.shape[1])
            scores = keys[seen, kv_head] @ query[row, head] * scale
            weights = np.exp(scores - scores.max())
            out[row, head] = weights / weights.sum() @ values[seen, kv_head]
    return out


def pools(rng, rows: int, heads: int, kv_heads: int, size: int) -> tuple:
    """Query (R, H, D), keys and values (S, Hkv, D)."""
    shapes = (rows, heads, size), (SLOTS, kv_heads, size), (SLOTS, kv_heads, size)
    return tuple(rng.normal(size=shape) for shape in shapes)


def check_attention(solution, cases: list, scale: float, idea: str, dtype: str = "float32") -> None:
    __tracebackhide__ = True
    for case, actual in zip(cases, attend(solution, cases, scale, dtype), strict=True):
        *arrays, texts = case
        assert_attention(actual, [rounded(array, dtype) for array in arrays], texts, scale, dtype, idea)


def assert_attention(actual, arrays: list, texts: list, scale: float, dtype: str, idea: str) -> None:
    __tracebackhide__ = True
    (_, heads, size), kv_heads = arrays[0].shape, arrays[1].shape[1]
    counts = [[count for _, count in text] for text in texts]
    named = f"{idea} (runs of {counts} tokens, {heads} heads over {kv_heads}, size {size}, {dtype})"
    limits = {"atol": 2e-5, "rtol": 2e-5} if dtype == "float32" else {"atol": 0.02, "rtol": 2**-7}
    assert_close(actual, attended(*arrays, texts, scale), **limits, idea=named)


@pytest.mark.task("4.1.4")
def test_attention_to_up_to_sixteen_tokens(s, rng):
    """One call, in which nothing has to shrink; of one token the output is its value."""
    cases = [(*pools(rng, 1, 1, 1, 16), [[(3, count)]]) for count in (1, 2, 15, 16)]
    idea = "the weights are 2^(score - most), and `total` is their sum; absent tokens have a score of -∞"
    check_attention(s, cases, 0.25, idea)


@pytest.mark.task("4.1.4")
def test_attention_to_more_than_sixteen_tokens(s, rng):
    """Several calls, of which each may find a larger score: all that is there must shrink by 2^(old - new)."""
    cases = [(*pools(rng, 1, 1, 1, 32), [[(0, count)]]) for count in (17, 32, 33, 100)]
    idea = (
        "when the largest score grows, `sum` and `total` shrink, all lines of them, before anything is added"
    )
    check_attention(s, cases, 1.0, idea)


@pytest.mark.task("4.1.4")
@pytest.mark.parametrize("order", ["rising", "falling", "one peak"])
def test_attention_with_large_scores(s, rng, order):
    """Scores up to ±1,000: weights without the largest score would be infinite, or all of them 0.

    The second query's scores are the first one's with the other sign: one largest score for both leaves no weight.
    """
    at = np.arange(64)
    heights = {"rising": at - 80.0, "falling": -at - 20.0, "one peak": 70.0 - 4 * np.abs(at - 30)}[order]
    query, keys, values = pools(rng, 1, 2, 1, 16)
    keys[:64] = heights[:, None, None]
    query[:] = [[1], [-1]]
    cases = [(query, keys, values, [[(0, 64)]]), (query, keys, values, [[(0, 20), (30, 5)]])]
    idea = "each query's largest score so far, of this call and those before, is subtracted from its scores"
    check_attention(s, cases, 1.0, idea)


@pytest.mark.task("4.1.4")
def test_attention_starts_anew_with_the_largest_score(s, rng):
    """All scores are -200 or less: a largest score that starts at 0 leaves no weight at all."""
    query, keys, values = pools(rng, 1, 1, 1, 16)
    query[:], keys[:] = 1, -200 / 16 + 0.1 * rng.normal(size=keys.shape)
    idea = "`most` begins at -∞, and not at 0; 2^-∞ is 0"
    check_attention(s, [(query, keys, values, [[(0, 40)]])], 1.0, idea)


@pytest.mark.task("4.1.4")
@pytest.mark.parametrize("dtype", TYPES)
def test_attention_over_runs(s, rng, dtype):
    """Requests with runs of 1, 16, 17 and more slots, in any order of slots; their order changes no output."""
    texts = [[(5, 1)], [(100, 33), (40, 17)], [(20, 16), (3, 1), (60, 40)], [(60, 40), (20, 16), (3, 1)]]
    query, keys, values = pools(rng, 4, 2, 1, 32)
    query[3] = query[2]
    idea = "the state is kept from run to run, and begins anew for each request"
    check_attention(s, [(query, keys, values, texts)], 32**-0.5, idea, dtype)


@pytest.mark.task("4.1.4")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(4, 4, 16), (6, 2, 48), (7, 1, 80), (32, 2, 16), (16, 1, 256)]
)
def test_attention_of_grouped_heads(s, rng, heads, kv_heads, size):
    """1, 3, 7 and 16 queries share a head of keys, and are taken four, two and one at a time."""
    case = (*pools(rng, 2, heads, kv_heads, size), [[(7, 20)], [(90, 3), (30, 18)]])
    idea = "query q + i has its own `most`, `total` and `sum`: each of the Q queries, from q on"
    check_attention(s, [case], 2 * size**-0.5, idea)


@pytest.mark.task("4.1.4")
def test_attention_reads_nothing_but_its_runs(s, rng):
    """All other slots hold NaN."""
    query, keys, values = pools(rng, 1, 2, 1, 16)
    text, seen = [(10, 5), (40, 17)], [*range(10, 15), *range(40, 57)]
    for pool in (keys, values):
        pool[np.setdiff1d(np.arange(SLOTS), seen)] = np.nan
    idea = "absent tokens have the weight 0, and their values are not read" + OR_EARLIER
    check_attention(s, [(query, keys, values, [text])], 0.25, idea)
