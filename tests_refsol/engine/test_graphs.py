"""Graphs of both ports: what is compiled, how many graphs that makes, and what is captured as a whole."""

import importlib
import weakref
from functools import partial
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from support.replay_emulator import FakeCuda
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint, shape
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.gaudi.lone_prompts import put_lone_prompts_on
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.graphs.pad_batch import pad_batch
from tiny_llm_extensions.graphs.padded_steps import warm_up
from tiny_llm_extensions.graphs.step_shapes import StepShapes
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.runners import packed_runner
from tiny_llm_ref import serving
from tiny_llm_ref.serving import PackedBatch, PackedInputs, SamplingParams, flat_blocks, make_buckets

LAYERS, PAGE, BLOCKS = 2, 8, 12


class Counting:
    """A compiler that counts its graphs and runs them as they are."""

    def __init__(self):
        self.count = 0

    def __call__(self, module, inputs):
        self.count += 1
        return module.forward


@pytest.fixture
def compiler(monkeypatch):
    """Takes the place of every compiler of torch, for this test."""
    torch._dynamo.reset()
    counters.clear()
    counting, compiled = Counting(), torch.compile

    def compile_and_count(part, dynamic=None, **others):
        return compiled(part, backend=counting, dynamic=dynamic)

    monkeypatch.setattr(torch, "compile", compile_and_count)
    yield counting
    torch._dynamo.reset()


# Modules as they are now: a test before this one may have imported the solution again.


@pytest.fixture
def graphs():
    return importlib.import_module("tiny_llm_extensions.graphs.torch.graphs")


@pytest.fixture
def hpu():
    return importlib.import_module("tiny_llm_engine.arrays.torch.hpu")


@pytest.fixture
def products():
    return importlib.import_module("tiny_llm_extensions.kernels.torch.products")


@pytest.fixture(params=installed_backends())
def port(request):
    return Port("tiny_llm_ref", request.param, "cpu", "float32")


@pytest.fixture
def torch_port():
    return Port("tiny_llm_ref", "torch", "cpu", "float32")


def model_of(port, attention="tiled", **changes):
    checkpoint = RandomCheckpoint(
        shape("tiny-qwen3", LAYERS), port.backend_module, port.float_dtype, port.device
    )
    port.seed(0)
    model = port.Qwen3ModelWeek3(checkpoint, attention=attention, **changes)
    if attention == "device":
        given_of(port).use_packed_kernels(model)
    return model


