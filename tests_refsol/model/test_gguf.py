"""GGUF files: the same model as the folder that they were written from, nothing rounded anew, and bad ones refused."""

import json
import os
import re
import struct
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests_refsol.model.family_cases import CASES, oracle
from tests_refsol.model.gguf_cases import ARCHITECTURES, write_gguf
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.config import Quantization, config_of, read_config
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.hub import find_model
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.models.rope_scaling import RopeScaling
from tiny_llm_engine.models.weights import stored_weights
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.gguf.gguf_tensors import wanted_tensors

BACKENDS = installed_backends()
FAMILIES = ["qwen3-gqa-tied", "qwen2-gqa-tied", "llama2-mha", "llama-biases", "mixtral-gqa"]
FAMILIES += ["qwen3-moe-gqa-tied"]
NORM = "output_norm.weight"
YARN = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 4.0}
QUERY, TABLE = "model.layers.1.self_attn.q_proj.weight", "model.embed_tokens.weight"


def numbers(b: Port, weights) -> dict[str, np.ndarray]:
    return {name: b.numpy(array) for name, array in weights.items()}


def loaded(path: Path, backend: str, **options) -> dict[str, np.ndarray]:
    weights = load_checkpoint(path, backend, "cpu", "float32", **options).weights
    module = import_module(f"tiny_llm_engine.backends.backend_{backend}")
    return {name: module.to_numpy(array) for name, array in weights.items()}


