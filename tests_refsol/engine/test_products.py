"""Products on a CPU: that all ways agree, which is chosen, and what is kept of a measurement."""

import importlib
import json
import os
from dataclasses import replace
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support.packed import PackedServing
from support.ranks import logits_of_two_steps
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.arrays.layers import DenseLinear
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.native.kernel import ProductKernel
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.profiling import product_choice
from tiny_llm_extensions.profiling.product_choice import choice_of, choose_products, measured_seconds

NEEDS_ONEDNN = pytest.mark.tool("onednn")  # only tests that pack a weight
NEEDS_KERNEL = pytest.mark.tool("c++")  # only tests that call the kernel in C++ need a compiler
LAYOUTS = {"vector": "plain", "matrix": "plain", "tiles": "plain", "onednn": "packed", "native": "native"}
BOTH = {"matrix": "plain", "native": "native"}  # of MLX
# Invented seconds, in units of the matrix at one row.
SLOW = {1: 1.0, 4: 1.0, 16: 1.0, 128: 4.0}
PACKED_WINS = {"vector": {1: 2.0}, "matrix": SLOW, "tiles": dict.fromkeys(SLOW, 9.0)}
PACKED_WINS |= {"onednn": {**SLOW, 1: 0.5}, "native": SLOW}
NATIVE_WINS = {**PACKED_WINS, "native": {**SLOW, 1: 0.25}}
PLAIN_WINS = {"vector": {1: 0.4}, "matrix": {**SLOW, 128: 9.0}, "onednn": SLOW, "native": SLOW}
PLAIN_WINS |= {"tiles": {1: 3.0, 4: 2.0, 16: 1.5, 128: 2.0}}
MLX_PLAIN_WINS = {"matrix": SLOW, "native": dict.fromkeys(SLOW, 9.0)}
MLX_NATIVE_WINS = {"matrix": dict.fromkeys(SLOW, 9.0), "native": SLOW}


@pytest.fixture
def port(request):
    """In bf16: torch, or the port that the test's mark names."""
    name = request.node.get_closest_marker("port").args[0]
    return Port("tiny_llm_ref", name, "cpu", "bfloat16")


@pytest.fixture
def products(request):
    """The port's module."""
    name = request.node.get_closest_marker("port").args[0]
    return importlib.import_module(f"tiny_llm_extensions.kernels.{name}.products")


def with_products(port, products, w, *choice):
    """The layer that a choice of products puts on a model in place of the matrix `w`."""
    layer = SimpleNamespace(mlp=SimpleNamespace(), wq=port.linear_layer(w), wk=None, wv=None, wo=None)
    config = SimpleNamespace(tie_word_embeddings=False)
    model = SimpleNamespace(layers=[layer], w_lm_head=None, embedding=None, config=config)
    given_of(port).use_products(model, *choice)
    return layer.wq


def on(port, *values, marks=()):
    """A case of a parametrised test on one port."""
    return pytest.param(*values, marks=[pytest.mark.port(port), *marks])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, where everything is measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(product_choice.VARIABLE, "measured")
    # Seconds are invented, so that no kernel runs, and the choice is the same without a compiler and on any processor.
    monkeypatch.setattr(ProductKernel, "works", True)
    torch_products = importlib.import_module("tiny_llm_extensions.kernels.torch.products")
    monkeypatch.setattr(torch_products, "has_onednn", lambda: True)
    return tmp_path / "tiny-llm"


def counted(monkeypatch, seconds):
    """Lets a measurement return these seconds; the list grows with each."""
    calls = []
    monkeypatch.setattr(product_choice, "measure", lambda port: calls.append(port) or seconds)
    return calls


def test_what_a_machine_measures_decides_no_test():
    assert os.environ[product_choice.VARIABLE] == "usual"


# The ways.


KINDS = [on("torch", "vector"), on("torch", "matrix"), on("torch", "tiles")]
KINDS += [on("torch", "onednn", marks=[NEEDS_ONEDNN]), on("torch", "native", marks=[NEEDS_KERNEL])]
KINDS += [on("mlx", "matrix", marks=[NEEDS_KERNEL]), on("mlx", "native", marks=[NEEDS_KERNEL])]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_all_ways_compute_the_same(port, rng, name, biased, rows):
    way = given_of(port).product_ways()[name]
    if way.most_rows is not None and rows > way.most_rows:
        return
    x, w = (port.array(rng.normal(size=shape), "bfloat16") for shape in ((1, rows, 96), (300, 96)))
    bias = port.array(rng.normal(size=300), "bfloat16") if biased else None
    expected = port.numpy(x).astype(float) @ port.numpy(w).astype(float).T
    expected = expected + port.numpy(bias) if biased else expected
    out = way.multiply(x, way.prepare(w), bias)
    assert out.dtype == x.dtype and way.layout == LAYOUTS[name]
    np.testing.assert_allclose(port.numpy(out), expected, atol=0.05, rtol=0.02)


