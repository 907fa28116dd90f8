"""The kernels in C++: each against NumPy on every path of instructions, and the library that holds them."""

import ctypes
import os
import platform
import select
import shlex
import subprocess
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, settings
from hypothesis import given as each
from hypothesis import strategies as st

from tiny_llm_engine.backends.samples import seconds_of
from tiny_llm_engine.machine.repo import SOURCES
from tiny_llm_engine.machine.user_cache import with_checksum
from tiny_llm_extensions.kernels.native import NativeKernels, library, peak_products
from tiny_llm_extensions.kernels.native import quantized_product as packing
from tiny_llm_extensions.kernels.native.attention import TOKENS, KeptArray
from tiny_llm_extensions.kernels.native.compile_errors import readable
from tiny_llm_extensions.kernels.native.kernel import FLOAT, NUMBER, POINTER, SIZE, empty, of_numpy, tiles_of

pytestmark = pytest.mark.tool("c++")

PACKAGE = "tiny_llm_ref.native"
FOLDER, GIVEN = SOURCES / "tiny_llm_ref" / "native", SOURCES / "tiny_llm_extensions" / "kernels" / "native"
X86 = platform.machine() in ("x86_64", "AMD64")
# What the kernels choose by the instructions: all of this machine's, those without its matrix unit, AVX2 with AVX-VNNI
# and alone, and loops for any processor.
HAS_UNIT = "amx_bf16" in library.processor() and not library.flags_here()
PATHS = ("", "-mno-avx512f", "-mno-avx512f -U__AVXVNNI__", "-mno-avx") if X86 else ("",)
PATHS = ("-mno-amx-bf16", *PATHS) if HAS_UNIT else PATHS
# The kernels are compiled once for all examples of a path.
SOME = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
KERNELS = NativeKernels(PACKAGE)
product, quantized_product = KERNELS.product, KERNELS.quantized_product
decode_attention = KERNELS.decode_attention


@pytest.fixture(params=PATHS, ids=lambda flags: flags or "native")
def path(request, monkeypatch):
    """Kernels compiled for some instructions."""
    with compiled_for(monkeypatch, library.FLAGS, request.param):
        yield request.param


class compiled_for:
    """Kernels are loaded anew with an environment variable, and again afterwards."""

    def __init__(self, monkeypatch, name, value):
        monkeypatch.setenv(name, value)

    def __enter__(self):
        forget()

    def __exit__(self, *error):
        forget()


def forget():
    for kernel in (product, quantized_product, decode_attention):
        for name in ("_functions", "_unit", "multiply_addresses", "multiply_many"):
            vars(kernel).pop(name, None)
    tiles_of.cache_clear()
    peak_products._kernel.cache_clear()


def bf16(array):
    """float32 to bf16 as uint16, and what these numbers are."""
    halves = ((np.asarray(array, np.float32).view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    return halves, widened(halves)


def widened(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32)


def given(array, dtype):
    """An array in this type for a kernel, and its numbers in float64."""
    if dtype == "bfloat16":
        halves, numbers = bf16(array)
        return halves, numbers.astype(np.float64)
    if dtype == "float16":
        halves = np.asarray(array, np.float16)
        return halves, halves.astype(np.float64)
    return np.asarray(array, np.float32), np.asarray(array, np.float32).astype(np.float64)


def numbers_of(array):
    return widened(array) if array.dtype == np.uint16 else array


# Products.


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(1, 16, 2), (1, 17, 3), (2, 64, 7), (5, 70, 33), (13, 300, 96), (7, 64, 1), (0, 8, 8), (65, 70, 96)],
)
def test_a_product_is_numpys(path, rng, shape, dtype, biased):
    """Tiles and what is left over of rows, outputs and columns."""
    R, O, I = shape
    x, wide_x = given(rng.normal(size=(R, I)), dtype)
    w, wide_w = given(rng.normal(size=(O, I)), dtype)
    bias = rng.normal(size=O).astype(np.float32) if biased else None
    arrays = of_numpy(x, dtype), of_numpy(product.pack(w), dtype), None if bias is None else of_numpy(bias)
    expected = wide_x @ wide_w.T + (0 if bias is None else bias)
    tolerance = {"rtol": 2**-8, "atol": 1e-4} if dtype == "bfloat16" else {"rtol": 1e-5, "atol": 1e-5}
    for in_tiles in (True, False):
        y = np.full((R, O), 7, x.dtype)
        product.multiply(*arrays, of_numpy(y, dtype), threads=2, in_tiles=in_tiles)
        np.testing.assert_allclose(numbers_of(y), expected, **tolerance)


