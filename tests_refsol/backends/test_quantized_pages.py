"""Pages in eight bits: what rounding keeps, that every way to read them reads the same, and who writes them."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from support.close import assert_close
from support.packed import PackedServing
from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_engine.arrays.torch import hpu
from tiny_llm_extensions.profiling.kv_budget import kv_bytes_per_token

KINDS = ["int8", "fp8_e4m3"]
SMALLEST = 2.0**-99  # of numbers so small that a scale is subnormal, bf16 has fewer digits
FLOATS = st.floats(-(2.0**99), 2.0**99, width=32).map(lambda x: x if abs(x) > SMALLEST else 0.0)


def pages_of(b):
    return import_module(f"tiny_llm_engine.arrays.{b.name}.quantized_pages")


def pool_of(b, kind, dtype="float32", num_blocks=5, page_size=3, heads=2, size=32):
    pools = import_module(f"tiny_llm_engine.arrays.{b.name}.kv_pools")
    rows = b.quantize_rows if kind == "int8" else None
    return pools.QuantizedKvPool(num_blocks, page_size, heads, size, b.dtype(dtype), rows)


def e4m3(x):
    """NumPy's numbers as the nearest of e4m3, by torch's conversion."""
    wide = torch.tensor(np.clip(x, -448, 448), dtype=torch.float32)
    return wide.to(torch.float8_e4m3fn).float().numpy()


# ---- rounding


@settings(max_examples=60)
@given(
    x=arrays.arrays(np.float32, st.tuples(st.integers(1, 4), st.sampled_from([1, 16, 40])), elements=FLOATS)
)
def test_int8_is_half_a_step_away_at_most(b, x):
    """A step is a scale; the largest number of a row is 127 of them, and their opposites are kept alike."""
    codes, scales = (b.numpy(part) for part in b.quantize_rows(b.array(x)))
    assert codes.dtype == np.int8 and codes.min() >= -127
    opposite, same = (b.numpy(part) for part in b.quantize_rows(b.array(-x)))
    np.testing.assert_array_equal(opposite, -codes)
    np.testing.assert_array_equal(same, scales)
    errors = np.abs(codes * scales[:, None].astype(np.float64) - x)
    # A scale in bf16 may be 1/512 too small: then 127.25 of them are the largest number.
    assert (errors <= 0.501 * scales[:, None]).all()


def test_rows_of_zeros_stay_zeros(b):
    codes, scales = (b.numpy(part) for part in b.quantize_rows(b.array(np.zeros((2, 16)))))
    assert not codes.any() and not scales.any()


@settings(max_examples=60)
@given(x=arrays.arrays(np.float32, (2, 16), elements=st.floats(-600, 600, width=32)))
def test_fp8_is_the_nearest_number_or_the_largest(b, x):
    found = pages_of(b).QuantizedPages(pages_of(b).to_fp8(b.array(x)), None, b.dtype("float32")).numbers()
    np.testing.assert_array_equal(b.numpy(found), e4m3(x))


@pytest.mark.port("torch")
def test_fp8_of_a_gaudi_2_ends_at_240(monkeypatch):
    names = iter(["GAUDI2", "GAUDI3"])
    monkeypatch.setattr(torch, "hpu", SimpleNamespace(get_device_name=lambda: next(names)), raising=False)
    assert [hpu.largest_fp8(device) for device in ("hpu", "hpu", "cuda")] == [240.0, 448.0, 448.0]


# ---- the pool


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_says_what_will_be_read_and_changes_its_slots_alone(b, rng, kind):
    pool, slots = pool_of(b, kind), [7, 0, 17, 8, 11]
    expected = np.zeros((2, 18, 2, 32), np.float32)
    for _ in range(2):
        new = rng.normal(size=(2, 5, 2, 32)).astype(np.float32)
        kept = pool.write(b.array(slots), *(b.array(part) for part in new))
        expected[:, slots] = [b.numpy(part) for part in kept]
        assert np.abs(expected[:, slots] - new).max() < 0.13  # of numbers up to 4
    for pages, wanted in zip((pool.key_pages, pool.value_pages), expected, strict=True):
        assert tuple(pages.shape) == (6, 3, 2, 32)
        np.testing.assert_array_equal(b.numpy(pages.numbers()), wanted.reshape(6, 3, 2, 32))
        some = b.array([[4, 0], [2, 4]])
        np.testing.assert_array_equal(b.numpy(pages[some]), wanted.reshape(6, 3, 2, 32)[[[4, 0], [2, 4]]])


@pytest.mark.parametrize(("kind", "share"), [("int8", 66 / 128), ("fp8_e4m3", 64 / 128)])
def test_bytes_of_a_pool_are_those_of_its_budget(b, kind, share):
    case = CASES["untied-3"]
    model = b.Qwen3ModelWeek2(random_checkpoint(b, case, "bfloat16"), attention="simple")
    pools = b.create_kv_pools(model, 7, 4, kv_cache_dtype=kind)
    arrays_of = [part for pool in pools for part in pool.arrays]
    assert sum(part.nbytes for part in arrays_of) == 8 * 4 * kv_bytes_per_token(
        case.config, "bfloat16", kv_cache_dtype=kind
    )
    wide = {**vars(case.config), "head_dim": 64}
    config = type("Shape", (), wide)()
    plain, kept = (kv_bytes_per_token(config, "bfloat16", kv_cache_dtype=each) for each in ("auto", kind))
    assert kept / plain == share


# ---- attention


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("L", [1, 3])
def test_attention_reads_pages_in_eight_bits_as_their_numbers(b, rng, kind, L):
    pool, contexts = pool_of(b, kind), [8, 5]
    slots = b.array(list(range(18)))
    pool.write(slots, *(b.array(rng.normal(size=(18, 2, 32))) for _ in range(2)))
    query = b.array(rng.normal(size=(2, 4, L, 32)))
    read = [[0, 3, 1], [4, 2]], contexts, 3, None, "causal"
    numbers = pool.key_pages.numbers(), pool.value_pages.numbers()
    expected = b.numpy(b.paged_attention(query, *numbers, *read))
    found = b.paged_attention(query, pool.key_pages, pool.value_pages, *read)
    assert_close(b.numpy(found), expected, atol=1e-6, idea=kind)
    if kind == "int8":
        codes = pool.key_pages.codes, pool.value_pages.codes
        scales = pool.key_pages.scales, pool.value_pages.scales
        apart = b.numpy(b.paged_attention(query, *codes, *read, scales=scales))
        assert_close(apart, expected, atol=1e-6, idea="scales apart")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["simple", "device"])
def test_answers_do_not_depend_on_how_a_prompt_is_cut(b, kind, attention):
    """A row's own key is rounded too, before it is in the pages: else a chunk's first row would read other keys."""
    model = b.Qwen3ModelWeek3(random_checkpoint(b, CASES["untied-3"], "float32"), attention=attention)
    text = np.random.default_rng(3).integers(0, model.config.vocab_size, size=17).tolist()
    found = []
    for cuts in ([17], [5, 5, 7], [1] * 17):
        server = PackedServing(b, b.serving, model, kv_cache_dtype=kind)
        sequence, start = server.sequence(text), 0
        for size in cuts:
            rows = server.run([(sequence, start, size)])
            start += size
        found.append(rows[0])
    for rows in found[1:]:
        assert_close(rows, found[0], atol=2e-5, idea=kind)
