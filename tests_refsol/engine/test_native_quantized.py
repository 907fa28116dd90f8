"""4- and 8-bit matrices by the kernel in C++ in the engine: the product, the choice, the model, what is held."""

import importlib
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from support.close import assert_close
from support.packed import PackedServing
from support.quantized import in_float16
from support.ranks import logits_of_two_steps
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.config import Quantization
from tiny_llm_engine.models.quantization import EMBEDDING, WeightQuantizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.job import Job
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.load_job import rounded_of
from tiny_llm_extensions.profiling import product_choice, quantized_choice
from tiny_llm_extensions.profiling.quantized_choice import ActivationChoice

pytestmark = pytest.mark.tool("c++")

EXACT = {"atol": 0, "rtol": 0}
KINDS = [(4, 32), (4, 64), (4, 128), (8, 32), (8, 64), (8, 128)]


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.port(name)) for name in ("torch", "mlx")])
def port(request):
    return Port("tiny_llm_ref", request.param, "cpu", "bfloat16")


@pytest.fixture
def native(port):
    """The module of the matrices."""
    return importlib.import_module(f"tiny_llm_extensions.kernels.{port.name}.native_quantized")


def quantized(port, rng, rows=48, columns=256, group_size=64, bits=4, dtype="bfloat16"):
    return port.quantize_matrix(port.array(rng.normal(size=(rows, columns)), dtype), group_size, bits)


def dense(port, w):
    return port.dequantize_weights(*w.parts, w.group_size, w.bits)


def rounded(x, group_size):
    """x with the numbers of each group rounded to 127 steps of its largest one."""
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size).astype(np.float32)
    scales = np.abs(groups).max(-1, keepdims=True) / 127
    return (np.rint(groups / scales) * scales).reshape(x.shape).astype(np.float64)


# The matrix.


@pytest.mark.parametrize(("bits", "group_size"), KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(256,), (1, 1, 256), (3, 5, 256), (0, 256)])
def test_a_product_is_that_of_rounded_activations(port, native, rng, bits, group_size, dtype, shape):
    w = quantized(port, rng, 37, 256, group_size, bits, dtype)
    x, bias = port.array(rng.normal(size=shape), dtype), port.array(rng.normal(size=37), dtype)
    out = given_of(port).native_quantized(w)(x, bias)
    expected = rounded(port.numpy(x), group_size) @ port.numpy(dense(port, w)).astype(float).T
    assert out.dtype == x.dtype and tuple(out.shape) == (*shape[:-1], 37)
    # A number halfway between two steps may become either.
    assert_close(port.numpy(out), expected + port.numpy(bias), rtol=0.01, atol=0.15, idea="rounded product")


@pytest.mark.parametrize(("bits", "group_size"), KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 2, 5, 11])
def test_16_bits_keep_what_bytes_lose(port, native, rng, bits, group_size, dtype, rows):
    """Against x itself, where bytes alone are a hundred times less exact; and y is rounded."""
    w = quantized(port, rng, 37, 256, group_size, bits, dtype)
    x, bias = port.array(rng.normal(size=(rows, 256)), dtype), port.array(rng.normal(size=37), dtype)
    out = given_of(port).native_quantized(w, x_bits=16)(x, bias)
    expected = port.numpy(x).astype(float) @ port.numpy(dense(port, w)).astype(float).T + port.numpy(bias)
    off = np.linalg.norm(port.numpy(out).astype(float) - expected, axis=-1) / np.linalg.norm(
        expected, axis=-1
    )
    assert off.max() < (1e-4 if dtype == "float32" else 2**-8)


def test_rows_that_do_not_follow_each_other_are_copied(port, native, rng):
    w = given_of(port).native_quantized(quantized(port, rng))
    x = rng.normal(size=(4, 512))
    found, expected = w(port.array(x, "float32")[:, ::2]), w(port.array(x[:, ::2].copy(), "float32"))
    assert_close(port.numpy(found), port.numpy(expected), **EXACT, idea="strides")