def test_an_output_is_rounded_to_the_nearest_bf16(path):
    """Halfway between two numbers, to the even one; what is not a number stays none."""
    exact = np.array([1 + 2**-8, 1 + 3 * 2**-8, -(1 + 2**-8), np.inf, np.nan, 3.4e38], np.float32)
    y = np.zeros((1, len(exact)), np.uint16)
    nothing = np.zeros((1, 2), np.uint16)
    w = of_numpy(product.pack(np.zeros((len(exact), 2), np.uint16)), "bfloat16")
    product.multiply(of_numpy(nothing, "bfloat16"), w, of_numpy(exact), of_numpy(y, "bfloat16"))
    np.testing.assert_array_equal(widened(y)[0], [1, 1 + 2**-6, -1, np.inf, np.nan, np.inf])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize(
    ("dtype", "kind"), [(x, kind) for x in ("bfloat16", "float32") for kind in (x, "float16")]
)
def test_a_quantized_product_is_numpys_of_the_rounded_rows(path, rng, bits, group_size, dtype, kind):
    """Of all numbers there are: 8 bits times 127 twice does not fit into 16 bits, which AVX2 adds in."""
    for R, O in ((1, 5), (9, 37)):
        I = 2 * group_size
        plain, numbers = rng.normal(size=(R, I)), rng.integers(0, 2**bits, size=(O, I)).astype(np.uint8)
        plain[0], numbers[0] = 1, 2**bits - 1
        x, wide_x = given(plain, dtype)
        scales, wide_scales = given(rng.random((O, 2)), kind)
        biases, wide_biases = given(-(2 ** (bits - 1)) * rng.random((O, 2)), kind)
        y = np.zeros((R, O), x.dtype)
        constants = quantized_product.pack_constants(scales, biases)
        words = of_numpy(quantized_product.pack(numbers, bits))
        arrays = (of_numpy(x, dtype), words, of_numpy(constants, kind))
        quantized_product.multiply(*arrays, None, of_numpy(y, dtype), group_size, bits, threads=2)
        matrix = numbers.reshape(O, 2, -1) * wide_scales[..., None] + wide_biases[..., None]
        groups = wide_x.reshape(R, 2, -1).astype(np.float32)
        largest = np.abs(groups).max(-1, keepdims=True)
        rounded = (np.rint(groups * (np.float32(127) / largest)) * (largest / 127)).reshape(R, I)
        expected = rounded @ matrix.reshape(O, I).T
        found = numbers_of(y)
        # A number halfway between two bytes may become either: some processors multiply and add with one rounding.
        assert np.linalg.norm(found - expected) < 5e-3 * np.linalg.norm(expected)
        np.testing.assert_allclose(found[0], expected[0], rtol=2**-7, atol=1e-3)