@pytest.mark.port("torch")
@pytest.mark.parametrize("units", [pytest.param(True, marks=NEEDS_ONEDNN), False])
def test_without_a_measurement_the_flags_decide(monkeypatch, port, products, units):
    """With bf16 units one row is a vector, and a compiled model packs; without them many rows go in float32."""
    monkeypatch.setattr(products, "_has_bf16_units", lambda: units)
    called = calls_of(monkeypatch, products)
    w = port.array(np.ones((300, 96)), "bfloat16")
    layer = with_products(port, products, w, "plain")
    for rows in (1, 2, 8, 9):
        layer(port.array(np.ones((rows, 96)), "bfloat16"))
    assert called == (["vector"] + 3 * ["matrix"] if units else 3 * ["matrix"] + ["tiles"])
    assert isinstance(with_products(port, products, w), products.PackedLinear) == units
    plain = with_products(port, products, w.float())
    assert type(plain) is DenseLinear, "float32 has one product"


def calls_of(monkeypatch, products):
    """The names of the ways that are called from now on."""
    called, ways_of = [], products._all_ways

    def recorded(name, way):
        return replace(way, multiply=lambda *a: called.append(name) or way.multiply(*a))

    def all_ways(solution):
        return {name: recorded(name, way) for name, way in ways_of(solution).items()}

    monkeypatch.setattr(products, "_all_ways", all_ways)
    return called


@pytest.mark.port("torch")
def test_each_number_of_rows_takes_the_way_that_was_chosen_for_it(monkeypatch, port, products):
    """1 row, 2 to 8, 9 to 45, more: the borders are geometric means of what was measured."""
    called = calls_of(monkeypatch, products)
    w = port.array(np.ones((30, 96)), "bfloat16")
    layer = with_products(port, products, w, "plain", ("vector", "matrix", "tiles", "matrix"))
    for rows in (1, 2, 8, 9, 45, 46, 512):
        layer(port.array(np.ones((1, rows, 96)), "bfloat16"))
    assert called == ["vector", "matrix", "matrix", "tiles", "tiles", "matrix", "matrix"]
    assert layer.weight is w, "the layout is the plain one"


@pytest.mark.port("torch")
def test_two_engines_choose_apart(port, products):
    """A choice belongs to a model: the next engine's does not change it."""
    w = port.array(np.ones((30, 96)), "bfloat16")
    one, other = (with_products(port, products, w, "plain", 4 * (name,)) for name in ("tiles", "matrix"))
    assert [layer.ways for layer in (one, other)] == [
        4 * (products._all_ways(port.solution)[name].multiply,) for name in ("tiles", "matrix")
    ]


@pytest.mark.port("torch")
def test_a_bf16_weight_is_never_there_in_float32_as_a_whole(port, products):
    x, w = port.array(np.ones((8, 512)), "bfloat16"), port.array(np.ones((4096, 512)), "bfloat16")
    layer = with_products(port, products, w, "plain", ("tiles",) * 4)
    assert port.peak_bytes(lambda: layer(x)) < 4096 * 512 * 4 / 4


# The choice.


def test_only_what_was_measured_on_this_machine_decides():
    """A layout that is 3 % faster is chosen, whatever was measured on another machine."""
    slower = {rows: 1.03 * seconds for rows, seconds in PACKED_WINS["onednn"].items()}
    assert choice_of({**PACKED_WINS, "native": slower}, LAYOUTS)[0] == "packed"
    swapped = {**PACKED_WINS, "onednn": slower, "native": PACKED_WINS["onednn"]}
    assert choice_of(swapped, LAYOUTS)[0] == "native"


def test_small_layers_are_for_the_native_step():
    """A layer of 1 MB takes longer for all that is not a product; one of 400 MB does not show it."""
    ways = {"onednn": dict.fromkeys(SLOW, 1e-10), "native": dict.fromkeys(SLOW, 1.5e-10), "matrix": SLOW}
    assert [choice_of(ways, LAYOUTS, size)[0] for size in (1e6, 4e8)] == ["native", "packed"]


