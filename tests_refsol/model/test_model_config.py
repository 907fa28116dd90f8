"""`config.json`: every spelling of a good one, one line for each bad one."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny_llm_engine.models.config import ARCHITECTURES, ModelConfig, Quantization, read_config
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.rope_scaling import KINDS

FAMILIES = ("Qwen3", "Qwen2", "Llama", "Mistral", "Mixtral", "Qwen3Moe")
NAMES = ", ".join(f"{family}ForCausalLM" for family in FAMILIES)
SIZE = "must be a whole number from 1 to 16777216"
ROPES = "must be default, dynamic, linear, llama3, yarn"
AFFINE = "must be MLX's affine: take the bf16 weights instead"
QWEN2, LLAMA, MISTRAL = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Qwen2", "Llama", "Mistral"))
FULL, SLIDING = "full_attention", "sliding_attention"
BOTH, SLIDES = [FULL, SLIDING], {"use_sliding_window": True}
CHUNKED, ONE_TYPE = SLIDES | {"layer_types": [FULL, "chunked_attention"]}, SLIDES | {"layer_types": [FULL]}
BITS, MXFP4 = {"group_size": 64, "bits": 4}, {"group_size": 32, "bits": 4, "mode": "mxfp4"}
HEAD_OF_8, FP8 = BITS | {"lm_head": 8}, {"quantization_config": {"quant_method": "fp8"}}
ABACUS = {"rope_scaling": {"rope_type": "abacus", "factor": 4.0}}
LONGROPE = {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e6}}
ROPE_PER_LAYER = {"rope_parameters": {FULL: {"rope_type": "default"}}}
ENDLESS_YARN = {"rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2.0}}
NO_WIDTH = "hidden_size is 32 and must be a multiple of num_attention_heads, 6, where head_dim is not given"
BAD_FIELDS = {
    f"architectures[0] is 'MambaForCausalLM' and must be {NAMES}": {"architectures": ["MambaForCausalLM"]},
    "num_key_value_heads 4 does not divide num_attention_heads 6: "
    "every K/V head serves equally many query heads": {"num_key_value_heads": 4},
    f"num_hidden_layers is missing and {SIZE}": {"num_hidden_layers": None},
    f"num_hidden_layers is '2' and {SIZE}": {"num_hidden_layers": "2"},
    f"num_hidden_layers is True and {SIZE}": {"num_hidden_layers": True},
    f"intermediate_size is -48 and {SIZE}": {"intermediate_size": -48},
    f"max_position_embeddings is 1000000000000000 and {SIZE}": {"max_position_embeddings": 10**15},
    "rms_norm_eps is inf and must be a positive number": {"rms_norm_eps": math.inf},
    f"rope_scaling.rope_type is 'abacus' and {ROPES}": ABACUS,
    f"rope_parameters.rope_type is 'longrope' and {ROPES}: "
    "its frequencies change with the length of the text, and keys in the cache would have to turn again": LONGROPE,
    "rope_scaling.factor is missing and must be a number from 1 on": {"rope_scaling": {"type": "linear"}},
    "rope_parameters.partial_rotary_factor is 0.5 and must be 1: "
    "a part of a head that does not turn is not supported": {"partial_rotary_factor": 0.5},
    "rope_parameters is ['full_attention'] and must be one RoPE for all layers": ROPE_PER_LAYER,
    "rope_scaling: yarn of these numbers is not finite": ENDLESS_YARN,
    "attention_bias is 'yes' and must be a bool": {"attention_bias": "yes"},
    "mlp_bias is True and must be False": {"mlp_bias": True},
    "attention_bias is False and must be True": QWEN2 | {"attention_bias": False},
    "sliding_window is 7 and must be null: this architecture has none": LLAMA | {"sliding_window": 7},
    "layer_types is ['sliding_attention', 'sliding_attention'] and must be full_attention in every layer: "
    "this architecture has no other": LLAMA | {"layer_types": [SLIDING] * 2},
    "sliding_window is missing and must be given for layer_types that slide": {"layer_types": BOTH},
    "layer_types[1] is 'chunked_attention' and must be full_attention or sliding_attention": CHUNKED,
    "layer_types is ('full_attention',) and must be one type for each of the 2 layers": ONE_TYPE,
    "layer_types is ['full_attention', 'full_attention'] and must be absent: "
    "in this architecture all layers are alike": MISTRAL | {"layer_types": [FULL] * 2},
    f"sliding_window is 0 and {SIZE}": MISTRAL | {"sliding_window": 0},
    NO_WIDTH: LLAMA | {"head_dim": None},
    "hidden_act is 'gelu' and must be silu": {"hidden_act": "gelu"},
    f"quantization_config.quant_method is 'fp8' and {AFFINE}": FP8,
    "quantization.bits is 3 and must be 4 or 8": {"quantization": BITS | {"bits": 3}},
    "quantization.bits is 5 and must be 4 or 8": {"quantization": BITS | {"lm_head": BITS | {"bits": 5}}},
    "quantization.lm_head.weight is 8 and must be an object, true or false": {"quantization": HEAD_OF_8},
    f"quantization.lm_head.weight.mode is 'mxfp4' and {AFFINE}": {"quantization": BITS | {"lm_head": MXFP4}},
}
BAD_FILES = {
    "": "is not JSON (Expecting value at character 0)",
    "{oops": "is not JSON (Expecting property name enclosed in double quotes at character 1)",
    "[]": "is not a JSON object",
    '{"head_dim": 8, "head_dim": 16}': "has the same key twice",
    '{"a":' * 100_000: "is nested too deeply",
    "\udcff": "is not UTF-8 text",
}


@pytest.mark.parametrize(("message", "fields"), BAD_FIELDS.items(), ids=[*BAD_FIELDS])
def test_a_bad_field_is_named(folder, edit, message, fields):
    edit("config.json", **fields)
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    expected = f"{folder / 'config.json'}: {message}; correct the field or choose another model"
    assert str(caught.value) == expected


@pytest.mark.parametrize(("text", "message"), BAD_FILES.items(), ids=BAD_FILES.values())
def test_a_bad_file_is_named(folder, text, message):
    (folder / "config.json").write_text(text, errors="surrogateescape", encoding="utf-8")
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    assert str(caught.value) == f"{folder / 'config.json'}: {message}; download the file again"


def test_no_file(folder):
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError) as caught:
        read_config(folder)
    line = f"{folder / 'config.json'}: not found; check the path, or download the model again"
    assert str(caught.value) == line


def test_old_and_new_spelling_are_one_configuration(folder, edit):
    edit("config.json", torch_dtype="bfloat16", rope_theta=5e5, rope_scaling=None)
    old = read_config(folder)
    rope = {"rope_type": "default", "rope_theta": 5e5}
    gone = dict.fromkeys(("torch_dtype", "rope_theta", "rope_scaling"), ...)
    edit("config.json", **gone, dtype="bfloat16", rope_parameters=rope)
    assert read_config(folder) == old
    assert (old.dtype, old.rope_theta) == ("bfloat16", 5e5)


def test_what_transformers_passes_over_refuses_no_model(folder, edit):
    rope = {"rope_type": "linear", "factor": 2, "beta_fast": 32, "finetuned": True, "of_a_newer_version": []}
    edit("config.json", dtype="auto", rope_scaling=rope)
    config = read_config(folder)
    assert (config.dtype, config.rope_scaling.rope_type) == (None, "linear")


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_number_of_a_rope_crashes_the_reader(folder, data):
    """Each kind with its own fields, of which any may be of any size, of another type or missing."""
    kind = data.draw(st.sampled_from(list(KINDS)))
    number = st.floats() | st.integers() | st.sampled_from([0, 1, 1e-9, 1e9, 10**400]) | JSON
    rope = {"rope_type": kind, "rope_theta": data.draw(number)} | {
        key: data.draw(number) for key in KINDS[kind].keys if data.draw(st.booleans())
    }
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {"rope_parameters": rope}
    config = read_changed(folder, fields)
    if config is not None and config.rope_scaling is not None:
        assert np.isfinite(config.rope_scaling.frequencies).all()


def read_changed(folder, fields):
    """The configuration of these fields; None if they are refused, which takes one line."""
    (folder / "changed").mkdir(exist_ok=True)
    (folder / "changed" / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    try:
        return read_config(folder / "changed")
    except CheckpointError as error:
        assert len(str(error).splitlines()) == 1
        return None


def test_a_layer_may_have_bits_of_its_own(folder, edit):
    """An object says which, false that it is plain, and true that it is as the others."""
    layers = {"lm_head": {"group_size": 32, "bits": 8}, "a": False, "b": True}
    edit("config.json", quantization={"group_size": 64, "bits": 4, **layers})
    found = read_config(folder).quantization
    assert found.of("lm_head.weight") == Quantization(group_size=32, bits=8)
    assert found.of("b.weight") is found and found.all_bits == {4, 8}


@pytest.mark.parametrize("field", ["quantization", "quantization_config"])
def test_quantization_of_mlx(folder, edit, field):
    edit("config.json", **{field: {"group_size": 64, "bits": 4, "mode": "affine"}})
    assert read_config(folder).quantization == Quantization(group_size=64, bits=4)


def any_of(inner):
    """Lists and objects of such values."""
    return st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), any_of, max_leaves=5)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_of_a_field_crashes_the_reader(folder, data):
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    also = ["rope_parameters", "rope_scaling", "quantization", "quantization_config", "dtype", "torch_dtype"]
    also += ["attention_bias", "mlp_bias", "layer_types", "max_window_layers"]
    also += ["sliding_window", "use_sliding_window"]
    name = data.draw(st.sampled_from([*fields, *also, "hidden_act", "original_max_position_embeddings"]))
    fields |= {"architectures": [data.draw(st.sampled_from(ARCHITECTURES))], name: data.draw(JSON)}
    assert isinstance(read_changed(folder, fields), ModelConfig | None)