@SOME
@each(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 70), st.integers(1, 3)),
    group_size=st.sampled_from([32, 64, 128]),
    bits=st.sampled_from([4, 8]),
    dtype=st.sampled_from(["bfloat16", "float32"]),
    is_half=st.booleans(),
    seed=st.integers(0, 9),
)
@example(
    (97, 48, 2), 32, 4, "float32", True, 0
)  # two tiles, of which the second one is filled up; three blocks
@example((33, 16, 1), 128, 8, "bfloat16", False, 1)
def test_products_in_tiles_are_those_of_the_solutions_kernel(
    path, shape, group_size, bits, dtype, is_half, seed
):
    """To the last bit, or nearer by a matrix unit; and near what float64 makes of them."""
    (R, O, G), rng = shape, np.random.default_rng(seed)
    x, wide_x = given(rng.normal(size=(R, G * group_size)), dtype)
    numbers = rng.integers(0, 2**bits, size=(O, G * group_size)).astype(np.uint8)
    kind = "float16" if is_half else dtype
    (scales, wide_scales), (biases, wide_biases) = (given(rng.normal(size=(O, G)), kind) for _ in range(2))
    bias = rng.normal(size=O).astype(np.float32)
    words = of_numpy(quantized_product.pack(numbers, bits))
    constants = of_numpy(quantized_product.pack_constants(scales, biases), kind)
    matrix = packing.PackedMatrix(quantized_product, words, constants, O, group_size, bits, 16)
    found = []
    for multiply in (quantized_product.multiply_addresses, quantized_product.multiply_many):
        y = np.zeros((R, O), x.dtype)
        addresses = x.ctypes.data, *matrix._addresses, bias.ctypes.data, y.ctypes.data
        assert multiply(*addresses, R, *matrix._sizes, dtype == "bfloat16", *matrix._kinds, 2) == 0
        found.append(y)
    if path or not HAS_UNIT:
        np.testing.assert_array_equal(*found)
    wide = numbers.reshape(O, G, -1) * wide_scales[..., None] + wide_biases[..., None]
    expected = wide_x @ wide.reshape(O, -1).T + bias
    rounding = 2**-8 if dtype == "bfloat16" else 1e-4
    assert np.linalg.norm(numbers_of(found[1]) - expected) <= rounding * np.linalg.norm(expected)


@pytest.mark.parametrize("place", [0, 1])
def test_constants_in_float16_are_exact(path, place):
    """All 65,536 of them as scales and as biases: subnormal ones, infinities and NaN too."""
    numbers = np.arange(2**16, dtype=np.uint16).view(np.float16)
    constants = np.zeros((2, 2**16, 1), np.float16)
    constants[place, :, 0] = numbers
    x, y = np.zeros((1, 32), np.float32), np.zeros((1, 2**16), np.float32)
    x[0, 5] = 127
    w = of_numpy(quantized_product.pack(np.ones((2**16, 32), np.uint8), 4))
    packed = of_numpy(quantized_product.pack_constants(*constants))
    quantized_product.multiply(of_numpy(x), w, packed, None, of_numpy(y), 32, 4)
    with np.errstate(invalid="ignore"):  # signalling NaN
        np.testing.assert_array_equal(y[0], 127 * numbers.astype(np.float32))


def test_a_quantized_product_hides_no_nan(path):
    x = np.ones((2, 64), np.float32)
    x[1, 40] = np.nan
    w = of_numpy(quantized_product.pack(np.ones((16, 64), np.uint8), 4))
    constants = of_numpy(
        quantized_product.pack_constants(np.ones((16, 2), np.float32), np.zeros((16, 2), np.float32))
    )
    y = np.zeros((2, 16), np.float32)
    quantized_product.multiply(of_numpy(x), w, constants, None, of_numpy(y), 32, 4)
    assert np.isnan(y[1]).all() and np.allclose(y[0], 64)