def mixed_batch(chunk: int, context: int = 13) -> PackedBatch:
    """A prompt of `chunk` tokens, and a decode that reads `context` tokens; both are sampled."""
    blocks = [3, 5]
    return PackedBatch(
        token_ids=[*range(chunk), 7],
        positions=[*range(chunk), context],
        slots=[*range(chunk), blocks[context // PAGE] * PAGE + context % PAGE],
        query_start=[0, chunk, chunk + 1],
        context_lens=[0, context],
        block_tables=[[0, 1], blocks],
        sample_rows=[chunk - 1, chunk],
        sampling=[SamplingParams()] * 2,
    )


def runner_of(port, model, kept, **options):
    return packed_runner(
        port, model, BLOCKS, PAGE, on_logits=lambda rows, logits: kept.append(logits), **options
    )


def logits_of(port, model, batches, **options):
    kept = []
    runner = runner_of(port, model, kept, **options)
    for batch in batches:
        runner.run(batch)
    return kept


# ---- a step as a function of arrays


@pytest.mark.parametrize("context", [0, 13])
def test_flat_inputs_are_the_inputs_again(context):
    inputs = inputs_of(mixed_batch(5, context), PAGE, BLOCKS, 4, flat_blocks)
    flat = inputs.flatten()
    assert PackedInputs.of(flat) == inputs
    assert len(flat) == 31 and all(part is None or isinstance(part, list) for part in flat)


# ---- parts of layers


def test_compiled_parts_compute_what_the_layers_compute(port, compiler):
    """By the compiler of MLX itself; that of torch, which takes seconds, is tested below, and here only counts."""
    batches = [mixed_batch(1), mixed_batch(6), mixed_batch(9)]
    model = model_of(port)
    expected = logits_of(port, model, batches)
    actual = logits_of(port, given_of(port).compile_model(model, "cpu", 3), batches)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_cpu_has_two_graphs_per_part_for_all_layers_and_all_numbers_of_rows(torch_port, compiler, graphs):
    """One row is a graph of its own, because a compiler takes 1 for a constant."""
    model = given_of(torch_port).compile_model(model_of(torch_port), "cpu", 3)
    runner = runner_of(torch_port, model, [])
    parts = len(graphs.PARTS["cpu"])
    for count, expected in ((1, parts), (2, 2 * parts)):
        runner.run(pad_batch(serving, BLOCKS, PAGE, [(count, 0)]))
        assert compiler.count == expected
    with torch._dynamo.config.patch(error_on_recompile=True):
        for chunk in (1, 3, 5, 14):
            runner.run(mixed_batch(chunk))
    assert compiler.count == 2 * parts and not counters["graph_break"]


def decodes(*contexts: int) -> PackedBatch:
    """Decodes of texts in three pages each, whose next tokens have these positions."""
    tables = [[3 * index, 3 * index + 1, 3 * index + 2] for index in range(len(contexts))]
    slots = [table[c // PAGE] * PAGE + c % PAGE for table, c in zip(tables, contexts, strict=True)]
    rows = list(range(len(contexts)))
    read, params = list(contexts), [SamplingParams()] * len(rows)
    return PackedBatch(rows, read, slots, [*rows, len(rows)], read, tables, rows, params)


def test_attention_of_decodes_on_a_cpu_has_two_graphs(torch_port, compiler, graphs):
    """One for one request, and one for any number of any length: the warm-up has met both."""
    model = model_of(torch_port, "device")
    compiled, eager = [], []
    runner = runner_of(torch_port, given_of(torch_port).compile_model(model, "cpu", 3), compiled)
    each = len(graphs.PARTS["cpu"]) + 1
    for count, expected in ((1, each), (2, 2 * each)):
        runner.run(pad_batch(serving, BLOCKS, PAGE, [(1, 2)] * count))
        assert compiler.count == expected
    compiled.clear()
    batches = [decodes(5), decodes(20, 17), decodes(3, 9, 23), decodes(16, 2, 4, 20), decodes(1)]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in batches:
            runner.run(batch)
    assert compiler.count == 2 * each and not counters["graph_break"]
    plain = runner_of(torch_port, model, eager)
    for batch in batches:
        plain.run(batch)
    for one, other in zip(compiled, eager, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_gpu_compiles_a_part_for_one_row_and_for_any_other_number(torch_port, compiler, graphs):
    """One compilation per number of rows took 115 s for the small model on an H200; only captured steps differ."""
    model = given_of(torch_port).compile_model(model_of(torch_port), "cuda", 8)
    buckets = make_buckets("exponential", 8, 2, 24, PAGE, pad_pages=False)
    runner = runner_of(torch_port, model, [], buckets=buckets)
    warm_up(runner)
    count = compiler.count
    assert len({bucket.tokens for bucket in buckets.warm_up_list()}) > 2
    assert count == 2 * len(graphs.PARTS["cuda"]) and not counters["graph_break"]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for chunk in (2, 3, 7):
            runner.run(mixed_batch(chunk))
    assert compiler.count == count


@pytest.mark.parametrize(("name", "captured"), [("tiny-qwen3", 1), ("tiny-qwen3-moe", 0)])
def test_a_mixture_that_reads_its_counts_is_compiled_and_not_captured(
    torch_port, compiler, monkeypatch, name, captured
):
    """Its first layer is dense, and has a part more to compile than those with experts."""
    seen, answers, greedy = [], [], SamplingParams(temperature=0.0, max_tokens=4)
    monkeypatch.setattr(given_of(torch_port), "capture_step", lambda step, *_: seen.append(step) or step)
    network, tokenizer = load_network(torch_port, MODELS / name, "week3")
    for eager in (True, False):
        with LLM.of(torch_port, network, tokenizer, num_blocks=4, enforce_eager=eager) as llm:
            answers.append(llm.generate([[5, 6, 7]], greedy, use_tqdm=False)[0].outputs[0].token_ids)
    assert answers[0] == answers[1] and compiler.count and len(seen) == captured


def test_every_part_of_an_hpu_is_a_graph_per_shape_and_never_breaks(torch_port, compiler, graphs):
    """Attention, masks and head are parts too. Dynamo traces the twins of the kernels here."""
    fused = importlib.import_module("tiny_llm_extensions.gaudi.hpu_attention")
    model = model_of(torch_port)
    model.packed_mask = partial(fused.fused_mask, torch_port.solution)
    for layer in model.layers:
        layer.packed_attention = partial(fused.attend_fused, torch_port.solution)
    model = given_of(torch_port).compile_model(model, "hpu", 8)
    runner = runner_of(torch_port, model, [])
    put_lone_prompts_on(runner)
    parts = len(graphs.PARTS["hpu"]) + len(graphs.MODEL_PARTS["hpu"])
    batches = [mixed_batch(*sizes) for sizes in ((3, 13), (3, 9), (5, 13))]
    # Without a past: two prompts with a mask, then one that has none. Only masks and attention differ.
    batches.append(pad_batch(serving, BLOCKS, PAGE, [(3, 0), (4, 0)]))
    batches += [pad_batch(serving, BLOCKS, PAGE, [(7, 0)], sampled=2)] * 2
    counts = []
    for batch in batches:
        runner.run(batch)
        counts.append(compiler.count)
    assert counts[:3] == [parts, parts, 2 * parts]
    assert counts[4] == counts[5] == counts[3] + 2
    assert not counters["graph_break"]


def test_a_cpu_without_bf16_units_compiles_its_products_in_float32_too(
    compiler, monkeypatch, graphs, products
):
    """What the processor has is a constant to the compiler; the product changes with the number of rows."""
    monkeypatch.setattr(products, "_has_bf16_units", lambda: False)
    port = Port("tiny_llm_ref", "torch", "cpu", "bfloat16")
    model = given_of(port).compile_model(model_of(port), "cpu", 3)
    runner = runner_of(port, model, [])
    for count in (1, 2, 14):
        runner.run(pad_batch(serving, BLOCKS, PAGE, [(count, 0)]))
    assert compiler.count == 3 * len(graphs.PARTS["cpu"]) and not counters["graph_break"]


def test_the_limit_of_recompilations_is_raised_to_the_number_of_shapes(torch_port, compiler, graphs):
    """Beyond it Dynamo runs a part as it is, and says so only in a log."""
    with torch._dynamo.config.patch(recompile_limit=2, accumulated_recompile_limit=2):
        given_of(torch_port).compile_model(model_of(torch_port), "cpu", 3)
        assert torch._dynamo.config.recompile_limit == 12
        assert torch._dynamo.config.accumulated_recompile_limit == 96


def test_the_model_that_is_compiled_stays_as_it_is(port, compiler):
    model = model_of(port)
    made = given_of(port).compile_model(model, "cpu", 1)
    assert "project_in" in vars(made.layers[0]) and "project_in" not in vars(model.layers[0])
    assert made.embedding is model.embedding


# ---- packed weights


@pytest.mark.tool("onednn")
def test_plain_weights_are_freed_one_by_one(monkeypatch, compiler, products):
    """While the second matrix is packed the first is gone: the model is never there twice."""
    monkeypatch.setattr(products, "_has_bf16_units", lambda: True)
    port = Port("tiny_llm_ref", "torch", "cpu", "bfloat16")
    model = model_of(port)
    names = ("wq", "wk", "wv", "wo", "mlp.w_gate", "mlp.w_up", "mlp.w_down")
    plain = [weakref.ref(attrgetter(name)(layer).weight) for layer in model.layers for name in names]
    alive, pack = [], products.PackedLinear.of

    def packed(w, bias):
        alive.append(sum(weight() is not None for weight in plain))
        return pack(w, bias)

    monkeypatch.setattr(products.PackedLinear, "of", packed)
    made = given_of(port).compile_model(model, "cpu", 1)
    assert alive == list(range(len(plain), 0, -1))
    batches = [mixed_batch(1), mixed_batch(6)]
    for one, other in zip(logits_of(port, made, batches), logits_of(port, model, batches), strict=True):
        np.testing.assert_allclose(one, other, atol=0.05)


# ---- what is missing


def test_a_missing_compiler_is_one_line_that_names_it(port, monkeypatch):
    module = importlib.import_module(f"tiny_llm_extensions.graphs.{port.name}.graphs")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    line = given_of(port).cannot_compile("cpu")
    assert "needs" in line and "install" in line and "g++" in line and "\n" not in line


def test_nothing_is_missing_where_there_is_a_compiler(port, monkeypatch, tmp_path):
    module = importlib.import_module(f"tiny_llm_extensions.graphs.{port.name}.graphs")
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    if port.name == "torch":
        (tmp_path / "Python.h").touch()
        monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(tmp_path))
    assert given_of(port).cannot_compile("cpu") is None


@pytest.mark.parametrize("missing", ["triton", "Python.h"])
def test_other_parts_of_the_tool_chain_are_named_as_well(monkeypatch, tmp_path, missing, graphs):
    monkeypatch.setattr(graphs.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(graphs, "find_spec", lambda name: None if missing == "triton" else object())
    monkeypatch.setattr(graphs.sysconfig, "get_path", lambda name: str(tmp_path))
    assert missing.lower() in graphs.cannot_compile("cuda:0").lower()
    assert graphs.cannot_compile("hpu") is None


# ---- a whole step


@pytest.fixture
def cuda(monkeypatch):
    return FakeCuda.put_on(monkeypatch)


def test_cuda_graphs_replay_the_step_and_share_their_memory(torch_port, cuda):
    """Every shape is captured once, until there are as many graphs as buckets; then steps run without a graph."""
    model = model_of(torch_port)
    batches = [
        mixed_batch(n, context) for n, context in ((4, 13), (4, 9), (6, 13), (6, 12), (9, 13), (9, 10))
    ]
    expected = logits_of(torch_port, model, batches)
    made = []

    def capture(forward):
        made.append(given_of(torch_port).capture_step(forward, "cuda", 2))
        return made[0]

    actual = logits_of(torch_port, model, batches, capture=capture)
    assert cuda.memory == [None, "pool"] and len(made[0]._graphs) == 2
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_a_cpu_and_mlx_capture_nothing(port):
    def step(*arrays):
        return arrays

    assert given_of(port).capture_step(step, "cpu", 3) is step


def test_lazy_mode_captures_the_step_and_compiles_no_part(torch_port, monkeypatch, hpu):
    monkeypatch.setattr(hpu, "detect", lambda: hpu.Detection(True, True, ""))
    monkeypatch.setattr(hpu, "wrap_in_graph", lambda step, count: ("wrapped", step, count))
    model = model_of(torch_port)
    assert given_of(torch_port).compile_model(model, "hpu", 3) is model
    assert given_of(torch_port).capture_step(len, "hpu", 3) == ("wrapped", len, 3)


def test_compile_mode_captures_nothing(torch_port, monkeypatch, hpu):
    monkeypatch.setattr(hpu, "detect", lambda: hpu.Detection(True, False, ""))
    assert given_of(torch_port).capture_step(len, "hpu", 3) is len


def test_long_steps_run_without_a_graph(port):
    """With the same results, though they pass by what captures."""
    model = model_of(port)
    batches = [mixed_batch(n) for n in (4, 6, 9)]
    buckets, seen = make_buckets("linear", 16, 4, 64, PAGE), []

    def capture(forward):
        return lambda *arrays: seen.append(len(arrays[0])) or forward(*arrays)

    def is_captured(bucket):
        return bucket.tokens <= 8

    actual = logits_of(port, model, batches, buckets=buckets, capture=capture, is_captured=is_captured)
    assert seen == [8, 8]
    for one, other in zip(actual, logits_of(port, model, batches, buckets=buckets), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


CAPTURED = [
    (2048, 0, "hpu", True),
    (2049, 0, "hpu", False),
    (512, 12, "hpu", True),
    (512, 13, "hpu", False),
    (512, 13, "cuda", True),
]


@pytest.mark.parametrize(("tokens", "chunk_pages", "device", "expected"), CAPTURED)
def test_a_gaudi_captures_up_to_2048_tokens_of_rows_and_pages(tokens, chunk_pages, device, expected):
    shapes = SimpleNamespace(port=SimpleNamespace(device=device), options=SimpleNamespace(block_size=128))
    assert StepShapes.is_captured(shapes, serving.Bucket(tokens, 16, chunk_pages, 256)) is expected


# ---- the real compiler


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_inductor_compiles_the_parts(dtype, tmp_path, monkeypatch):
    """C++ is generated, compiled and run, for one row and for several; bf16 weights are packed."""
    torch._dynamo.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    port = Port("tiny_llm_ref", "torch", "cpu", dtype)
    batches = [pad_batch(serving, BLOCKS, PAGE, [(1, 2)]), mixed_batch(9), decodes(16, 2, 4, 20)]
    model = model_of(port, "device")
    expected = logits_of(port, model, batches)
    actual = logits_of(port, given_of(port).compile_model(model, "cpu", 2), batches)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 if dtype == "float32" else 0.1)
