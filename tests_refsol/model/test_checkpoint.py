"""Correct folders: what transformers wrote, both ports read, to the bit."""

import json
from importlib import import_module

import numpy as np
import pytest
from safetensors.numpy import save_file

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.output_head import HEAD_LINE

BACKENDS = installed_backends()
SHAPE = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
SHAPE |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512}


def numpy_weights(checkpoint: Checkpoint, backend: str) -> dict[str, np.ndarray]:
    to_numpy = import_module(f"tiny_llm_engine.backends.backend_{backend}").to_numpy
    return {name: to_numpy(array) for name, array in checkpoint.weights.items()}


def type_names(checkpoint: Checkpoint) -> set[str]:
    return {str(array.dtype).split(".")[-1] for array in checkpoint.weights.values()}


if "torch" in BACKENDS:  # the oracle, transformers, needs it

    def saved_by_transformers(folder, dtype="float32", shard="1GB", **fields):
        """Random weights in a folder of transformers' making; returns what they are, by name."""
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPE, **fields)).to(getattr(torch, dtype))
        model.save_pretrained(folder, max_shard_size=shard)
        return {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_two_shards_and_an_untied_head(tmp_path, backend):
        expected = saved_by_transformers(tmp_path, shard="60KB", tie_word_embeddings=False)
        assert len(list(tmp_path.glob("model-*-of-00002.safetensors"))) == 2
        checkpoint = load_checkpoint(tmp_path, backend, device="cpu")
        loaded = numpy_weights(checkpoint, backend)
        assert loaded.keys() == expected.keys() and "lm_head.weight" in loaded
        for name, array in expected.items():
            np.testing.assert_array_equal(loaded[name], array, err_msg=name)

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_tied_head_is_the_embedding(tmp_path, backend):
        expected = saved_by_transformers(tmp_path, tie_word_embeddings=True)
        checkpoint = load_checkpoint(tmp_path, backend, device="cpu")
        assert checkpoint.config.tie_word_embeddings
        assert checkpoint.weights.keys() == expected.keys() - {"lm_head.weight"}
        assert tuple(checkpoint.weight("model.embed_tokens.weight", 96, 32).shape) == (96, 32)

    @pytest.mark.parametrize("wanted", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_every_type_is_rounded_once(tmp_path, backend, stored, wanted):
        import torch

        expected = saved_by_transformers(tmp_path, stored, tie_word_embeddings=False)
        checkpoint = load_checkpoint(tmp_path, backend, device="cpu", dtype=wanted)
        assert type_names(checkpoint) == {wanted} and checkpoint.config.dtype == stored
        for name, array in numpy_weights(checkpoint, backend).items():
            rounded = torch.tensor(expected[name]).to(getattr(torch, wanted)).float().numpy()
            np.testing.assert_array_equal(array.astype(np.float32), rounded, err_msg=name)

    def test_the_configuration_is_transformers(tmp_path):
        saved_by_transformers(tmp_path, tie_word_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-5)
        config = load_checkpoint(tmp_path, "torch", device="cpu").config
        assert {name: getattr(config, name) for name in SHAPE} == SHAPE
        assert (config.rope_theta, config.rms_norm_eps) == (5e5, 1e-5)
        assert not config.tie_word_embeddings


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cpu_gets_float32_unless_asked(folder, backend):
    assert type_names(load_checkpoint(folder, backend, device="cpu")) == {"float32"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_a_tied_head_is_not_read(folder, arrays, backend):
    save_file(arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}, folder / "model.safetensors")
    assert load_checkpoint(folder, backend, device="cpu").weights.keys() == arrays.keys()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_saved_head_that_differs_from_the_tied_table_is_used(folder, arrays, backend, capsys):
    """As after adapters were merged; transformers 5 uses it too."""
    head = arrays["model.embed_tokens.weight"] + np.eye(320, 32, dtype=np.float32)
    save_file(arrays | {"lm_head.weight": head}, folder / "model.safetensors")
    checkpoint = load_checkpoint(folder, backend, device="cpu")
    assert not checkpoint.config.tie_word_embeddings
    np.testing.assert_array_equal(numpy_weights(checkpoint, backend)["lm_head.weight"], head)
    assert capsys.readouterr().err == f"{HEAD_LINE}\n"
    save_file(arrays | {"lm_head.weight": head.astype(np.float16)}, folder / "model.safetensors")
    assert not load_checkpoint(folder, backend, device="cpu").config.tie_word_embeddings, "of another type"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_copy_of_a_quantised_table_is_not_read(folder, backend, edit):
    edit("config.json", quantization={"group_size": 32, "bits": 8})
    words, numbers = np.arange(320 * 8, dtype=np.uint32).reshape(320, 8), np.ones((320, 1), np.float32)
    table = {"weight": words, "scales": numbers, "biases": numbers}
    for head, tied in ((table, True), (table | {"scales": numbers * 2}, False)):
        both = {"model.embed_tokens": table, "lm_head": head}
        tensors = {f"{name}.{part}": array for name, parts in both.items() for part, array in parts.items()}
        save_file(tensors, folder / "model.safetensors")
        assert load_checkpoint(folder, backend, device="cpu").config.tie_word_embeddings == tied


BUFFERS = {
    "model.rotary_emb.inv_freq": np.full(4, np.inf, np.float32),
    "model.layers.0.self_attn.rotary_emb.inv_freq": np.full(4, np.nan, np.float32),
    "model.layers.0.self_attn.bias": np.tri(8, dtype=bool)[None, None],
    "model.layers.0.self_attn.masked_bias": np.array(-np.inf, np.float32),
    "model.position_ids": np.arange(9),
}
UNUSED = {
    "model.layers.0.self_attn.\nempty": np.zeros((0, 3), np.uint8),
    "words": np.ones((3, 4), np.uint32),
    "model.layers.2.input_layernorm.weight": np.ones(32, np.float32),  # the config has two layers
    "model.layers.0.self_attn.q_proj.bias": np.ones(48, np.float32),
    "model.norm.scales": np.ones(32, np.float32),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_that_no_layer_uses_are_named_in_one_line(folder, arrays, backend, capsys, edit):
    """Not buffers, which hold nothing of the model; what a config with biases or norms reads is used."""
    save_file(arrays | BUFFERS, folder / "model.safetensors")
    assert load_checkpoint(folder, backend, device="cpu").weights.keys() == arrays.keys()
    assert capsys.readouterr().err == ""
    save_file(arrays | BUFFERS | UNUSED, folder / "model.safetensors")
    assert load_checkpoint(folder, backend, device="cpu").weights.keys() == arrays.keys()
    first = ", ".join(map(repr, sorted(UNUSED)[:3]))
    says = f"{folder}: not used, because config.json describes no layer that reads them: {first} and 2 more\n"
    assert capsys.readouterr().err == says
    edit("config.json", attention_bias=True)
    save_file(arrays | {name: UNUSED[name] for name in sorted(UNUSED)[1:2]}, folder / "model.safetensors")
    load_checkpoint(folder, backend, device="cpu")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("option", ["device", "dtype"])
def test_an_unknown_device_or_type_is_one_line(folder, backend, option):
    with pytest.raises(ValueError, match=f"^{option} 'abacus': .*$"):
        load_checkpoint(folder, backend, **{"device": "cpu", option: "abacus"})


def test_a_checkpoint_can_be_made_in_memory(folder):
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del fields["architectures"]
    checkpoint = Checkpoint(ModelConfig(**fields), {"model.norm.weight": np.ones(32)})
    assert checkpoint.weight("model.norm.weight", 32).sum() == 32
    with pytest.raises(CheckpointError, match=r"^checkpoint: tensor 'lm_head\.weight' is missing"):
        checkpoint.weight("lm_head.weight", 320, 32)