def test_numbers_of_words_are_those_of_day_2_2(rng):
    for bits in (4, 8):
        numbers = rng.integers(0, 2**bits, size=(3, 64)).astype(np.uint32)
        shifts = np.arange(0, 32, bits, dtype=np.uint32)
        words = (numbers.reshape(3, -1, 32 // bits) << shifts).sum(-1).astype(np.uint32)
        np.testing.assert_array_equal(packing.numbers_of(words, bits), numbers)


def test_products_in_registers_are_not_left_out(path):
    """Sixteen times the rounds take longer than four times: the compiler knows no result before."""
    run, few = peak_products._kernel(), 2**16
    assert run(few, 2) == 2 * run(few, 1)
    fast, slow = (min(seconds_of(partial(run, rounds, 1), 9)) for rounds in (few, 16 * few))
    assert slow > 4 * fast
    assert peak_products.peak_products() > 1e9


# Attention.


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(6, 2, 32), (4, 4, 16), (7, 1, 80), (16, 1, 256)])
def test_attention_of_decodes_is_numpys(path, rng, heads, kv_heads, size, dtype):
    """Runs of 1, 16, 17 and more tokens, of one request and of several, in any order of slots."""
    slots, starts, counts, runs = 200, [5, 100, 40, 150, 3], [1, 33, 17, 16, 40], [0, 1, 3, 5]
    query, wide_query = given(3 * rng.normal(size=(3, heads, size)), dtype)
    keys, wide_keys = given(rng.normal(size=(slots, kv_heads, size)), dtype)
    values, wide_values = given(rng.normal(size=(slots, kv_heads, size)), dtype)
    out, scale = np.zeros_like(query), size**-0.5
    arrays = [of_numpy(array, dtype) for array in (query, out)]
    pages = [KeptArray(of_numpy(array, dtype)) for array in (keys, values)]
    lists = [of_numpy(np.array(numbers, np.int64)) for numbers in (starts, counts, runs)]
    decode_attention.attend(arrays[0], *pages, arrays[1], *lists, scale, threads=2)
    for row in range(3):
        listed = range(runs[row], runs[row + 1])
        seen = np.concatenate([np.arange(starts[run], starts[run] + counts[run]) for run in listed])
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            scores = wide_keys[seen, kv_head] @ wide_query[row, head] * scale
            weights = np.exp(scores - scores.max())
            expected = weights / weights.sum() @ wide_values[seen, kv_head]
            atol = 0.02 if dtype == "bfloat16" else 1e-5
            np.testing.assert_allclose(numbers_of(out[row, head]), expected, atol=atol)


CHUNKS = [  # rows, tokens before them, window, heads, heads of keys, numbers of a head
    (1, 0, None, 4, 2, 32),
    (7, 0, None, 6, 2, 80),
    (21, 300, None, 4, 4, 16),
    (40, 530, 33, 8, 1, 64),
    (30, 0, 5, 2, 2, 256),
    (5, 1000, 2000, 3, 1, 48),
]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("rows", "past", "window", "heads", "kv_heads", "size"), CHUNKS)
def test_attention_of_a_chunk_is_numpys(path, rng, dtype, rows, past, window, heads, kv_heads, size):
    assert_chunk_is_numpys(path, rng, dtype, rows, past, window, heads, kv_heads, size)


@SOME
@each(
    rows=st.integers(1, 70),
    past=st.integers(0, 300),
    window=st.none() | st.integers(1, 90),
    heads=st.tuples(st.integers(1, 5), st.integers(1, 3)),
    size=st.integers(1, 6),
    dtype=st.sampled_from(["bfloat16", "float32"]),
)
def test_attention_of_chunks_of_any_shape_is_numpys(path, rows, past, window, heads, size, dtype):
    (queries, kv_heads), rng = heads, np.random.default_rng(rows + past)
    assert_chunk_is_numpys(path, rng, dtype, rows, past, window, queries * kv_heads, kv_heads, 16 * size)


def attend_chunk(query, keys, values, slots, out, scale, window):
    """Attention of the last rows of a text by `prompt_attention.cpp`, by two threads."""
    (rows, heads, size), kv_heads, tokens = query.shape, keys.shape[1], slots.shape[0]
    included = *library.UNIT, ("unit_attention.h", library.GIVEN)
    kernel = library.library("prompt_attention.cpp", library.GIVEN, included).attend_chunk
    kernel.argtypes = [POINTER] * 9 + [SIZE] * 6 + [FLOAT] + [NUMBER] * 2
    packed = [empty((kv_heads, tokens + -tokens % TOKENS, size), query.dtype) for _ in range(2)]
    written = (each.address for each in (slots, out, *packed))
    sizes = rows, tokens, heads, kv_heads, size, window or 0
    pages = keys.address, None, values.address, None
    kernel(query.address, *pages, *written, *sizes, scale, query.dtype == "bfloat16", 2)


