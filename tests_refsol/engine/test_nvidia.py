"""Attention by block tables as on an NVIDIA GPU: the kernel's imitation, whole steps, graphs of decodes, refusals."""

from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from support import varlen
from support.replay_emulator import FakeCuda
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions import open_engine
from tiny_llm_extensions.engine_options import EngineOptions, options_on
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.graphs.padded_steps import put_capture_on
from tiny_llm_extensions.graphs.step_shapes import StepShapes
from tiny_llm_extensions.kernels.torch.packed_kernels import kernels_of_device
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.nvidia import text_steps, varlen_attention
from tiny_llm_extensions.nvidia.joined_layer import join_products
from tiny_llm_ref import serving, torch_backend
from tiny_llm_ref.serving import PackedBatch, SamplingParams, flat_blocks

PAGE, BLOCKS, ON_CUDA = 256, 18, kernels_of_device(torch_backend, "cuda")


@pytest.fixture(autouse=True)
def imitation(monkeypatch):
    monkeypatch.setattr(varlen_attention, "varlen_attn_out", varlen.varlen_attn_out)
    varlen.calls.clear()


def test_the_imitation_takes_what_torchs_function_takes():
    real = import_module("torch.nn.attention.varlen").varlen_attn_out
    ours, theirs = (signature(each).parameters.values() for each in (varlen.varlen_attn_out, real))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


