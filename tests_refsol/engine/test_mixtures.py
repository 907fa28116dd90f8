"""Mixtures of experts in the engine, with the shipped one.

That logits are those of transformers is in `test_families.py` too; the parts of a mixture are tested on Day 4.2.
"""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from models.eval.evaluated_models import week_2_logits
from support.close import assert_close
from support.lockstep import LockstepError, LockstepGroup
from support.ranks import CHATS, TIGHT
from tiny_llm_engine.loading import Loading, load_checkpoint
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.config import read_config
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.gaudi import hpu_mixture
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.job import Job
from tiny_llm_extensions.kernels.torch.expert_weights import has_grouped_kernel
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.load_job import network_of
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.parallel.rank_parts import RankPart, StagePart, check_ranks
from tiny_llm_ref import SamplingParams

FOLDER, DENSE = MODELS / "tiny-qwen3-moe", MODELS / "tiny-qwen3"
EXPERTS = 8  # in layers 1 and 2 of three
PARAMS = SamplingParams(max_tokens=16)


@pytest.fixture(scope="module")
def whole(b):
    return load_network(b, FOLDER, "week3")


def texts(llm, chats=CHATS):
    return [output.outputs[0].text for output in llm.chat(chats, PARAMS, use_tqdm=False)]


def test_logits_are_those_of_transformers(b):
    """A list of numbers, a question, and the answer, which both know."""
    from transformers import AutoModelForCausalLM  # takes seconds

    theirs = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    tokenizer = load_tokenizer(FOLDER)
    chat = [{"role": "user", "content": "maple 417\notter 12\nWhat is maple?"}]
    ids = np.array([tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True))])
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)).logits.numpy()
    actual = week_2_logits("ref", b.name, "fp32", str(FOLDER), None)(ids.tolist())
    assert_close(actual, expected, atol=1e-3, rtol=0, idea="the shipped mixture differs in transformers")
    assert tokenizer.decode(actual[0, -1:].argmax(-1).tolist()) == "417"


def test_chunks_buckets_and_preemptions_change_no_answer(b, whole):
    expected = texts(LLM.of(b, *whole, num_blocks=100, block_size=8, max_model_len=80))
    assert "prompt" in expected[0]
    for buckets in (None, "linear"):
        assert texts(LLM.of(b, *whole, bucketing_strategy=buckets, **TIGHT)) == expected


@pytest.mark.parametrize(("size", "expert_parallel"), [(2, False), (2, True), (4, True)])
def test_ranks_give_the_answers_of_one(b, whole, llm_of_ranks, size, expert_parallel):
    """A part of every expert each, or different experts each."""
    llm, group = llm_of_ranks(FOLDER, size, {"expert_parallel": expert_parallel}, **TIGHT)
    assert texts(llm) == texts(LLM.of(b, *whole, **TIGHT))
    assert any("all_to_all" in call for call in group.calls) is expert_parallel


def test_stages_give_the_answers_of_one(b, whole, llm_of_ranks):
    """Each stage has mixtures, whole; layers keep their numbers, which say which of them are mixtures."""
    llm, group = llm_of_ranks(FOLDER, 2, {"stages": True}, **TIGHT)
    stages = [runner.model for runner in llm.engine.runner.runners]
    kinds = [[isinstance(layer.mlp, b.MixtureOfExperts) for layer in stage.layers] for stage in stages]
    assert kinds == [[True], [False, True]], "the last stage is rank 0"
    assert texts(llm) == texts(LLM.of(b, *whole, **TIGHT))
    assert not group.calls, "a stage has all experts of its layers"


WRONG_ROWS = [
    ([2, 1], [3], r"`received` is \[3\]: give each of them 2 numbers, one per rank"),
    ([1, 1], [1, 1], r"`sent` is \[1, 1\], 2 rows in all, and the array has 3 rows: `sent` must divide"),
    (
        [2, 1],
        [2, 2],
        r"`received` is \[2, 2\], and the ranks sent \[1, 1\]: `received\[r\]` must be rank r's",
    ),
]