def assert_chunk_is_numpys(path, rng, dtype, rows, past, window, heads, kv_heads, size):
    """Tokens at any slots; those of others hold NaN. Scores up to 100 and down to -100."""
    tokens = past + rows
    slots = rng.permutation(tokens + 50)[:tokens].astype(np.int64)
    pool = np.full((2, tokens + 50, kv_heads, size), np.nan)
    pool[:, slots] = rng.normal(size=(2, tokens, kv_heads, size))
    query, wide_query = given(8 * rng.normal(size=(rows, heads, size)), dtype)
    (keys, wide_keys), (values, wide_values) = (given(part, dtype) for part in pool)
    out, scale = np.zeros_like(query), size**-0.5
    pages = [of_numpy(array, dtype) for array in (keys, values)]
    places = of_numpy(slots), of_numpy(out, dtype)
    attend_chunk(of_numpy(query, dtype), *pages, *places, scale, window)
    in_unit = HAS_UNIT and not path and size % 32 == 0
    place = np.arange(tokens)
    seen = place <= past + np.arange(rows)[:, None]
    seen &= place > past + np.arange(rows)[:, None] - (window or tokens + 1)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = np.where(seen, wide_query[:, head] @ wide_keys[slots, kv_head].T * scale, -np.inf)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        expected = weights / weights.sum(1, keepdims=True) @ wide_values[slots, kv_head]
        # A score of 100 is rounded to 1e-5, and by a matrix unit, which multiplies 16 bits, to 1e-3.
        atol = 0.03 if dtype == "bfloat16" else 5e-4 if in_unit else 5e-5
        np.testing.assert_allclose(numbers_of(out[:, head]), expected, atol=atol)


# Between the products.


# What is wrong is an error before the call.


def test_wrong_arguments_are_refused():
    x, y = (of_numpy(np.zeros(shape, np.float32)) for shape in ((2, 8), (2, 16)))
    w = of_numpy(product.pack(np.zeros((16, 8), np.float32)))
    with pytest.raises(
        ValueError, match=r"w is \(1, 8, 16, 1\) float32, and must be \(1, 6, 16, 1\) float32"
    ):
        product.multiply(of_numpy(np.zeros((2, 6), np.float32)), w, None, y)
    with pytest.raises(ValueError, match=r"x is .* float64"):
        product.multiply(of_numpy(np.zeros((2, 8))), w, None, y)
    with pytest.raises(ValueError, match=r"bias is \(15,\) float32, and must be \(16,\) float32"):
        product.multiply(x, w, of_numpy(np.zeros(15, np.float32)), y)
    with pytest.raises(ValueError, match="must be contiguous"):
        of_numpy(np.zeros((4, 4))[:, 1:])
    with pytest.raises(ValueError, match="5 bits in groups of 64"):
        quantized_product.multiply(x, w, w, None, y, 64, 5)
    query = of_numpy(np.zeros((1, 3, 24), np.float32))
    keys = KeptArray(of_numpy(np.zeros((4, 1, 24), np.float32)))
    with pytest.raises(ValueError, match="3 heads of 24 numbers over 1 heads of keys"):
        decode_attention.attend(query, keys, keys, query, x, x, x, 1.0)


# The library.


def answer(loaded: ctypes.CDLL) -> int:
    return loaded.answer()


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """Sources by name, instead of the package's files, and an empty cache."""
    texts = {"lines.h": "", "kept.h": "", "kernel.cpp": 'extern "C" int answer() { return 42; }'}
    monkeypatch.setattr(library, "source", lambda name, package="": texts[name])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._library.cache_clear()
    yield texts
    library._library.cache_clear()


