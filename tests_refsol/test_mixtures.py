"""Mixtures of experts in the engine: a copy of the shipped model whose MLPs are four experts each.

That its logits are those of transformers is in `test_families.py`; the parts of a mixture are tested on Day 4.2.
"""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tiny_llm_kit.course.fakes.lockstep import LockstepGroup, LockstepRunner
from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.loading import load_checkpoint, load_network
from tiny_llm_kit.engine.parallel.rank_part import RankPart
from tiny_llm_kit.repo import MODELS
from tiny_llm_ref import SamplingParams

SHIPPED = MODELS / "tiny-qwen3"
EXPERTS = 4
CHATS = [
    [{"role": "user", "content": text}]
    for text in ("What is chunked prefill?", "What is a KV cache?", "Who are you?")
]
TIGHT = {"num_blocks": 12, "block_size": 8, "max_num_batched_tokens": 16, "max_model_len": 80}
PARAMS = SamplingParams(max_tokens=16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The shipped model with experts that are noisy copies of its MLPs, in layers 0, 1 and 3."""
    made = tmp_path_factory.mktemp("mixture")
    for file in SHIPPED.glob("*.json"):
        shutil.copy(file, made)
    config = json.loads((SHIPPED / "config.json").read_text(encoding="utf-8"))
    config |= {
        "architectures": ["Qwen3MoeForCausalLM"], "num_experts": EXPERTS, "num_experts_per_tok": 2,
        "moe_intermediate_size": config["intermediate_size"], "norm_topk_prob": True, "mlp_only_layers": [2],
    }  # fmt: skip
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(_with_experts(load_file(SHIPPED / "model.safetensors")), made / "model.safetensors")
    return made


def _with_experts(weights):
    random, found = torch.Generator().manual_seed(3), {}
    for name, array in weights.items():
        layer, _, matrix = name.partition(".mlp.")
        if not matrix or layer.endswith(".2"):
            found[name] = array
            continue
        found[f"{layer}.mlp.gate.weight"] = torch.randn(EXPERTS, 192, generator=random).bfloat16()
        for expert in range(EXPERTS):
            noise = 0.05 * array.float().std() * torch.randn(array.shape, generator=random)
            found[f"{layer}.mlp.experts.{expert}.{matrix}"] = (array.float() + noise).bfloat16()
    return found


@pytest.fixture(scope="module")
def whole(b, folder):
    return load_network(b, folder, "week3")


def texts(llm, chats=CHATS):
    return [output.outputs[0].text for output in llm.chat(chats, PARAMS, use_tqdm=False)]


def test_chunks_buckets_and_preemptions_change_no_answer(b, whole):
    """The copies are close to the MLPs that they come from, so that the model still answers."""
    expected = texts(LLM.of(b, *whole, num_blocks=100, block_size=8, max_model_len=80))
    assert "prompt" in expected[0]
    for buckets in (None, "linear"):
        assert texts(LLM.of(b, *whole, bucketing_strategy=buckets, **TIGHT)) == expected


@pytest.mark.parametrize(("size", "expert_parallel"), [(2, False), (2, True), (4, True)])
def test_ranks_give_the_answers_of_one(b, folder, whole, size, expert_parallel):
    """A part of every expert each, or different experts each."""
    group = LockstepGroup(size, b.backend_module)
    loaded = [
        load_network(b, folder, "week3", group=rank, expert_parallel=expert_parallel) for rank in group.ranks
    ]
    llm = LLM.of(b, *loaded[0], **TIGHT)
    others = [llm.engine.shapes.new_runner(network) for network, _ in loaded[1:]]
    llm.engine.runner = LockstepRunner(group, [llm.engine.runner, *others])
    llm.engine.reset_prefix_cache()
    assert texts(llm) == texts(LLM.of(b, *whole, **TIGHT))
    assert any("all_to_all" in call for call in group.calls) is expert_parallel


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_each_rank_reads_only_its_part(b, s, folder, expert_parallel):
    total = sum(array.nbytes for array in load_checkpoint(folder, b.name, "cpu", "bfloat16").weights.values())
    read = [
        load_checkpoint(
            folder, b.name, "cpu", "bfloat16", part=RankPart(s, rank, 2, expert_parallel)
        ).bytes_read
        for rank in range(2)
    ]
    shared = 4 * (2 * 192 + 2 * 64) * 2 + 192 * 2 + 3 * EXPERTS * 192 * 2  # norms and routers
    assert read == [(total + shared) // 2] * 2