def test_the_layout_that_computes_the_mix_soonest_is_chosen():
    assert choice_of(PACKED_WINS, LAYOUTS) == ("packed", ("matrix",) * 4)
    assert choice_of(PLAIN_WINS, LAYOUTS) == ("plain", ("vector", "matrix", "matrix", "tiles"))


def test_without_a_packed_layout_the_plain_one_is_chosen():
    ways = {name: seconds for name, seconds in PACKED_WINS.items() if name != "onednn"}
    assert choice_of(ways, dict.fromkeys(ways, "plain"))[0] == "plain"


@NEEDS_KERNEL
@pytest.mark.parametrize(
    ("ways", "dtype"),
    [on("torch", LAYOUTS, "bfloat16"), on("mlx", BOTH, "bfloat16"), on("mlx", BOTH, "float32")],
)
def test_a_measurement_has_every_way_and_number_of_rows(monkeypatch, port, ways, dtype):
    monkeypatch.setattr(product_choice, "SHAPE", (32, 64))
    monkeypatch.setattr(product_choice, "BYTES", dict.fromkeys(product_choice.BYTES, 2**14))
    port.float_dtype = dtype
    found = product_choice.measure(port)
    has = given_of(port).product_ways()
    rows = {name: [1] if name == "vector" else [1, 4, 16, 128] for name in ways if name in has}
    assert {name: sorted(each) for name, each in found.items()} == rows
    assert all(seconds > 0 for each in found.values() for seconds in each.values())


@pytest.mark.port("mlx")
def test_a_product_is_computed_while_it_is_timed(monkeypatch, port):
    """MLX's products are lazy: their description takes no time."""
    computed = []
    monkeypatch.setattr(port.backend_module, "evaluate", computed.append)
    product_choice.multiply_all(port, lambda x, w, bias: x + w, 1, [2, 3])
    assert computed == [3, 4]


# The file.


@pytest.mark.port("torch")
def test_a_machine_is_measured_once(monkeypatch, port, cache):
    calls = counted(monkeypatch, PLAIN_WINS)
    assert measured_seconds(port) == measured_seconds(port) == PLAIN_WINS
    assert len(calls) == 1 and len(list(cache.iterdir())) == 1, "a file, and nothing half written"


WRONG_FILES = ["", "{", "[]", "null", "{}", '{"machine": {}}', '{"seconds": {}}']
WRONG_FILES += [
    '{"machine": MACHINE, "seconds": {"matrix": {"1": 1}}}',
    '{"machine": MACHINE, "seconds": {"vector": 1, "matrix": 1, "tiles": 1, "onednn": 1}}',
    '{"machine": {"processor": "another"}, "seconds": SECONDS, "load": 0}',
    '{"machine": MACHINE, "seconds": SECONDS}',
]


@pytest.mark.port("torch")
@pytest.mark.parametrize("text", WRONG_FILES)
def test_a_broken_or_a_foreign_file_is_measured_again(monkeypatch, port, cache, text):
    calls = counted(monkeypatch, PLAIN_WINS)
    measured_seconds(port)
    [path] = cache.iterdir()
    whole = json.loads(path.read_text())
    text = text.replace("MACHINE", json.dumps(whole["machine"])).replace(
        "SECONDS", json.dumps(whole["seconds"])
    )
    path.write_text(text)
    assert measured_seconds(port) == PLAIN_WINS and len(calls) == 2
    assert json.loads(path.read_text()) == whole, "the file is whole again"


@pytest.mark.port("torch")
@pytest.mark.parametrize(("then", "now", "count"), [(4.0, 0.1, 2), (4.0, 1.0, 1), (0.1, 0.1, 1)])
def test_a_busy_machine_is_measured_again_when_it_is_quiet(monkeypatch, port, cache, then, now, count):
    calls = counted(monkeypatch, PLAIN_WINS)
    for load in (then, now):
        monkeypatch.setattr(product_choice, "load_per_core", lambda load=load: load)
        measured_seconds(port)
    assert len(calls) == count


@pytest.mark.port("torch")
def test_other_threads_are_another_measurement(monkeypatch, port, cache):
    calls = counted(monkeypatch, PLAIN_WINS)
    for threads in (1, 2, 1):
        monkeypatch.setattr(
            port.backend_module, "product_machine", lambda threads=threads: {"threads": threads}
        )
        measured_seconds(port)
    assert len(calls) == 2 and len(list(cache.iterdir())) == 2


@pytest.mark.port("torch")
def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, port, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    calls = counted(monkeypatch, PLAIN_WINS)
    assert measured_seconds(port) == measured_seconds(port) == PLAIN_WINS and len(calls) == 2