def batch_of(requests, tables) -> PackedBatch:
    """Requests, each with its rows and the tokens before them; their blocks are in `tables`."""
    batch = PackedBatch(context_lens=[past for _, past in requests], block_tables=tables)
    for (rows, past), table in zip(requests, tables, strict=True):
        positions = range(past, past + rows)
        batch.positions.extend(positions)
        batch.slots.extend(table[at // PAGE] * PAGE + at % PAGE for at in positions)
        batch.query_start.append(len(batch.positions))
    batch.token_ids.extend(number % 7 for number in batch.positions)
    batch.sample_rows.extend(stop - 1 for stop in batch.query_start[1:])
    batch.sampling.extend([SamplingParams()] * len(requests))
    return batch


@st.composite
def batches(draw):
    """Chunks and decodes; some share the block of a common beginning."""
    request = st.tuples(st.sampled_from([1, 1, 2, 40]), st.sampled_from([0, 1, 255, 256, 300, 511]))
    requests = draw(st.lists(request, min_size=1, max_size=4))
    free, shared = iter(draw(st.permutations(range(1, BLOCKS)))), draw(st.booleans())
    tables = [[next(free) for _ in range(-(-(rows + past) // PAGE))] for rows, past in requests]
    return batch_of(
        requests,
        [
            [0, *table[1:]] if shared and past >= PAGE else table
            for table, (_, past) in zip(tables, requests, strict=True)
        ],
    )


def both_ways(batch, window, heads, kv_heads, size, device="cpu", dtype=torch.bfloat16, page=PAGE):
    """What the kernel gives, and what Day 3.3's attention gives in float32 of the same numbers."""
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(len(batch.slots), count, size).to(dtype) for count in (heads, kv_heads, kv_heads)
    )
    pages = [torch.randn((BLOCKS + 1) * PAGE // page, page, kv_heads, size).to(dtype) for _ in "kv"]
    for part, new in zip(pages, (key, value), strict=True):
        part.flatten(0, 1).index_copy_(0, torch.tensor(batch.slots), new)
    inputs = inputs_of(batch, PAGE, BLOCKS, window, flat_blocks).map(torch.tensor)
    texts = text_steps.texts_of(batch, len(batch.slots), PAGE, 3, BLOCKS)
    mask = ON_CUDA.mask(replace(inputs, texts=texts.map(partial(torch.tensor, device=device))), PAGE, window)
    found = ON_CUDA.attend(*(each.to(device) for each in (query, key, value, *pages)), mask)
    usual, wide = torch_backend.packed_mask(inputs, PAGE, window), (query, key, value, *pages)
    return found.cpu().float(), torch_backend.packed_attention(*(each.float() for each in wide), usual)


@given(batches(), st.sampled_from([None, 1, 200, 300]), st.sampled_from([(4, 4, 8), (6, 2, 16)]))
def test_one_call_is_the_attention_of_day_3_3(batch, window, sizes):
    torch.testing.assert_close(*both_ways(batch, window, *sizes), atol=2e-2, rtol=2e-2)


@pytest.mark.device("cuda")
@pytest.mark.parametrize("window", [None, 200])
def test_torchs_kernel_computes_what_its_imitation_computes(window, monkeypatch):
    batch = batch_of([(40, 300), (1, 511), (1, 256), (2, 0), (1, 255)], [[3, 1], [0, 5], [0, 6], [7], [8]])
    imitated, _ = both_ways(batch, window, 9, 3, 64)
    monkeypatch.undo()  # the real one
    torch.testing.assert_close(both_ways(batch, window, 9, 3, 64, "cuda")[0], imitated, atol=2e-2, rtol=2e-2)


BAD = {
    "head size": {"size": 12},
    "type": {"dtype": torch.float32},
    "page size": {"page": 128},
    "heads": {"heads": 3},
}


@pytest.mark.parametrize("rule", BAD)
def test_the_imitation_refuses_what_the_kernel_refuses(rule):
    sizes = {"heads": 4, "kv_heads": 2, "size": 8, **BAD[rule]}
    with pytest.raises(RuntimeError, match=rule):
        both_ways(batch_of([(2, 3)], [[1]]), None, **sizes)


# ---- whole steps

STEPS = [
    ([(40, 0)], [[2]]),
    ([(30, 0), (1, 40)], [[5], [2]]),
    ([(1, 30), (1, 41)], [[5], [2]]),
    ([(1, 31), (1, 42), (1, 0)], [[5], [2], [7]]),
    ([(1, 32), (1, 43), (1, 1)], [[5], [2], [7]]),
    ([(260, 1), (1, 44)], [[7, 3], [2]]),
]


def loaded(dtype, is_put=False):
    """The shipped model; `is_put` gives it what a model on CUDA has."""
    port = Port("tiny_llm_ref", "torch", "cpu", dtype)
    network, tokenizer = load_network(port, MODELS / "tiny-qwen3", "week3")
    if is_put:
        join_products(network)
        ON_CUDA.put_on(network)
    return port, network, tokenizer


def logits_of(is_put, capture=None):
    port, network, _ = loaded("bfloat16", is_put)
    kept, options = [], EngineOptions(block_size=PAGE, max_num_seqs=4)
    shapes = StepShapes(port, serving, options, SimpleNamespace(max_model_len=500), BLOCKS, has_texts=is_put)
    runner = shapes.new_runner(network)
    runner.on_logits = lambda rows, logits: kept.append(logits)
    if capture:
        put_capture_on(
            runner, partial(given_of(port).capture_step, device="cuda", num_buckets=3), shapes.is_captured
        )
    for step in STEPS:
        runner.run(batch_of(*step))
    return kept, runner


@pytest.mark.parametrize("captured", [False, True])
def test_steps_of_both_kinds_have_the_logits_of_day_3_3(monkeypatch, captured):
    """Chunks, decodes and rows of padding; decodes also as CUDA graphs, each captured once and replayed."""
    expected, _ = logits_of(False)
    cuda = FakeCuda.put_on(monkeypatch)
    found, runner = logits_of(True, captured)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=0.25)
    assert {each for each in varlen.calls if each > 1} == {40, 31, 261}
    assert cuda.memory == ([None, "pool"] if captured else [])
    assert runner.waste.padded_tokens == 40 + 31 + 2 + 4 + 4 + 261


def test_an_engine_gives_the_answers_of_one_without_the_kernel(monkeypatch):
    """Equal tokens in float32, which the imitation takes for this test; chunks, decodes, and cached blocks."""
    monkeypatch.setattr(varlen, "TYPES", [torch.float32])
    prompts = [[*range(3, 9)] * 60, [*range(3, 9)] * 50 + [20], [5], [6, 7]]
    options = {"block_size": PAGE, "num_blocks": 12, "max_num_batched_tokens": 128, "max_num_seqs": 3}
    greedy, answers = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True), []
    for why in ("no kernel", None):
        monkeypatch.setattr(open_engine, "why_no_texts", lambda *_, why=why: why)
        with LLM.of(*loaded("float32", why is None), **options) as llm:
            for _ in range(2):  # the second time from cached blocks
                found = llm.generate(prompts, greedy, use_tqdm=False)
                answers.append([each.outputs[0].token_ids for each in found])
        assert bool(varlen.calls) == (why is None)
    assert answers == answers[:1] * 4


# ---- when there is no such kernel

REFUSED = {
    "int8": {"kv_cache_dtype": "int8"},
    "block_size to be a multiple of 256, and it is 128": {"block_size": 128},
    "bucketing_strategy": {"bucketing_strategy": "linear"},
    "float16 and bfloat16, and this model is in float32": {"dtype": torch.float32},
    "heads of a multiple of 8 up to 256, and these have 12": {"head_dim": 12},
    "compute capability 8.0, and this GPU has 7.5": {"capability": (7, 5)},
    "2.13 does": {"function": None},
    "another attention was asked for": {"mask": len},
    "one kernel": {},
}


@pytest.mark.parametrize("words", REFUSED)
def test_without_a_precondition_one_line_says_why(monkeypatch, words):
    options, port = dict(REFUSED[words]), Port("tiny_llm_ref", "torch", "cpu")
    port.device = "cuda"
    weight = torch.zeros(1, dtype=options.pop("dtype", torch.bfloat16))
    model = SimpleNamespace(
        norm=SimpleNamespace(weight=weight),
        config=SimpleNamespace(head_dim=options.pop("head_dim", 64)),
        packed_mask=options.pop("mask", ON_CUDA.mask),
    )
    capability = options.pop("capability", (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(varlen_attention, "varlen_attn_out", options.pop("function", len))
    why = text_steps.why_no_texts(
        port, model, options_on("cuda", options)
    )  # 256 tokens in a block by default
    assert words in text_steps.attention_in_words(why)


class Operations(TorchDispatchMode):
    """Counts what would be kernels: operations that read or write numbers, the kernel's imitation as one."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += not operation.is_view and operation is not torch.ops.aten.empty.memory_format
        return operation(*args, **(kwargs or {}))


def operations_of_a_decode(is_put, monkeypatch):
    """Of a step of two decodes, without a compiler, which joins most of them."""
    port, network, _ = loaded("bfloat16", is_put)
    shapes = StepShapes(
        port,
        serving,
        EngineOptions(block_size=PAGE),
        SimpleNamespace(max_model_len=500),
        BLOCKS,
        has_texts=is_put,
    )
    runner = shapes.new_runner(network)
    runner.run(batch_of(*STEPS[1]))
    monkeypatch.setattr(
        varlen_attention, "varlen_attn_out", lambda q, k, v, out, *args, **kwargs: out.zero_()
    )
    with Operations() as operations:
        runner.run(batch_of(*STEPS[2]))
    return operations.count / len(network.layers)


def test_a_decode_has_few_operations(monkeypatch):
    """26 for each layer, and 39 without. A compiler joins all but products, norms, pages and attention."""
    few, many = (operations_of_a_decode(is_put, monkeypatch) for is_put in (True, False))
    assert few <= 26 < 36 < many