def test_a_library_is_compiled_once_for_each_text(sources, tmp_path, monkeypatch):
    assert answer(library.library("kernel.cpp")) == 42
    library._library.cache_clear()
    monkeypatch.setattr(library, "_compile", lambda *arguments: pytest.fail("it is compiled again"))
    assert answer(library.library("kernel.cpp")) == 42
    assert len(list((tmp_path / "tiny-llm" / "native").iterdir())) == 1


def test_half_a_library_is_compiled_again(sources, tmp_path):
    answer(library.library("kernel.cpp"))
    (kept,) = (tmp_path / "tiny-llm" / "native").iterdir()
    kept.with_name(kept.name.replace(".so", "0.so")).write_bytes(kept.read_bytes()[:500])
    kept.unlink()
    library._library.cache_clear()
    assert answer(library.library("kernel.cpp")) == 42


def test_another_processor_compiles_its_own(sources, tmp_path, monkeypatch):
    answer(library.library("kernel.cpp"))
    library._library.cache_clear()
    monkeypatch.setattr(library, "processor", lambda: "another one")
    answer(library.library("kernel.cpp"))
    assert len(list((tmp_path / "tiny-llm" / "native").iterdir())) == 2


def test_a_cache_that_cannot_be_written_does_no_harm(sources, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert answer(library.library("kernel.cpp")) == 42


def test_what_cannot_be_read_or_loaded_is_compiled_again(sources, tmp_path):
    """Something else under the name of a copy, and a whole copy that is no library here."""
    answer(library.library("kernel.cpp"))
    (kept,) = (tmp_path / "tiny-llm" / "native").iterdir()
    key = kept.with_name(kept.name.rpartition("-")[0])
    kept.unlink()
    key.with_name(f"{key.name}-00000000.so").mkdir()
    with_checksum(key, b"of another system").write_bytes(b"of another system")
    library._library.cache_clear()
    assert answer(library.library("kernel.cpp")) == 42


def test_libraries_that_were_not_used_for_a_month_are_removed(sources, tmp_path, monkeypatch):
    """When another one is kept: not the one that was loaded today, nor what is not ours."""
    folder = tmp_path / "tiny-llm" / "native"
    answer(library.library("kernel.cpp"))
    (used,) = folder.iterdir()
    others = [folder / name for name in ("old-0.so", "tmp0.part", "notes.txt", "new-0.so")]
    for file in (used, *others):
        file.touch()
        age = 1 if file == others[-1] else library.KEPT_DAYS + 1
        os.utime(file, (0, time.time() - age * 24 * 3600))
    library._library.cache_clear()
    answer(library.library("kernel.cpp"))  # from the cache
    sources["kernel.cpp"] += "// another text"
    answer(library.library("kernel.cpp"))
    found = set(folder.iterdir())
    assert {used, *others} & found == {used, *others[2:]} and len(found) == 4


def test_a_library_is_kept_while_another_process_removes_others(sources, tmp_path, monkeypatch):
    """The folder lists a file that is gone when its age is asked."""
    monkeypatch.setattr(library.Path, "iterdir", lambda folder: iter([folder / "gone.so"]))
    assert answer(library.library("kernel.cpp")) == 42
    assert len(os.listdir(tmp_path / "tiny-llm" / "native")) == 1


def test_a_compiler_may_have_several_words(sources, monkeypatch):
    """As in CXX="ccache g++"."""
    monkeypatch.setenv("CXX", f"env A='b c' {library.compiler()}")
    assert answer(library.library("kernel.cpp")) == 42
    monkeypatch.setenv("CXX", "g++ 'open")
    with pytest.raises(library.NativeError, match=r"CXX is \"g\+\+ 'open\": No closing quotation"):
        library.library("kernel.cpp")


def test_a_compiler_that_hangs_is_named(sources, monkeypatch):
    monkeypatch.setenv("CXX", "sh -c 'exec sleep 60'")
    monkeypatch.setattr(library, "SECONDS", 0.1)
    with pytest.raises(library.NativeError, match=r"sleep 60. was not done after 0.1 s"):
        library.library("kernel.cpp")


@pytest.mark.parametrize(
    "ends", [subprocess.TimeoutExpired("c++", 9), KeyboardInterrupt()], ids=["time", "Ctrl-C"]
)
def test_a_compiler_that_is_given_up_ends_with_its_children(sources, monkeypatch, tmp_path, ends):
    """The pipe is closed when its last writer has ended, and that is the child."""
    os.mkfifo(pipe := tmp_path / "pipe")
    monkeypatch.setenv("CXX", f"sh -c '(echo begun; exec sleep 600) > {pipe} & wait'")
    writers = []

    def give_up(process, timeout):
        writers.append(pipe.open(buffering=0, mode="rb"))  # waits until the child writes
        assert writers[0].readline() == b"begun\n"
        raise ends

    monkeypatch.setattr(subprocess.Popen, "communicate", give_up)
    with pytest.raises((library.NativeError, KeyboardInterrupt)):
        library.library("kernel.cpp")
    with writers[0] as child:
        assert select.select([child], [], [], 10)[0] and child.read() == b""


PARALLEL = """extern "C" int answer() {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < 42; i++) sum++;
  return sum;
}"""


def test_a_compiler_that_knows_no_processor_and_no_openmp_compiles_for_one_thread(
    sources, monkeypatch, tmp_path, capsys
):
    """It says so once, and not of kernels that share nothing."""
    sources["other.cpp"] = sources["kernel.cpp"]
    sources |= {"parallel.cpp": PARALLEL, "kernel.cpp": PARALLEL + "\n"}
    assert answer(library.library("parallel.cpp")) == 42 and capsys.readouterr().err == ""
    program = tmp_path / "c++"
    refused = '  case "$word" in -fopenmp|-m*) echo "unknown option $word" >&2; exit 1;; esac\n'
    found = library.compiler()
    program.write_text(f'#!/bin/sh\nfor word; do\n{refused}done\nexec {found} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("CXX", str(program))
    assert answer(library.library("other.cpp")) == 42 and capsys.readouterr().err == ""
    assert answer(library.library("kernel.cpp")) == answer(library.library("parallel.cpp")) == 42
    says = f"kernels in C++ run on one thread: {program} has no OpenMP for this process\n"
    assert capsys.readouterr().err == says
    assert library._accepted_flags(library.compiler(), library.SETS_OF_FLAGS) == ()


@pytest.mark.parametrize(("threads", "expected"), [("libgomp", 42), ("libomp", 43), ("", 43)])
def test_clangs_openmp_is_not_used_beside_gccs(sources, monkeypatch, threads, expected):
    """They do not share threads. Instead of clang, a word that its OpenMP has in its names."""
    sources["kernel.cpp"] = """
#ifdef THREADS
extern "C" const char* mark() { return "__kmpc_"; }
extern "C" int answer() { return 43; }
#else
extern "C" int answer() { return 42; }
#endif
"""
    monkeypatch.setattr(library, "SETS_OF_FLAGS", (("-DTHREADS",),))
    monkeypatch.setattr(library, "_share_threads", lambda: threads)
    assert answer(library.library("kernel.cpp")) == expected


def test_a_processor_has_a_name_where_there_is_no_proc(monkeypatch):
    monkeypatch.setattr(library.Path, "read_text", lambda *a, **b: (_ for _ in ()).throw(OSError))
    done = subprocess.CompletedProcess([], 0, "Apple M2\n")
    monkeypatch.setattr(library.subprocess, "run", lambda *a, **b: done)
    assert library.processor() == f"{platform.machine()} Apple M2" and library._share_threads() == ""


def test_without_a_compiler_there_is_one_reason(sources, monkeypatch):
    monkeypatch.setenv(library.SWITCH, "0")
    with pytest.raises(library.NativeError, match="TINY_LLM_NATIVE is 0"):
        library.library("kernel.cpp")
    monkeypatch.delenv(library.SWITCH)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(library.NativeError, match=r"no C\+\+ compiler: no-such-compiler not found"):
        library.library("kernel.cpp")


def test_an_error_in_a_kernel_is_the_compilers(sources):
    sources["kernel.cpp"] = "int answer() { return 42 }"
    with pytest.raises(library.CompileError, match=r"(?s)kernel.cpp does not compile.*expected"):
        library.library("kernel.cpp")


GCC = """\
product.cpp: In function 'int multiply_line()':
product.cpp:43:14: error: 'k' was not declared in this scope
   43 |   Line sum = k;
      |              ^
product.cpp:50:1: note: candidate
product.cpp:43:14: error: 'k' was not declared in this scope
   43 |   Line sum = k;
      |              ^
"""


def test_a_forgotten_return_is_an_error_of_the_compiler(sources):
    """Without it the function runs on into the next one, which looks like a pointer that ran away."""
    sources["kernel.cpp"] = 'extern "C" int answer() {}'
    with pytest.raises(library.CompileError, match=r"no return statement|does not return a value"):
        library.library("kernel.cpp")


def test_a_compilers_errors_have_their_places_in_the_file_itself():
    """Notes and what is said twice are left out; more than three errors are counted."""
    first = "src/tiny_llm/native/product.cpp:43:14: error: 'k' was not declared in this scope"
    source = "   43 |   Line sum = k;\n      |              ^"
    folder = Path.cwd() / "src" / "tiny_llm" / "native"
    assert readable(GCC, folder) == f"{first}\n{source}"
    many = "".join(f"lines.h:{line}: error: no {line}\n" for line in range(5))
    expected = [f"/elsewhere/lines.h:{line}: error: no {line}" for line in range(3)]
    assert readable(many, Path("/elsewhere")).splitlines() == [*expected, "… and 2 more"]
    assert readable("c++: no such option\n", folder) == "c++: no such option\n"


def test_a_blank_task_has_its_address(sources):
    """What a stub returns; the products of an engine do without it."""
    source, line = (FOLDER / "product.cpp").read_text(), "  Line sums[R][B];"
    blank = source.replace(line, f"  return 2;\n{line}", 1)
    sources.update({"product.cpp": blank} | {name: (GIVEN / name).read_text() for name in library.HEADERS})
    forget()
    x, y = (of_numpy(np.zeros(shape, np.float32)) for shape in ((2, 8), (2, 64)))
    w = of_numpy(product.pack(np.zeros((64, 8), np.float32)))
    try:
        with pytest.raises(NotImplementedError, match="week 4 day 1 task 2: multiply_tile"):
            product.multiply(x, w, None, y)
    finally:
        forget()


@pytest.mark.parametrize(
    ("kept", "path"),
    [("AS_QUERIES", ""), *((kept, f"{PATHS[-1]} -DPAGES_ALONE") for kept in ("INT8", "E4M3"))],
)
def test_the_sanitizers_find_nothing(kept, path):
    """A process of its own: the sanitizers must be loaded before anything else.

    Pages in eight bits are read as on any processor; what this one has of its own reads them in `test_native_step.py`.
    """
    program = driver(f"-DKEPT={kept}", *shlex.split(path))
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0 and done.stdout == "kernels ran: 0\n", done.stderr[-2000:]


def driver(*defined: str) -> Path:
    """The driver with the kernels and the sanitizers: kept, as libraries are, since it compiles for seconds."""
    flags = (
        "-std=c++17 -O0 -g -march=native -Wno-psabi -fsanitize=address,undefined -fno-sanitize-recover=all"
    )
    folders, command = [Path(__file__).parent, FOLDER, GIVEN], library.compiler()
    sources = sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".cpp", ".h"))
    texts = tuple((file.name, file.read_text(encoding="utf-8")) for file in sources)
    kept = library._kept((texts, command, shlex.join([flags, *defined]), ()), "driver").with_suffix(".so")
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}.part")
        line = [*shlex.split(f"{command} {flags}"), *defined, f"-I{FOLDER}", f"-I{GIVEN}"]
        subprocess.run([*line, str(folders[0] / "driver.cpp"), "-o", str(part)], check=True)
        part.replace(kept)
    return kept