# The attention of chunks.


# The engine.

CASE = small_model(
    5, num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_size=32, intermediate_size=64
)


@pytest.mark.port("torch")
@pytest.mark.parametrize(
    ("seconds", "is_packed"), [pytest.param(PACKED_WINS, True, marks=NEEDS_ONEDNN), (PLAIN_WINS, False)]
)
def test_an_engine_packs_where_that_is_faster(monkeypatch, port, products, cache, seconds, is_packed):
    counted(monkeypatch, seconds)
    network = port.Qwen3ModelWeek3(random_checkpoint(port, CASE, "bfloat16"))
    choose_products(port, network)
    assert {type(each) for each in matrices_of(network)} == {
        products.PackedLinear if is_packed else products.PlainLinear
    }
    assert isinstance(network.embedding.weight, torch.Tensor), "a table is read row by row"


def matrices_of(network):
    """The linear layers of all layers."""
    layers = [getattr(layer, "layer", layer) for layer in network.layers]
    names = ("wq", "wk", "wv", "wo", "mlp.w_gate", "mlp.w_up", "mlp.w_down")
    return [attrgetter(name)(layer) for layer in layers for name in names]


def plain_and_native(port, products, dtype="bfloat16", **sizes):
    """The same small model twice, the second one with native weights."""
    checkpoint = random_checkpoint(port, small_model(3, **sizes), dtype)
    plain, native = (port.Qwen3ModelWeek3(checkpoint, attention="device") for _ in range(2))
    for model in (plain, native):
        given_of(port).use_packed_kernels(model)
    given_of(port).use_products(native, "native", ("matrix",) * 4)
    given_of(port).use_native_layers(native)
    return plain, native


def assert_same_logits(port, rng, plain, native, dtype="bfloat16"):
    """Chunks, whole prompts and decodes."""
    prompts = [rng.integers(0, plain.config.vocab_size, size=size).tolist() for size in (14, 5, 9, 6)]
    expected, found = (
        logits_of_two_steps(PackedServing(port, port.serving, model), prompts) for model in (plain, native)
    )
    assert found.keys() == expected.keys()
    for place, logits in expected.items():
        tolerance = 0.05 if dtype == "bfloat16" else 1e-5
        np.testing.assert_allclose(found[place], logits, atol=tolerance * np.abs(logits).max())


WEIGHTS = [on("torch", "bfloat16", True), on("torch", "bfloat16", False), on("mlx", "float32", True)]
WEIGHTS += [on("mlx", "bfloat16", True), on("mlx", "bfloat16", False)]


@NEEDS_KERNEL
@pytest.mark.parametrize(("dtype", "tied"), WEIGHTS)
def test_native_weights_compute_the_same(port, products, rng, dtype, tied):
    """Chunks, whole prompts and decodes in place, the table and the head; no matrix is held twice.

    Heads of 16 numbers are too short for a native layer.
    """
    plain, native = plain_and_native(port, products, dtype, tie_word_embeddings=tied, head_dim=16)
    held = [*matrices_of(native), native.embedding.weight, native.w_lm_head]
    assert {type(each) for each in held} == {products.NativeMatrix}
    assert (native.w_lm_head is native.embedding.weight) is tied, "a tied head is the table"
    assert_same_logits(port, rng, plain, native, dtype)


