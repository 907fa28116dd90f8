"""An engine whose pool grows: the arrays keep what is in them, and answers are those of a fixed pool."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_extensions import growing_pool
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams

OPTIONS = {"block_size": 8, "max_num_seqs": 3, "max_model_len": 96, "max_num_batched_tokens": 16}
LOADS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12)), min_size=1, max_size=6)


@pytest.fixture(params=["auto", "int8"])
def growing(loaded, monkeypatch, request):
    """An `LLM` that begins with three blocks of 36, and one of the same type with all of them."""
    monkeypatch.setattr(growing_pool, "TYPICAL_TOKENS", 8)
    kind = {"kv_cache_dtype": request.param}
    return LLM.of(*loaded, **OPTIONS, **kind), LLM.of(*loaded, num_blocks=36, **OPTIONS, **kind)


def answers(llm, load):
    prompts = [{"prompt_token_ids": [(7 * i + size) % 200 + 1 for i in range(size)]} for size, _ in load]
    params = [SamplingParams(max_tokens=tokens, ignore_eos=True) for _, tokens in load]
    return [each.outputs[0].token_ids for each in llm.generate(prompts, params, use_tqdm=False)]


def test_a_pool_grows_while_requests_run_and_answers_are_those_of_a_fixed_one(growing):
    small, fixed = growing
    runner = small.engine.runner
    assert (runner.num_blocks, runner.most_blocks) == (3, 36)

    @settings(max_examples=8, deadline=None)
    @given(LOADS)
    def check(load):
        assert answers(small, load) == answers(fixed, load)
        allocator = small.engine.allocator
        sizes = {runner.num_blocks, allocator.num_blocks, allocator.num_free}
        assert sizes == {each.num_blocks for each in runner.pools} and len(sizes) == 1

    check()
    assert answers(small, [(60, 12)] * 3) == answers(fixed, [(60, 12)] * 3)
    assert runner.num_blocks in (24, 36)
    small.engine.reset_prefix_cache()
    assert answers(small, [(90, 2)]) == answers(fixed, [(90, 2)])


def test_growing_arrays_keep_what_is_in_them(growing, loaded):
    port, pool = loaded[0], growing[0].engine.runner.pools[0]
    rows = port.array(
        np.arange(8 * pool.keys.shape[1] * pool.keys.shape[2]).reshape(8, *pool.keys.shape[1:]) % 5, "float32"
    )
    pool.write(port.array(list(range(8, 16))), rows, rows + 1)
    pool.materialize()
    before = [port.numpy(array[8:16]) for array in pool.arrays]
    pool.resize(12)
    assert all(len(array) == 13 * 8 for array in pool.arrays)
    for old, array in zip(before, pool.arrays, strict=True):
        np.testing.assert_array_equal(port.numpy(array[8:16]), old)
        assert not port.numpy(array[40:]).any()


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 9},
        {"async_scheduling": True},
        {"policy": "slack"},
        {"speculative_config": {"method": "ngram"}},
        {"bucketing_strategy": "linear"},
        {"kv_offloading_size": 0.01},
    ],
    ids=str,
)
def test_other_engines_have_all_their_blocks(loaded, options):
    runner = LLM.of(*loaded, **OPTIONS, **options).engine.runner
    assert runner.num_blocks == runner.most_blocks == options.get("num_blocks", 36)


@pytest.mark.port("torch")
def test_what_was_not_written_takes_no_memory():
    import torch

    from tiny_llm_engine.arrays.torch.kv_pools import _reserved_zeros

    def resident() -> int:
        with open("/proc/self/statm", encoding="utf-8") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    zeros = _reserved_zeros((2**20, 8, 32), torch.bfloat16, "cpu")
    assert resident() - before < 2**26, "512 MB are reserved"
    assert zeros.data_ptr() % 64 == 0 and not zeros[::4096].any()


@pytest.mark.parametrize(
    "options",
    [
        {"enable_chunked_prefill": False, "max_num_batched_tokens": None, "kv_cache_dtype": "fp8_e4m3"},
        {"policy": "separate", "enable_prefix_caching": False},
        {"policy": "paced", "scheduling_policy": "priority"},
        {"scale_chunks_by_load": True, "long_prefill_token_threshold": 8},
    ],
    ids=str,
)
def test_a_pool_grows_under_other_options(loaded, monkeypatch, options):
    monkeypatch.setattr(growing_pool, "TYPICAL_TOKENS", 8)
    small = LLM.of(*loaded, **(OPTIONS | options))
    fixed, load = LLM.of(*loaded, num_blocks=36, **(OPTIONS | options)), [(50, 12), (3, 20), (40, 9), (41, 5)]
    assert answers(small, load) == answers(fixed, load)
    assert 3 < small.engine.runner.num_blocks == small.engine.allocator.num_free <= 36