def config_of_case(name: str):
    return config_of(
        oracle(CASES[name]).config.to_dict() | {"architectures": [f"{CASES[name].family}ForCausalLM"]}
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file_is_the_folder_that_it_was_written_from(tmp_path, name):
    """The same configuration and the same numbers; llama's rows are back in order."""
    oracle(CASES[name]).save_pretrained(tmp_path)
    file = write_gguf(tmp_path, tmp_path / "model.gguf")
    assert replace(find_model(file).config(), dtype=None) == replace(read_config(tmp_path), dtype=None)
    for backend in BACKENDS:
        expected, found = loaded(tmp_path, backend), loaded(file, backend)
        assert found.keys() == expected.keys()
        for weight in expected:
            np.testing.assert_array_equal(found[weight], expected[weight], err_msg=weight)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A Llama of two layers whose rows can be quantised: E 64, F 96, H 4, Hkv 2."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "head_dim": 16,
    }
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 70}
    config |= {"rope_theta": 9000.0, "max_position_embeddings": 128, "rms_norm_eps": 1e-5}
    config |= {"tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    rng, E, F = np.random.default_rng(2), 64, 96
    layer = {"self_attn.q_proj": (64, E), "self_attn.k_proj": (32, E), "self_attn.v_proj": (32, E)}
    layer |= {"self_attn.o_proj": (E, 64), "mlp.gate_proj": (F, E), "mlp.up_proj": (F, E)}
    layer |= {"mlp.down_proj": (E, F), "input_layernorm": (E,), "post_attention_layernorm": (E,)}
    shapes = {TABLE: (70, E), "model.norm.weight": (E,)}
    shapes |= {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in layer.items()}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def mixed(name: str) -> str:
    """4 and 8 bits in one model, by tensor."""
    return {"token_embd": "Q8_0", "ffn_down": "Q8_0", "attn_q": "Q4_1"}.get(name.split(".")[-2], "Q4_0")


@pytest.mark.parametrize("backend", BACKENDS)
def test_stored_bits_stay_as_they_are(folder, backend):
    """Words, scales and biases give the library's own numbers, and so does their dequantised form."""
    file = write_gguf(folder, folder / "model.gguf", mixed)
    plain, b = loaded(file, backend), Port("tiny_llm_ref", backend, "cpu", "float32")
    files = find_model(file)
    kept = files.config().quantization
    assert kept == Quantization(group_size=32, bits=4, by_name=kept.by_name)
    assert {name.split(".")[-2] for name in kept.by_name} == {"embed_tokens", "down_proj"}
    for name in (QUERY, TABLE, "model.layers.0.mlp.down_proj.weight"):
        stem, bits = name.removesuffix(".weight"), kept.of(name).bits
        parts = files.numbers(name), *(files.numbers(f"{stem}.{part}") for part in ("scales", "biases"))
        assert [part.dtype for part in parts] == [np.uint32, np.float16, np.float16]
        words, scales, biases = map(b.array, (parts[0], *(x.astype(np.float32) for x in parts[1:])))
        np.testing.assert_array_equal(
            b.numpy(b.dequantize_weights(words, scales, biases, 32, bits)), plain[name]
        )
    reader = gguf.GGUFReader(file)
    stored = {tensor.name: tensor for tensor in reader.tensors}["blk.0.ffn_down.weight"]
    theirs = gguf.dequantize(stored.data, stored.tensor_type)
    np.testing.assert_allclose(plain["model.layers.0.mlp.down_proj.weight"], theirs, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_other_types_are_dequantized_and_named(folder, backend, capsys):
    """In the engine's type, and one line says which type it was and what it takes."""
    file = write_gguf(folder, folder / "model.gguf", lambda name: "Q5_1" if "ffn" in name else "BF16")
    loaded(file, backend)
    assert capsys.readouterr().err == "weights in Q5_1 are dequantised to float32: 0 MB\n"


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_line_says_what_is_kept_and_where_that_is_slow(folder, backend, capsys):
    file = write_gguf(folder, folder / "model.gguf", lambda name: "Q4_0")
    port = Port("tiny_llm_ref", backend, "cpu", "bfloat16")
    load_checkpoint(file, backend, "cpu", "bfloat16", WeightQuantizer(port))
    line = "weights stay as they are stored: Q4_0 with float activations"
    assert capsys.readouterr().err == line + stored_weights.SLOW * (backend == "mlx") + "\n"


# The format has no dense layers among those of Qwen3-MoE.
@pytest.mark.parametrize("name", [*FAMILIES[:-1], "qwen3-moe-mha-window"])
def test_names_of_tensors_are_those_of_the_format(name):
    """The library's own table, from the names of Hugging Face."""
    family = CASES[name].family
    architecture = ARCHITECTURES.get(family, family.lower())
    [arch] = [key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture]
    table = gguf.get_tensor_name_map(arch, 3)
    for key, wanted in wanted_tensors(config_of_case(name)).items():
        of_file = table.get_name(wanted.name.replace(".{}.", "."), try_suffixes=(".weight", ".bias"))
        assert of_file == key


def test_a_type_that_the_library_does_not_dequantise(folder, capsys):
    """Before a line says how much memory the others take."""
    file = write_gguf(folder, folder / "model.gguf", lambda name: "F64" if "ffn_up" in name else "Q5_0")
    with pytest.raises(
        CheckpointError, match="a tensor is stored as F64, which the library gguf does not dequantise"
    ):
        loaded(file, BACKENDS[0])
    assert capsys.readouterr().err == ""


def test_llama3_frequencies_are_a_tensor(folder):
    def add(tensors):
        tensors["rope_freqs.weight"] = np.arange(1, 9, dtype=np.float32)

    scaling = find_model(write_gguf(folder, folder / "model.gguf", edit=add)).config().rope_scaling
    plain = 9000.0 ** (-np.arange(8, dtype=np.float32) / 8)
    assert isinstance(scaling, RopeScaling) and scaling.rope_type == "llama3"
    np.testing.assert_allclose(scaling.frequencies, plain / np.arange(1, 9), rtol=1e-6)


@pytest.mark.parametrize("kind", ["linear", None])
def test_scaling_is_in_the_header(folder, kind):
    """A factor alone is linear, as in llama.cpp."""
    keys = {"llama__rope__scaling__type": kind, "llama__rope__scaling__factor": 4.0}
    scaling = find_model(write_gguf(folder, folder / "model.gguf", **keys)).config().rope_scaling
    assert scaling.rope_type == "linear"
    assert scaling.frequencies[0] == 0.25


def test_one_number_for_all_layers_may_stand_there_for_each(folder):
    plain = find_model(write_gguf(folder, folder / "model.gguf")).config()
    heads = {"head_count": [plain.num_attention_heads] * 2, "head_count_kv": [plain.num_key_value_heads] * 2}
    keys = {f"llama__attention__{name}": numbers for name, numbers in heads.items()}
    assert find_model(write_gguf(folder, folder / "lists.gguf", **keys)).config() == plain


def test_the_parts_of_a_split_file_are_one_model(folder):
    """The first one is named; its tensors and those of the others are together."""
    whole = write_gguf(folder, folder / "model.gguf")
    names = [f"split-0000{part}-of-00002.gguf" for part in (1, 2)]
    count = {"split__count": 2, "split__tensors__count": 20}
    write_gguf(folder, folder / names[0], edit=lambda t: [t.pop(n) for n in list(t) if "blk.1" in n], **count)
    write_gguf(
        folder, folder / names[1], edit=lambda t: [t.pop(n) for n in list(t) if "blk.1" not in n], **count
    )
    expected, found = loaded(whole, "torch"), loaded(folder / names[0], "torch")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    with pytest.raises(
        CheckpointError, match="one part of a model in 2 files: give the first one, split-00001"
    ):
        find_model(folder / names[1])
    (folder / names[1]).unlink()
    os.utime(folder / names[0])  # opened a moment ago: only a new file is read again
    with pytest.raises(
        CheckpointError, match=r"split-00002-of-00002\.gguf: not found, and the model has 2 parts"
    ):
        find_model(folder / names[0])


LAST = "blk.1.ffn_down.weight"


def bad_files(folder: Path) -> dict[str, tuple[bytes, str]]:
    """Files that are refused, and what is said of them after their path."""
    good = write_gguf(folder, folder / "good.gguf").read_bytes()
    header = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    array = header + struct.pack("<IIQ", 9, 4, 2**40)
    return {
        "no GGUF": (b"PK\3\4" * 9, "not a GGUF file: its first bytes are b'PK\\x03\\x04'"),
        "empty": (b"", "not a GGUF file: its first bytes are b''"),
        "an old version": (
            good[:4] + b"\1" + good[5:],
            "has version 1 of GGUF, and 2 and 3 are read: choose",
        ),
        "big-endian": (
            b"GGUF\0\0\0\3" + bytes(16),
            "is in big-endian byte order: download the little-endian",
        ),
        "cut in its tensors": (good[:-100], "broken GGUF file: it ends at byte"),
        "cut in its header": (good[:300], "broken GGUF file: "),
        "an endless array": (array, f"broken GGUF file: an array has {2**40} entries"),
        "an endless string": (
            header + struct.pack("<IQ", 8, 2**60) + bytes(9),
            "broken GGUF file: it ends at",
        ),
        "an endless list of strings": (header + struct.pack("<IIQ", 9, 8, 10**6), "broken GGUF file: "),
        "arrays of arrays": (
            header + struct.pack("<IIQ", 9, 9, 3),
            "broken GGUF file: an array holds arrays",
        ),
        "endless tensors": (counts(2**40, 0), f"broken GGUF file: it has {2**40} tensors"),
        "endless keys": (counts(0, 2**40), f"broken GGUF file: it has {2**40} keys"),
        "an offset of 64 bits": (with_offset(good, 2**64 - 8), "broken GGUF file: "),
        "two tensors in one place": (with_offset(good, 0), f"broken GGUF file: tensor '{LAST}' has offset 0"),
        "an unknown type": (
            header + struct.pack("<I", 77),
            "broken GGUF file: 77 is not a valid GGUFValueType",
        ),
    }


def counts(tensors: int, keys: int) -> bytes:
    """The beginning of a file with these counts, and zeros."""
    return struct.pack("<4sIQQ", b"GGUF", 3, tensors, keys) + bytes(99)


def with_offset(file: bytes, offset: int) -> bytes:
    """The same file with this offset of its last tensor."""
    [name] = re.findall(re.escape(LAST.encode()) + rb".{24}", file, re.DOTALL)
    at = file.index(name) + len(name)
    return file[:at] + struct.pack("<Q", offset) + file[at + 8 :]


def test_a_bad_file_gets_one_line(folder):
    for name, (content, said) in bad_files(folder).items():
        path = folder / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as error:
            find_model(path).config()
        assert str(error.value).startswith(f"{path}: {said}"), name
        assert "\n" not in str(error.value)


LIKES, MISSING = "and must be llama, qwen2, qwen3", "is missing; download the file again"
WRONG = [
    ({"general__architecture": "gemma3"}, f"general.architecture is 'gemma3' {LIKES}"),
    ({"general__architecture": ["llama"]}, f"general.architecture is ['llama'] {LIKES}"),
    ({"llama__block_count": None}, "llama.block_count is missing and must be a whole number"),
    ({"llama__block_count": 4_000_000_000}, "llama.block_count is 4000000000 and must be a whole"),
    (YARN | {"llama__rope__scaling__attn_factor": 2.0}, "rope.scaling.attn_factor is 2.0 and must be 1"),
    ({"llama__embedding_length": 128}, "tensor 'token_embd.weight' has shape (70, 64), and the"),
    ({"llama__rope__dimension_count": 8}, "rope.dimension_count is 8 and must be the size of a head, 16"),
    ({"llama__rope__scaling__type": "longrope"}, "rope_scaling.rope_type is 'longrope' and must be"),
    ({"llama__attention__head_count_kv": [2, 1]}, "llama.attention.head_count_kv is [2, 1] and must be a"),
    ({"split__count": "two"}, "split.count is 'two' and must be a number of files"),
    ({"edit": lambda t: t.pop("blk.1.ffn_up.weight")}, f"tensor 'blk.1.ffn_up.weight' {MISSING}"),
    ({"edit": lambda t: t.update({"blk.1.x.bias": t[NORM]})}, "tensor 'blk.1.x.bias' is not of an"),
    ({"edit": lambda t: t.update({NORM: t[NORM][:-1]})}, "tensor 'output_norm.weight' has shape (63,)"),
]


@pytest.mark.parametrize(("changes", "said"), WRONG)
def test_a_wrong_key_or_tensor_is_named(folder, changes, said):
    path = write_gguf(folder, folder / "wrong.gguf", **changes)
    with pytest.raises(CheckpointError) as error:
        find_model(path).headers()
    assert str(error.value).startswith(f"{path}: {said}")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"no\.gguf: cannot be read \(No such file or directory\)"):
        find_model(tmp_path / "no.gguf")


@pytest.mark.parametrize("bits", [None, 4])
def test_a_model_larger_than_memory_is_refused(folder, monkeypatch, bits):
    """Before a weight is read. Quantised weights count as they are held: those of a file, or those that are made now.

    Of 87,232 numbers 78,848 are in layers' matrices: 39 kB in 4 bits, and 315 in float32.
    """
    path = folder if bits else write_gguf(folder, folder / "model.gguf", mixed)
    b = Port("tiny_llm_ref", BACKENDS[0], "cpu", "float32")
    monkeypatch.setattr(stored_weights, "SMALL", 0)
    monkeypatch.setattr(stored_weights, "free_ram", lambda: 100_000)
    load_checkpoint(path, b.name, "cpu", "float32", WeightQuantizer(b, bits))
    with pytest.raises(CheckpointError, match=r"the weights take 0\.0 GiB in float32, and 0\.0 GiB are free"):
        load_checkpoint(path, b.name, "cpu", "float32")


def test_the_library_is_imported_when_a_file_is_opened(folder, monkeypatch):
    """Not before: no other model needs it."""
    for name in [name for name in sys.modules if name.startswith(("gguf", "tiny_llm_engine.models.gguf"))]:
        monkeypatch.delitem(sys.modules, name)
    find_model("tiny-qwen3").config()
    assert not any(name.partition(".")[0] == "gguf" for name in sys.modules)