@NEEDS_KERNEL
@pytest.mark.port("torch")
def test_a_compiler_sees_native_products_as_operators(port, products, rng, monkeypatch):
    """Heads of 16 numbers are too short for a native layer: the parts around their attention are compiled."""
    plain, native = plain_and_native(port, products, head_dim=16)
    graphs, compiled = [], torch.compile

    def note(graph, inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", lambda part, **options: compiled(part, backend=note))
    assert_same_logits(port, rng, plain, given_of(port).compile_model(native, "cpu", 3))
    called = {str(node.target) for graph in graphs for node in graph.graph.nodes}
    assert "tiny_llm.native_linear.default" in called


@pytest.mark.port("mlx")
def test_mlx_compiles_no_layer_with_a_kernel(port, products):
    """A kernel reads numbers, and a trace has none."""
    plain = port.Qwen3ModelWeek3(random_checkpoint(port, CASE))
    compiled = given_of(port).compile_model(plain, "cpu", 1)
    assert compiled.layers[0] is not plain.layers[0]
    given_of(port).use_products(plain, "native")
    assert given_of(port).compile_model(plain, "cpu", 1).layers == plain.layers


@pytest.mark.port("torch")
def test_without_a_compiler_there_are_the_other_ways(monkeypatch, port, products):
    monkeypatch.setenv("TINY_LLM_NATIVE", "0")
    forget()
    try:
        assert "native" not in given_of(port).product_ways() and "matrix" in given_of(port).product_ways()
    finally:
        forget()


def forget():
    """Lets the next question ask for the kernel again."""
    for name in ("problem", "_functions"):
        vars(importlib.import_module("tiny_llm_ref.native").NATIVE.product).pop(name, None)


CHOICES = [
    on("torch", (PLAIN_WINS, NATIVE_WINS)),
    on("torch", (PACKED_WINS, NATIVE_WINS), marks=[NEEDS_ONEDNN]),
    on("mlx", (MLX_PLAIN_WINS, MLX_NATIVE_WINS)),
]


@NEEDS_KERNEL
@pytest.mark.parametrize("choices", CHOICES)
def test_answers_are_the_same_by_every_choice(monkeypatch, port, products, cache, choices):
    answers = []
    for seconds in choices:
        monkeypatch.setattr(product_choice, "measured_seconds", lambda port, seconds=seconds: seconds)
        with LLM(
            MODELS / "tiny-qwen3", backend=port.name, device="cpu", dtype="bfloat16", num_blocks=4
        ) as llm:
            [output] = llm.chat([{"role": "user", "content": "What is a KV cache?"}], use_tqdm=False)
        answers.append(output.outputs[0].text)
    assert len(set(answers)) == 1, answers


DECISIONS = [
    on("torch", PLAIN_WINS, "bfloat16", None, "measured", 1),
    on("torch", PLAIN_WINS, "bfloat16", None, "usual", 0),
    on("torch", PLAIN_WINS, "bfloat16", "measured", "usual", 1),
    on("torch", PLAIN_WINS, "bfloat16", "usual", "measured", 0),
    on("torch", PLAIN_WINS, "bfloat16", None, "", 1),
    on("torch", PLAIN_WINS, "float32", "measured", "measured", 0),
    on("mlx", MLX_PLAIN_WINS, "float32", "measured", "measured", 1),
    on("mlx", MLX_PLAIN_WINS, "bfloat16", None, "usual", 0),
    on("mlx", MLX_PLAIN_WINS, "float16", "measured", "measured", 0),
]


@pytest.mark.parametrize(("seconds", "dtype", "wanted", "variable", "count"), DECISIONS)
def test_who_decides(monkeypatch, port, products, cache, seconds, dtype, wanted, variable, count):
    calls = counted(monkeypatch, seconds)
    monkeypatch.setenv(product_choice.VARIABLE, variable)
    port.float_dtype = dtype
    choose_products(port, port.Qwen3ModelWeek3(random_checkpoint(port, CASE)), wanted)
    assert len(calls) == count


@pytest.mark.port("mlx")
def test_mlx_has_nothing_to_choose_on_a_gpu_or_without_a_compiler(monkeypatch, port, products, cache):
    calls = counted(monkeypatch, MLX_PLAIN_WINS)
    assert list(given_of(port).product_ways()) == list(BOTH)
    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(products.mx, "default_device", lambda: "gpu")
        assert given_of(port).product_ways() == {}
    monkeypatch.setattr(ProductKernel, "works", False)
    assert given_of(port).product_ways() == {} and product_choice.report(port) == "nothing to choose"
    choose_products(port, port.Qwen3ModelWeek3(random_checkpoint(port, CASE)))
    assert not calls and not list(cache.glob("products-*"))


@pytest.mark.port("mlx")
def test_float32_and_bf16_are_measured_apart(monkeypatch, port, cache):
    calls = counted(monkeypatch, MLX_PLAIN_WINS)
    for port.float_dtype in ("bfloat16", "float32", "bfloat16"):
        measured_seconds(port)
    assert len(calls) == 2 and len(list(cache.iterdir())) == 2


def test_a_word_that_is_none_of_the_choices_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"cpu_products is .fast.: give one of measured, usual"):
        EngineOptions(cpu_products="fast")
    monkeypatch.setenv(product_choice.VARIABLE, "fast")
    with pytest.raises(ValueError, match=r"TINY_LLM_PRODUCTS is .fast."):
        choose_products(None, None)


def test_the_weights_of_a_gpu_are_left_as_they_are():
    """A mixture multiplies by all its experts in one call there, if they are one array."""
    port = Port("ref", "torch", "cpu", "bfloat16")
    port.device = "cuda"
    assert choose_products(port, None, "usual") == choose_products(port, None, "measured") == ""
