"""Attention by block tables as on an NVIDIA GPU: the kernel's imitation, whole steps, graphs of decodes, refusals."""

from dataclasses import replace
from functools import partial
from inspect import signature
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support import varlen
from support.replay_emulator import FakeCuda
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.models.weights.random_weights import BlankAnswers, RandomCheckpoint, shape
from tiny_llm_engine.packed_model import PackedInputs, inputs_of
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions import open_engine
from tiny_llm_extensions.engine_options import EngineOptions, options_on
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.graphs.padded_steps import put_capture_on
from tiny_llm_extensions.graphs.step_shapes import StepShapes
from tiny_llm_extensions.job import Job
from tiny_llm_extensions.kernels.packed_kernels import PackedKernels
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.nvidia import text_steps, varlen_attention
from tiny_llm_extensions.nvidia.joined_layer import join_products
from tiny_llm_ref import serving, torch_backend
from tiny_llm_ref.serving import PackedBatch, SamplingParams, flat_blocks

PAGE, BLOCKS, LONGEST = 256, 9, 700


@pytest.fixture(autouse=True)
def imitation(monkeypatch):
    monkeypatch.setattr(varlen_attention, "varlen_attn_out", varlen.varlen_attn_out)
    varlen.calls.clear()


def test_the_imitation_takes_what_torchs_function_takes():
    real = pytest.importorskip("torch.nn.attention.varlen").varlen_attn_out
    ours, theirs = (signature(each).parameters for each in (varlen.varlen_attn_out, real))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


# ---- one call