@pytest.mark.parametrize(("sent", "received", "message"), WRONG_ROWS)
def test_an_exchange_of_wrong_rows_says_what_is_expected(b, sent, received, message):
    group = LockstepGroup(2, b.backend_module)
    x = b.array(np.zeros((3, 2)), "float32")
    with pytest.raises(LockstepError, match=message):
        group.run([lambda rank=rank: rank.all_to_all(x, sent, received) for rank in group.ranks])


@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_reads_only_the_experts_of_its_layers(b, s, stage):
    part = StagePart(s, 1 - stage, 2)
    read = load_checkpoint(FOLDER, b.name, "cpu", "bfloat16", part=part).weights
    stacks = {
        int(name.split(".")[2]): array.shape[0] for name, array in read.items() if ".experts.gate" in name
    }
    assert stacks == {1 + stage: EXPERTS}


def test_the_option_of_an_llm_shares_the_experts(b):
    """What the engine starts on each rank, here without processes."""
    rank = LockstepGroup(2, b.backend_module).ranks[1]
    for option in (False, True):
        options = {"tensor_parallel_size": 2, "enable_expert_parallel": option}
        job = Job("ref", b.name, "cpu", "float32", str(FOLDER), None, {}, options)
        mlp = network_of(job, b, rank)[0].layers[1].mlp
        assert type(mlp) is (b.ExpertParallelMixture if option else b.SummedMixture) and mlp.group is rank
        held = mlp if option else mlp.mixture
        assert len(held.w_down) == (EXPERTS // 2 if option else EXPERTS)


@pytest.mark.parametrize("expert_parallel", [False, True])
def test_each_rank_reads_only_its_part(b, s, expert_parallel):
    total = sum(array.nbytes for array in load_checkpoint(FOLDER, b.name, "cpu", "bfloat16").weights.values())
    parts = [RankPart(s, rank, 2, expert_parallel) for rank in range(2)]
    read = [load_checkpoint(FOLDER, b.name, "cpu", "bfloat16", part=part).bytes_read for part in parts]
    shared = 3 * (2 * 192 + 2 * 64) * 2 + 192 * 2 + 2 * EXPERTS * 192 * 2  # norms and routers
    assert read == [(total + shared) // 2] * 2


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_experts_are_the_dequantised_ones(b, bits):
    """Two experts of a matrix are quantised as one, so that no group has numbers of both."""
    quantized = load_checkpoint(FOLDER, b.name, "cpu", "float32", WeightQuantizer(b, bits))
    stack = quantized.weights["model.layers.1.mlp.experts.gate_up_proj"]
    assert stack.shape == (EXPERTS, 128, 192) and not hasattr(
        quantized.weights["model.layers.1.mlp.gate.weight"], "bits"
    )
    plain = load_checkpoint(FOLDER, b.name, "cpu", "float32")
    one = plain.weights["model.layers.1.mlp.experts.gate_up_proj"][2]
    x = b.array(np.random.default_rng(0).normal(size=(3, 192)), "float32")
    again = b.quantize_matrix(one, WeightQuantizer(b, bits).group_size, bits)
    wanted = b.numpy(b.quantized_linear(x, b.prepare_weights(again)))
    assert_close(b.numpy(stack[2](x)), wanted, atol=1e-6, idea="an expert's own levels")
    llm = LLM.of(b, *load_network(b, FOLDER, "week3", Loading(f"{bits}bit")), **TIGHT)
    assert "prompt" in texts(llm)[0]


def test_packed_experts_give_the_answers_of_plain_ones(b):
    """In every layout that the products of this machine have."""
    port = Port("ref", b.name, "cpu", "bfloat16")
    expected = texts(LLM.of(port, *load_network(port, FOLDER, "week3"), cpu_products="usual", **TIGHT))
    for layout in {way.layout for way in given_of(port).product_ways().values()}:
        network, tokenizer = load_network(port, FOLDER, "week3")
        given_of(port).use_products(network, layout, ("matrix",) * 4)
        found = texts(LLM.of(port, network, tokenizer, cpu_products="usual", **TIGHT))
        assert found == expected, layout


IN_ONE_ARRAY = [
    ("bfloat16", 64, (9, 0), True),
    ("bfloat16", 64, (8, 0), False),
    ("bfloat16", 60, (9, 0), False),
    ("float32", 64, (9, 0), False),
]


@pytest.mark.parametrize(("dtype", "columns", "capability", "expected"), IN_ONE_ARRAY)
def test_experts_are_one_array_where_torch_has_a_kernel(monkeypatch, dtype, columns, capability, expected):
    """Its call reads the counts on the host everywhere else, which no graph can contain."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = SimpleNamespace(type="cuda")
    experts = SimpleNamespace(device=gpu, dtype=getattr(torch, dtype), shape=(EXPERTS, 128, columns))
    assert has_grouped_kernel(experts) is expected


def test_the_operator_of_a_gaudi_computes_the_same(rng):
    """Its twin, with all experts and as two ranks with half of them each."""
    b = Port("ref", "torch", "cpu", "float32")
    shapes = (5, 6), (4, 6), (4, 10, 6), (4, 6, 5)
    x, router, w_in, w_out = (torch.tensor(rng.normal(size=shape), dtype=torch.float32) for shape in shapes)
    expected = b.MixtureOfExperts(2, False, router, w_in, w_out)(x)
    routes = b.route(x @ router.T, 2, False)
    parts = [hpu_mixture.mixture_of_experts(x, *routes, w_in[i : i + 2], w_out[i : i + 2], i) for i in (0, 2)]
    together = hpu_mixture.mixture_of_experts(x, *routes, w_in, w_out)
    assert_close(together.numpy(), expected.numpy(), atol=1e-5, idea="all experts")
    assert_close((parts[0] + parts[1]).numpy(), expected.numpy(), atol=1e-5, idea="experts of two ranks")


def test_an_expert_that_is_missing_is_named(b, tmp_path):
    weights = load_file(FOLDER / "model.safetensors")
    del weights["model.layers.1.mlp.experts.2.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    shutil.copy(FOLDER / "config.json", tmp_path)
    with pytest.raises(
        CheckpointError, match=r"expert 2 lacks a matrix of .*layers\.1\.mlp\.experts\.gate_up_proj"
    ):
        load_checkpoint(tmp_path, b.name, "cpu")


def test_ranks_that_cannot_share_the_experts_are_refused(s):

    config = read_config(FOLDER)
    with pytest.raises(ValueError, match="has no experts"):
        check_ranks(s, read_config(DENSE), 2, True)
    few = SimpleNamespace(**vars(config) | {"mixture": SimpleNamespace(num_experts=3, intermediate_size=9)})
    with pytest.raises(ValueError, match="must divide 3 experts"):
        check_ranks(s, few, 2, True)
    with pytest.raises(ValueError, match="must divide the 9 numbers in an expert's MLP"):
        check_ranks(s, few, 2, False)


def test_mlx_multiplies_quantised_experts_in_one_call(mlx_port, rng):
    """What a GPU takes, tried on a CPU."""
    b = mlx_port
    from tiny_llm_ref.mlx_backend import mixture

    matrices = [
        b.quantize_matrix(b.array(rng.normal(size=(10, 64)), "float32"), 32, bits=4) for _ in range(3)
    ]
    x, counts = b.array(rng.normal(size=(7, 64)), "float32"), b.array([2, 0, 5])
    one_call = b.grouped_matmul(x, mixture._stack_quantized(matrices), counts)
    by_expert = b.grouped_product_by_expert(x, matrices, counts)
    assert_close(b.numpy(one_call), b.numpy(by_expert), atol=1e-4, idea="one call")


@pytest.fixture
def mlx_port():
    return Port("ref", "mlx", "cpu", "float32")
