"""An engine whose pages are kept in eight bits: how steps are planned changes no answer."""

import pytest

from support.ranks import CHATS
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.kernels.native import NativeKernels, kernel, layers, library
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import SamplingParams

ROOMY = {"num_blocks": 60, "block_size": 8, "max_num_batched_tokens": 64, "max_model_len": 80}
WAYS = {
    "few blocks": {"num_blocks": 11, "max_num_batched_tokens": 16, "bucketing_strategy": "linear"},
    "short chunks": {"max_num_batched_tokens": 5, "max_num_seqs": 3, "enable_prefix_caching": False},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}},
    "ahead": {"async_scheduling": True},
}


@pytest.mark.parametrize(("kind", "ways"), [("int8", WAYS), ("fp8", ["few blocks"])])
def test_answers_are_those_of_a_roomy_engine(b, whole, kind, ways):
    def answers(**options):
        with LLM.of(b, *whole, **ROOMY | options, kv_cache_dtype=kind) as llm:
            first, again = (llm.chat(CHATS, SamplingParams(max_tokens=24), use_tqdm=False) for _ in range(2))
            assert llm.engine.allocator.num_free == llm.engine.allocator.num_blocks
        preemptions = sum(output.metrics.num_preemptions for output in again)
        return [[o.outputs[0].token_ids for o in each] for each in (first, again)], preemptions

    [expected, with_prefixes], _ = answers()
    assert with_prefixes == expected
    for name in ways:
        found, preemptions = answers(**WAYS[name])
        assert found == [expected, expected], name
        assert bool(preemptions) == (name == "few blocks")


@pytest.mark.tool("c++")
@pytest.mark.parametrize("slow", ["", "layers.cpp"])
def test_a_kernel_that_does_not_compile_for_eight_bits_is_not_used(b, two_layers, monkeypatch, capsys, slow):
    """As without a compiler: a line says so, and requests are answered."""

    def compiled(name, package=library.GIVEN, included=(), flags=()):
        if flags and name == slow:
            raise library.NativeError("c++ was not done after 120 s")
        return library.library(name, package, included, flags)

    for module in (kernel, layers):
        monkeypatch.setattr(module, "library", compiled)
    monkeypatch.setattr(b.solution, "NATIVE", NativeKernels("tiny_llm_ref.native"))
    kinds = {"quantization": "4bit", "activations": "int8", "kv_cache_dtype": "int8", "cpu_products": "usual"}
    with LLM(str(two_layers), backend=b.name, device="cpu", **ROOMY, **kinds) as llm:
        outputs = llm.chat(CHATS, SamplingParams(max_tokens=3), use_tqdm=False)
        assert [len(output.outputs[0].token_ids) for output in outputs] == [3] * 3
        assert b.solution.NATIVE.layers.works == (not slow)
    says = "layers.cpp is not used, for its pages in eight bits: c++ was not done"
    assert (says in capsys.readouterr().err) == bool(slow)


def test_names_are_those_of_vllm():
    assert EngineOptions(kv_cache_dtype="fp8").kv_cache_dtype == "fp8_e4m3"
    with pytest.raises(ValueError, match="kv_cache_dtype is 'int4': give one of auto, int8, fp8_e4m3"):
        EngineOptions(kv_cache_dtype="int4")


def test_a_pool_in_eight_bits_has_more_blocks_in_the_same_memory(b, whole, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "tiny_llm_extensions.profiling.engine_profiling.check_pool", lambda *given: asked.append(given[-1])
    )
    for kind in ("auto", "int8", "fp8"):
        LLM.of(b, *whole, **ROOMY, kv_cache_dtype=kind).close()
    plain, int8, fp8 = asked
    itemsize = 4 if b.float_dtype == "float32" else 2
    size = whole[0].config.head_dim
    assert (int8 / plain, fp8 / plain) == ((size + 2) / (itemsize * size), 1 / itemsize)
