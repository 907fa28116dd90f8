"""The memory of an engine, part by part: nothing is there twice."""

from math import prod

import pytest

from tiny_llm_course.doctor.model_memory import parts_of, report
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.hub import find_model
from tiny_llm_engine.models.smollm2 import NAME
from tiny_llm_extensions.gguf import gguf_file
from tiny_llm_extensions.llm import LLM


def test_weights_are_there_once(loaded, two_layers):
    network = loaded[1]
    parts = parts_of(LLM.of(*loaded, num_blocks=3, block_size=8).engine)
    config = network.config
    needed = sum(
        4 * prod(info.shape)
        for name, info in find_model(two_layers).headers().items()
        if name != "lm_head.weight" and not any(f"layers.{index}." in name for index in (2, 3))
    )
    assert parts["output head"] == 0, "it is tied"
    held = parts["embedding"] + parts["layers"]
    assert needed <= held <= 1.02 * needed + 2**16, "packed lines are rounded up"
    assert parts["RoPE's tables"] == 4 * config.context * config.head_dim
    assert parts["KV pool"] == 2 * 2 * 4 * 8 * config.num_key_value_heads * config.head_dim * 4


def test_a_report_names_each_part(b):
    lines = report(MODELS / "tiny-qwen3", b.name)
    assert [line.split("  ")[0] for line in lines[2:6]] == ["embedding", "output head", "layers", "KV pool"]
    assert "grows to" in lines[5] and all(" MB" in line for line in lines)


@pytest.mark.tool(NAME)
def test_a_file_that_was_read_is_let_go(b):
    with LLM(NAME, backend=b.name, num_blocks=2):
        assert gguf_file._opened.cache_info().currsize == 0