@pytest.mark.parametrize(("bits", "group_size"), KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_are_those_of_day_2_2(port, native, rng, bits, group_size, dtype):
    w, ids = quantized(port, rng, 37, 256, group_size, bits, dtype), np.array([[0, 36, 7], [7, 16, 15]])
    rows = given_of(port).native_quantized(w).rows(port.array(ids))
    assert rows.dtype == w.scales.dtype
    assert_close(port.numpy(rows), port.numpy(dense(port, w))[ids], **EXACT, idea="rows of the table")


def test_what_cannot_be_multiplied_is_an_error_before_the_call(port, native, rng):
    w = given_of(port).native_quantized(quantized(port, rng))
    wrong = [port.array(np.ones((2, 255)), "bfloat16"), port.array(np.ones((2, 256)), "float16")]
    if port.name == "torch":  # MLX's arrays are on no device
        wrong.append(port.array(np.ones((2, 256)), "float32").to("meta"))
    for x in wrong:
        with pytest.raises(ValueError, match=r"x is .* and must be \(\.\.\., 256\) bfloat16 or float32"):
            w(x)
    with pytest.raises(ValueError, match=r"bias has 47 numbers, and W \(48, 256\) has 48 outputs"):
        w(port.array(np.ones((2, 256)), "bfloat16"), port.array(np.ones(47), "bfloat16"))


# Scales in float16.


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_float16_scales_stay_as_they_are(port, native, rng, bits, dtype):
    """16 + 16 bits for 32 numbers; rows are computed in float32, and rounded once to the type of the model."""
    w, matrix = in_float16(port, rng, 48, 96, bits, dtype)
    packed = given_of(port).native_quantized(w)
    assert packed.nbytes == 48 * 96 * (bits + 1) / 8
    assert packed.dtype == port.dtype(dtype)
    rows = port.embedding_of(48, 96, packed)(port.array(np.arange(48)))
    assert rows.dtype == port.dtype(dtype)
    assert_close(port.numpy(rows), port.numpy(port.array(matrix, dtype)), **EXACT, idea="rounded once")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rows", [1, 9])
def test_float16_scales_cost_nothing_beside_rounded_activations(port, native, rng, bits, dtype, rows):
    """Against the matrix in float64: x rounded to bytes, and an output rounded once, are the whole error."""
    w, matrix = in_float16(port, rng, 48, 96, bits, dtype)
    x = port.array(rng.normal(size=(rows, 96)), dtype)
    found = port.numpy(given_of(port).native_quantized(w)(x)).astype(float)
    expected = rounded(port.numpy(x), 32) @ matrix.T
    off = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert off < (1e-5 if dtype == "float32" else 2**-8)


def test_packing_holds_few_rows_in_bytes(port, native, rng):
    """NumPy's memory alone: beside the packed matrix, which is the port's."""
    w = quantized(port, rng, 16384, 64)
    tracemalloc.start()
    given_of(port).native_quantized(w)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16384 * 64 / 2


@pytest.mark.parametrize("bits", [4, 8])
def test_a_table_has_one_form(port, rng, bits):
    """Rows and scores of a tied table: the bytes of its words, and no words."""
    w = quantized(port, rng, bits=bits)
    config = SimpleNamespace(tie_word_embeddings=True, quantization=Quantization(group_size=64, bits=bits))
    held = WeightQuantizer(port, None, ActivationChoice(port, "int8")).keep(
        EMBEDDING, w.parts, config, "bfloat16"
    )
    embedding = port.embedding_of(48, 256, held)
    ids, x = np.array([[0, 47], [7, 7]]), port.array(rng.normal(size=(2, 3, 256)), "float32")
    table = port.numpy(dense(port, w))
    assert type(held).__name__ == "NativeQuantizedMatrix" and held.nbytes == w.nbytes
    assert_close(port.numpy(embedding(port.array(ids))), table[ids], **EXACT, idea="rows of the table")
    expected = rounded(port.numpy(x), 64) @ table.astype(float).T
    assert_close(port.numpy(embedding.as_linear(x)), expected, rtol=0.01, atol=0.1, idea="scores")


# The choice.

# Bytes alone are the fastest, and never the default.
FAST, SLOW = dict.fromkeys(product_choice.MIX, 1.0), dict.fromkeys(product_choice.MIX, 2.0)
BYTES = {"int8": dict.fromkeys(product_choice.MIX, 0.5)}
USUAL_WINS, NATIVE_WINS = {"usual": FAST, "int16": SLOW} | BYTES, {"usual": SLOW, "int16": FAST} | BYTES


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """An empty cache folder, where everything is measured; returns the list of (dtype, bits) of each measurement."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(product_choice.VARIABLE, "measured")
    calls = []

    def measure(port, bits):
        calls.append((port.float_dtype, bits))
        return NATIVE_WINS if bits == 4 else USUAL_WINS

    monkeypatch.setattr(quantized_choice, "measure", measure)
    return calls


@pytest.fixture
def forget(port):
    """Lets the next question ask for the kernel again, now and afterwards."""

    def ask_again():
        for name in ("problem", "multiply_addresses"):
            vars(given_of(port).kernels.quantized_product).pop(name, None)

    ask_again()
    yield ask_again
    ask_again()


def test_a_measurement_has_all_ways_and_every_number_of_rows(monkeypatch, port):
    monkeypatch.setattr(quantized_choice, "SHAPE", (32, 64))
    monkeypatch.setattr(product_choice, "SHAPE", (32, 64))
    monkeypatch.setattr(quantized_choice, "BYTES", dict.fromkeys(quantized_choice.BYTES, 2**12))
    for bits in (4, 8):
        found = quantized_choice.measure(port, bits)
        assert found.keys() == {"usual", "int8", "int16"}
        assert all(sorted(each) == [1, 4, 16, 128] for each in found.values())
        assert all(seconds > 0 for each in found.values() for seconds in each.values())


def test_each_kind_of_matrix_is_measured_once(port, measured):
    for _ in "ab":
        rounds = quantized_choice.activation_choice(port, None).rounds
        assert (rounds(4), rounds(8)) == ("int16", "")
    assert quantized_choice.activation_choice(Port("tiny_llm_ref", port.name, "cpu", "float32"), None).rounds(
        4
    )
    assert measured == [("bfloat16", 4), ("bfloat16", 8), ("float32", 4)]


def test_doctor_says_what_was_chosen(monkeypatch, port, measured, forget):
    assert quantized_choice.report(port, 4).startswith("4 bits: int16 activations; GB/s of weights at 1, 4")
    assert quantized_choice.report(port, 8).startswith("8 bits: float activations; GB/s")
    assert "; GOP/s at 128 rows: usual " in quantized_choice.report(port, 4)
    monkeypatch.setenv("TINY_LLM_NATIVE", "0")
    forget()
    assert quantized_choice.report(port, 4) == (
        "4 bits: float activations (the kernel does not run here: TINY_LLM_NATIVE is 0)"
    )


def test_arithmetic_is_two_operations_per_number_and_row():
    """1 ns for a byte, which has two 4-bit numbers: by 128 rows they are 512 operations."""
    words = quantized_choice.arithmetic_in_words({"int16": {128: 1e-9}}, 4, peak=2e12)
    assert words == "GOP/s at 128 rows: int16 512; registers give int16 2,000"


DECISIONS = [
    ("measured", {}, "int16"),
    ("usual", {}, ""),
    ("measured", {"activations": "float"}, ""),
    ("usual", {"activations": "int8"}, "int8"),
    ("measured", {"cpu_products": "usual"}, ""),
    ("measured", {"tensor_parallel_size": 2}, ""),
    ("", {}, "int16"),
]


@pytest.mark.parametrize(("variable", "options", "expected"), DECISIONS)
def test_who_decides(monkeypatch, port, measured, variable, options, expected):
    monkeypatch.setenv(product_choice.VARIABLE, variable)
    job = Job("tiny_llm_ref", port.name, "cpu", "bfloat16", "tiny-qwen3", "4bit", engine_options=options)
    assert rounded_of(job, port).rounds(4) == expected


def test_a_plain_model_measures_nothing_and_rounds_nothing(port, measured):
    job = Job("tiny_llm_ref", port.name, "cpu", "bfloat16", "tiny-qwen3", None)
    assert rounded_of(job, port) is None and not measured
    with pytest.raises(ValueError, match='activations is "int8", and no weight is quantised: quantise'):
        LLM(activations="int8", backend=port.name, device="cpu")


WITHOUT = {
    "float16": "the kernel has no float16: choose bfloat16 or float32",
    "float32": "TINY_LLM_NATIVE is 0",
}


@pytest.mark.parametrize(("dtype", "says"), WITHOUT.items())
def test_without_a_kernel_there_is_todays_arithmetic_or_one_line(
    monkeypatch, port, measured, forget, dtype, says
):
    monkeypatch.setenv("TINY_LLM_NATIVE", "0")
    port = Port("tiny_llm_ref", port.name, "cpu", dtype)
    assert not quantized_choice.activation_choice(port, None).rounds(4) and not measured
    assert list(given_of(port).quantized_ways()) == ["usual"]
    with pytest.raises(ValueError, match=f'activations is "int8", and .*{says}; leave activations out'):
        LLM(quantization="4bit", activations="int8", backend=port.name, device="cpu", dtype=dtype)


def test_a_blank_kernel_is_no_choice(monkeypatch, port, measured, forget):
    kernel = given_of(port).kernels.quantized_product
    monkeypatch.setitem(vars(kernel), "multiply_addresses", lambda *arguments: 3)
    assert not quantized_choice.activation_choice(port, None).rounds(4) and not measured
    with pytest.raises(ValueError, match="week 4 day 1 task 3: multiply_group; leave activations out"):
        quantized_choice.activation_choice(port, "int8")


# The model.

# Relative norm of the difference of logits: what rounding to bytes costs, twice what was seen.
LARGEST_ERROR = 0.05


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("tied", "head_dim"), [(True, 16), (False, 32)])
def test_logits_differ_by_the_rounding_alone(port, rng, bits, dtype, tied, head_dim):
    """Chunks, whole prompts and decodes, with every matrix quantised, table and head too; nothing is held twice.

    Heads of 32 numbers are long enough for a step in one call.
    """
    port = Port("tiny_llm_ref", port.name, "cpu", dtype)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": head_dim}
    case = small_model(3, tie_word_embeddings=tied, hidden_size=64, intermediate_size=128, **heads)
    plain = random_checkpoint(port, case, dtype).weights
    models = []
    for rounded in (None, ActivationChoice(port, "int8")):
        quantizer = WeightQuantizer(port, bits, rounded)
        weights = {
            name: quantizer.quantize(name, array, case.config) if len(array.shape) == 2 else array
            for name, array in plain.items()
        }
        models.append(port.Qwen3ModelWeek3(Checkpoint(case.config, weights), attention="device"))
        given_of(port).use_packed_kernels(models[-1])
        given_of(port).use_native_layers(models[-1])
    assert ["compute" in vars(model) for model in models] == [False, head_dim == 32]
    held = [w for name, w in weights.items() if len(plain[name].shape) == 2]
    assert {type(w).__name__ for w in held} == {"NativeQuantizedMatrix"}
    assert 0 < relative_error(port, rng, models) < LARGEST_ERROR


def relative_error(port, rng, models):
    """By how much the logits of the second model differ from those of the first."""
    vocab_size = models[0].config.vocab_size
    prompts = [rng.integers(0, vocab_size, size=size).tolist() for size in (14, 5, 9, 6)]
    logits = (logits_of_two_steps(PackedServing(port, port.serving, model), prompts) for model in models)
    usual, native = (np.stack([rows[place] for place in sorted(rows)]) for rows in logits)
    return np.linalg.norm(native - usual) / np.linalg.norm(usual)


TORCH = [pytest.param("torch", marks=pytest.mark.port("torch"))]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_may_have_4_and_8_bits(port, rng, dtype):
    """By tensor: the logits are those of the same products one by one."""
    port = Port("tiny_llm_ref", port.name, "cpu", dtype)
    case = small_model(3, hidden_size=64, intermediate_size=128, head_dim=32)
    weights = dict(random_checkpoint(port, case, dtype).weights)
    for name, array in weights.items():
        bits = 8 if any(part in name for part in ("v_proj", "up_proj", "embed")) else 4
        if len(array.shape) == 2:
            quantizer = WeightQuantizer(port, bits, ActivationChoice(port, "int8"))
            weights[name] = quantizer.quantize(name, array, case.config)
    checkpoint = Checkpoint(case.config, weights)
    models = [port.Qwen3ModelWeek3(checkpoint, attention="device") for _ in range(2)]
    for model in models:
        given_of(port).use_packed_kernels(model)
    given_of(port).use_native_layers(models[1])
    assert ["compute" in vars(model) for model in models] == [False, True]
    # An activation halfway between two bytes may become either.
    assert relative_error(port, rng, models) < LARGEST_ERROR


@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_shipped_model_answers_the_same(port, quantization, dtype):
    answers = []
    for activations in ("float", "int8"):
        options = {"activations": activations, "dtype": dtype, "num_blocks": 4}
        with LLM(backend=port.name, device="cpu", quantization=quantization, **options) as llm:
            assert ("compute" in vars(llm.engine.network)) is (activations == "int8")
            [output] = llm.chat([{"role": "user", "content": "What is a KV cache?"}], use_tqdm=False)
        answers.append(output.outputs[0].text)
    assert answers[0] == answers[1] != ""


@pytest.mark.parametrize("port", TORCH, indirect=True)
@pytest.mark.parametrize("scales", ["bfloat16", "float16"])
def test_a_compiled_product_is_the_eager_one(port, native, rng, scales):
    """One graph for any number of rows, in which the kernel is an operator of our own."""
    import torch

    torch._dynamo.reset()
    graphs = []

    def keep(graph, inputs):
        graphs.append(str(graph.graph))
        return graph

    w = given_of(port).native_quantized(
        quantized(port, rng) if scales == "bfloat16" else in_float16(port, rng, 48, 256, 4, "bfloat16")[0]
    )
    compiled = torch.compile(lambda x: w(x), backend=keep, fullgraph=True)
    for rows in (5, 7, 40):
        x = port.array(rng.normal(size=(rows, 256)), "bfloat16")
        torch._dynamo.maybe_mark_dynamic(x, 0)
        assert_close(port.numpy(compiled(x)), port.numpy(w(x)), **EXACT, idea="eager")
    assert len(graphs) == 1 and "tiny_llm.native_quantized_linear" in graphs[0]