def batch_of(requests, tables) -> PackedBatch:
    """A batch of requests, each with its rows and the tokens before them, whose blocks are in `tables`."""
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
    lengths = st.tuples(st.sampled_from([1, 1, 2, 40]), st.sampled_from([0, 1, 255, 256, 300, 511]))
    requests = draw(st.lists(lengths, min_size=1, max_size=4))
    free, shared, tables = iter(draw(st.permutations(range(1, BLOCKS * 2)))), draw(st.booleans()), []
    for rows, past in requests:
        tables.append([next(free) for _ in range(-(-(rows + past) // PAGE))])
        if shared and past >= PAGE:
            tables[-1][0] = 0
    return batch_of(requests, tables)


def texts_inputs(batch, rows=None) -> PackedInputs:
    texts = text_steps.texts_of(batch, rows or len(batch.token_ids), PAGE, 4, 2 * BLOCKS)
    own = batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sample_rows
    return PackedInputs(*own, None, None, texts=texts).map(partial(torch.tensor))


def both_ways(batch, window, heads, kv_heads, size, device="cpu"):
    """What the kernel gives, and what Day 3.3's attention gives in float32 of the same numbers."""
    torch.manual_seed(0)
    rows = len(batch.token_ids)
    query, key, value = (torch.randn(rows, count, size).bfloat16() for count in (heads, kv_heads, kv_heads))
    pages = [torch.randn(2 * BLOCKS + 1, PAGE, kv_heads, size).bfloat16() for _ in "kv"]
    for part, new in zip(pages, (key, value), strict=True):
        part.flatten(0, 1).index_copy_(0, torch.tensor(batch.slots), new)
    arrays = query, key, value, *pages
    mask = varlen_attention.text_mask(
        torch_backend, texts_inputs(batch).map(lambda each: each.to(device)), PAGE, window
    )
    found = varlen_attention.attend_texts(torch_backend, *(each.to(device) for each in arrays), mask)
    inputs = inputs_of(batch, PAGE, 2 * BLOCKS, window, flat_blocks).map(torch.tensor)
    usual = torch_backend.packed_mask(inputs, PAGE, window)
    return found.cpu().float(), torch_backend.packed_attention(*(each.float() for each in arrays), usual)


@given(batches(), st.sampled_from([None, 1, 200, 300]), st.sampled_from([(4, 4, 8), (6, 2, 16)]))
def test_one_call_is_the_attention_of_day_3_3(batch, window, sizes):
    torch.testing.assert_close(*both_ways(batch, window, *sizes), atol=2e-2, rtol=2e-2)


@pytest.mark.device("cuda")
@pytest.mark.parametrize("window", [None, 200])
def test_torchs_kernel_computes_what_its_imitation_computes(window, monkeypatch):
    requests = [(40, 300), (1, 511), (1, 256), (2, 0), (1, 255)]
    batch = batch_of(requests, [[3, 1], [0, 5], [0, 6], [7], [8]])
    imitated, _ = both_ways(batch, window, 9, 3, 64)
    monkeypatch.setattr(varlen_attention, "varlen_attn_out", torch.nn.attention.varlen.varlen_attn_out)
    torch.testing.assert_close(both_ways(batch, window, 9, 3, 64, "cuda")[0], imitated, atol=2e-2, rtol=2e-2)


BAD = {
    "int32": lambda mask: {"mask": replace(mask, tables=mask.tables.long())},
    "sizes": lambda mask: {"mask": replace(mask, key_starts=mask.key_starts[1:])},
    "cu_seq_k": lambda mask: {"mask": replace(mask, key_starts=None)},
    "head size": lambda mask: {"size": 12},
    "type": lambda mask: {"dtype": torch.float32},
    "page size": lambda mask: {"page": 128},
    "heads": lambda mask: {"heads": 3},
    "exceeds": lambda mask: {"mask": replace(mask, lengths=mask.lengths + 1024)},
}


@pytest.mark.parametrize("reason", BAD)
def test_the_imitation_refuses_what_the_kernel_refuses(reason):
    mask = varlen_attention.text_mask(torch_backend, texts_inputs(batch_of([(2, 3)], [[1]])), PAGE)
    given = {"mask": mask, "size": 8, "dtype": torch.bfloat16, "page": PAGE, "heads": 4, **BAD[reason](mask)}
    query = torch.zeros(2, given["heads"], given["size"], dtype=given["dtype"])
    pages = torch.zeros(3, given["page"], 2, given["size"], dtype=given["dtype"])
    with pytest.raises(RuntimeError, match=reason):
        varlen_attention.attend_texts(torch_backend, query, None, None, pages, pages, given["mask"])


# ---- whole steps


def model_of(dtype="bfloat16", name="tiny-qwen3", **changes):
    port = Port("tiny_llm_ref", "torch", "cpu", dtype)
    config = replace(shape(name, 2), **changes)
    port.seed(0)
    model = port.Qwen3ModelWeek3(
        RandomCheckpoint(config, port.backend_module, dtype, port.device), attention="device"
    )
    return port, model


def windowed(window):
    """The first of two layers has a window."""
    kinds = ("sliding_attention", "full_attention")
    return {} if window is None else {"sliding_window": window, "layer_types": kinds}


def put_on(model):
    """What a model on CUDA has."""
    join_products(model)
    attend = partial(varlen_attention.attend_texts, torch_backend)
    PackedKernels(partial(varlen_attention.text_mask, torch_backend), attend).put_on(model)


STEPS = [
    ([(40, 0)], [[2]]),
    ([(30, 0), (1, 40)], [[5], [2]]),
    ([(1, 30), (1, 41)], [[5], [2]]),
    ([(1, 31), (1, 42), (1, 0)], [[5], [2], [7]]),
    ([(1, 32), (1, 43), (1, 1)], [[5], [2], [7]]),
    ([(260, 1), (1, 44)], [[7, 3], [2]]),
]


def logits_of(port, model, texts, capture=None, is_captured=lambda bucket: bucket is not None):
    kept = []
    shapes = StepShapes(
        port, serving, EngineOptions(block_size=PAGE, max_num_seqs=4), SimpleNamespace(max_model_len=LONGEST), BLOCKS,
        has_texts=texts,
    )  # fmt: skip
    runner = shapes.new_runner(model)
    runner.on_logits = lambda rows, logits: kept.append(logits)
    if capture:
        put_capture_on(runner, capture, is_captured)
    for step in STEPS:
        runner.run(batch_of(*step))
    return kept, runner


@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("captured", [False, True])
def test_steps_of_both_kinds_have_the_logits_of_day_3_3(monkeypatch, window, captured):
    """Chunks, decodes and rows of padding; decodes also as CUDA graphs, each captured once and replayed."""
    port, model = model_of(**windowed(window))
    expected, _ = logits_of(port, model, False)
    put_on(model)
    cuda = FakeCuda.put_on(monkeypatch)
    capture = partial(given_of(port).capture_step, device="cuda", num_buckets=3) if captured else None
    found, runner = logits_of(port, model, True, capture)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one[: len(other)], other, atol=0.1)
    assert [each["max_q"] for each in varlen.calls if each["max_q"] > 1][::2] == [40, 31, 261]
    assert (
        cuda.memory == ([None, "pool"] if captured else [])
        and runner.waste.padded_tokens == 40 + 31 + 2 + 4 + 4 + 261
    )


def test_an_engine_gives_the_answers_of_one_without_the_kernel(monkeypatch):
    """Equal tokens in float32, which the imitation takes for this test; long prompts in chunks, a shared prefix."""
    monkeypatch.setattr(varlen, "TYPES", [torch.float32])
    port, model = model_of("float32")
    prompts = [[*range(3, 9)] * 60, [*range(3, 9)] * 50 + [20], [5], [6, 7]]
    options = {"block_size": PAGE, "num_blocks": 12, "max_num_batched_tokens": 128, "max_num_seqs": 3}
    greedy, answers = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True), []
    for why in ("no kernel", None):
        monkeypatch.setattr(open_engine, "why_no_texts", lambda *_, why=why: why)
        with LLM.of(port, model, BlankAnswers(load_tokenizer("tiny-qwen3")), **options) as llm:
            for _ in range(2):  # the second time from cached blocks
                answers.append(
                    [each.outputs[0].token_ids for each in llm.generate(prompts, greedy, use_tqdm=False)]
                )
        assert bool(varlen.calls) == (why is None)
        put_on(model)
    assert answers[0] == answers[1] == answers[2] == answers[3]


# ---- when there is no such kernel

REFUSED = {
    "int8": {"kv_cache_dtype": "int8"},
    "block_size to be a multiple of 256, and it is 128": {"block_size": 128},
    "bucketing_strategy": {"bucketing_strategy": "linear"},
    "float16 and bfloat16, and this model is in float32": {"dtype": "float32"},
    "heads of a multiple of 8 up to 256, and these have 12": {"head_dim": 12},
    "compute capability 8.0, and this GPU has 7.5": {"capability": (7, 5)},
    "2.13 does": {"function": None},
    "another attention was asked for": {"is_put": False},
}


@pytest.mark.parametrize("reason", [None, *REFUSED])
def test_without_a_precondition_the_kernel_is_not_used_and_one_line_says_why(monkeypatch, reason):
    given = {"dtype": "bfloat16", "head_dim": 64, "capability": (9, 0), "function": len, "is_put": True}
    changes = REFUSED.get(reason, {})
    given |= {name: changes[name] for name in given if name in changes}
    port = Port("tiny_llm_ref", "torch", "cpu")
    port.device = "cuda"
    weight = torch.zeros(1, dtype=getattr(torch, given["dtype"]))
    model = SimpleNamespace(
        norm=SimpleNamespace(weight=weight), config=SimpleNamespace(head_dim=given["head_dim"]),
        packed_mask=partial(varlen_attention.text_mask, torch_backend) if given["is_put"] else len,
    )  # fmt: skip
    monkeypatch.setattr(varlen_attention, "varlen_attn_out", given["function"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: given["capability"])
    options = options_on("cuda", {name: changes[name] for name in changes if name not in given})
    why = text_steps.why_no_texts(port, model, options)
    assert why is None if reason is None else reason in why
    assert ("one kernel" if reason is None else reason) in text_steps.attention_in_words(why)


def test_blocks_have_256_tokens_on_cuda_unless_their_size_is_given():
    job = Job("ref", "torch", "cuda", "auto", "tiny-qwen3", None)
    assert job.options.block_size == 256 and replace(job, device="cpu").options.block_size == 128
    assert options_on("cuda", {"block_size": 128}).block_size == 128
