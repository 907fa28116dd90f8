"""The shape of a model in a GGUF file, from the keys of its header, as a `ModelConfig`. Knows no arrays of an engine.

llama.cpp's architecture "llama" is Llama, Mistral and, with experts, Mixtral.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tiny_llm_engine.models.config import ModelConfig, Quantization, config_of
from tiny_llm_engine.models.expert_names import is_router
from tiny_llm_engine.models.files import CheckpointError, Json, require
from tiny_llm_engine.models.rope_scaling import RopeScaling, plain_frequencies

from .gguf_file import GgufFile, GgufTensor

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
# Fields of `config.json`, and the keys of the header that say the same, after the architecture's name.
KEYS = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
FREQUENCIES = "rope_freqs.weight"  # divisors of the plain frequencies: Llama 3's scaling
KEPT_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}  # types that become quantised weights, in groups of 32
GROUP_SIZE = 32


def gguf_config(file: GgufFile) -> ModelConfig:
    """The configuration of the model in a file.

    Raises:
        CheckpointError: the engine has no such architecture, or a key is missing or wrong.
    """
    name = file.fields.get("general.architecture")
    known = ", ".join(ARCHITECTURES)
    is_known = isinstance(name, str) and name in ARCHITECTURES
    require(f"{file.path}: general.architecture", name, is_known, f"{known}: choose another model")
    try:
        config = config_of(_fields(file, str(name)))
        return replace(config, rope_scaling=_scaling(file, config))
    except CheckpointError as error:
        field, _, problem = str(error).partition(" ")
        key = f"{name}.{KEYS[field]}" if field in KEYS else field
        raise CheckpointError(f"{file.path}: {key} {problem}; choose another file of this model") from None


def _fields(file: GgufFile, name: str) -> Json:
    """The header as the fields of `config.json`."""
    header: Json = {key.removeprefix(f"{name}."): _short(value) for key, value in file.fields.items()}
    data = {field: _of_all_layers(header[key]) for field, key in KEYS.items() if key in header}
    count, most = data.get("num_hidden_layers"), len(file.tensors)
    is_count = type(count) is int and 1 <= count <= most
    require("num_hidden_layers", count, is_count, f"a whole number from 1 to {most}, the number of tensors")
    architecture = ARCHITECTURES[name]
    if name == "llama" and header.get("expert_count"):
        architecture = "MixtralForCausalLM"
    data |= {
        "architectures": [architecture],
        "vocab_size": _rows(file.tensors.get("token_embd.weight")),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "norm_topk_prob": True,  # llama.cpp's graph of this architecture divides by the sum
        "mlp_only_layers": [
            i for i in range(count or 0) if f"blk.{i}.ffn_gate_inp.weight" not in file.tensors
        ],
        "rope_scaling": _rope_scaling(header),
        "rope_theta": data.get("rope_theta", 10000.0),
    }
    _check_head(data, header)
    return data


def _of_all_layers(value: Any) -> Any:
    """A list with one number for each layer as that number, if it is the same in all."""
    return value[0] if isinstance(value, list) and value and value.count(value[0]) == len(value) else value


def _short(value: object) -> object:
    """A float32 of the header as the decimal that it was written as: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rows(tensor: GgufTensor | None) -> int | None:
    return None if tensor is None or not tensor.shape else tensor.shape[0]


def _check_head(data: Json, header: Json) -> None:
    """D is given, or E / H; values and the rotated part of a head are as wide as its keys."""
    E, H = data.get("hidden_size"), data.get("num_attention_heads")
    if "head_dim" not in data and type(E) is int and type(H) is int and H > 0:
        data["head_dim"] = E // H
    for key in ("attention.value_length", "rope.dimension_count"):
        found = header.get(key, data.get("head_dim"))
        require(key, found, found == data.get("head_dim"), f"the size of a head, {data.get('head_dim')}")


def _rope_scaling(header: Json) -> Json | None:
    """Scaling as `config.json` writes it."""
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear"))
    kind = header.get("rope.scaling.type", "none" if factor is None else "linear")
    if kind != "yarn":
        return None if kind == "none" else {"rope_type": kind, "factor": factor}
    keys = {
        "original_max_position_embeddings": "rope.scaling.original_context_length",
        "beta_fast": "rope.scaling.yarn_beta_fast",
        "beta_slow": "rope.scaling.yarn_beta_slow",
    }
    found = {name: header[key] for name, key in keys.items() if key in header}
    times = header.get("rope.scaling.attn_factor", 1.0)
    require(
        "rope.scaling.attn_factor", times, times == 1.0, "1: llama.cpp multiplies YaRN's own factor by it"
    )
    return {"rope_type": kind, "factor": factor} | found


def _scaling(file: GgufFile, config: ModelConfig) -> RopeScaling | None:
    """The scaled RoPE, which may be a tensor of the file."""
    if FREQUENCIES not in file.tensors:
        return config.rope_scaling
    divisors = file.tensors[FREQUENCIES].floats()
    shape, wanted = divisors.shape, (config.head_dim // 2,)
    require(
        FREQUENCIES,
        list(shape),
        shape == wanted and bool((divisors > 0).all()),
        f"{wanted[0]} positive numbers",
    )
    frequencies = plain_frequencies(config.rope_theta, config.head_dim) / divisors
    return RopeScaling("llama3", tuple(map(float, frequencies)))


def stays_quantized(name: str, tensor: GgufTensor) -> bool:
    """Whether a tensor becomes quantised weights, by its Hugging Face name: a matrix, and no router."""
    return tensor.kind in KEPT_BITS and len(tensor.shape) > 1 and not is_router(name)


def quantization_of(tensors: Mapping[str, GgufTensor]) -> Quantization | None:
    """The bits of each tensor that stays quantised, by Hugging Face name; None if none does."""
    bits = {name: KEPT_BITS[each.kind] for name, each in tensors.items() if stays_quantized(name, each)}
    if not bits:
        return None
    base = min(bits.values())
    of = {name: Quantization(group_size=GROUP_SIZE, bits=each) for name, each in bits.items() if each != base}
    return Quantization(group_size=GROUP_SIZE, bits=base, by_name=of)
