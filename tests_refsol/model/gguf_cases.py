"""Small GGUF files for tests, written by the format's own library, from the weights of a model folder."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tiny_llm_engine.models.model_files import ModelFolder
from tiny_llm_extensions.gguf.gguf_tensors import wanted_tensors

ARCHITECTURES = {"Llama": "llama", "Mistral": "llama", "Mixtral": "llama", "Qwen2": "qwen2", "Qwen3": "qwen3"}
MIXTRALS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}  # of an expert


def write_gguf(
    folder: Path,
    path: Path,
    kinds: Callable[[str], str] = lambda name: "F32",
    edit: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None,
    **fields: Any,
) -> Path:
    """Write the model of a folder as a GGUF file.

    Args:
        kinds: the type of each matrix by its name in the file.
        edit: changes the tensors before they are written.
        fields: of the header, instead of those of the model; None leaves one out, and "__" stands for a dot.
    """
    config, data = ModelFolder(folder).config(), json.loads((folder / "config.json").read_bytes())
    family = config.architecture.removesuffix("ForCausalLM")
    name = ARCHITECTURES.get(family, family.lower())
    tensors = tensors_of(load_file(folder / "model.safetensors"), config, name == "llama")
    edit(tensors)
    writer = gguf.GGUFWriter(path, name)
    header = header_of(data, config, name) | {key.replace("__", "."): value for key, value in fields.items()}
    for key, value in header.items():
        add_field(writer, key, value)
    for key, numbers in tensors.items():
        kind = gguf.GGMLQuantizationType[kinds(key) if numbers.ndim > 1 else "F32"]
        stored = numbers.astype(np.float64) if kind.name == "F64" else gguf.quantize(numbers, kind)
        writer.add_tensor(key, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def header_of(data: Mapping[str, Any], config: Any, name: str) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes."""
    header = {
        "block_count": config.num_hidden_layers,
        "context_length": data["max_position_embeddings"],
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": float(config.rope_theta),
    }
    if config.mixture:
        header |= {"expert_count": config.mixture.num_experts}
        header |= {"expert_used_count": config.mixture.num_experts_per_tok}
        header |= {"expert_feed_forward_length": config.mixture.intermediate_size}
    scaling = config.rope_scaling
    if scaling and scaling.rope_type == "linear":
        factor = float(data["rope_parameters"]["factor"])
        header |= {"rope.scaling.type": "linear", "rope.scaling.factor": factor}
    return {f"{name}.{key}": value for key, value in header.items()}


def add_field(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {bool: writer.add_bool, list: writer.add_array}
    if value is not None:
        kinds[type(value)](key, value)


def tensors_of(weights: Mapping[str, np.ndarray], config: Any, interleaves: bool) -> dict[str, np.ndarray]:
    """The weights by their names in a file; experts are stacks, and "llama" interleaves queries and keys."""
    found = {}
    for name, (wanted, shape) in (
        (name, (each.name, each.shape)) for name, each in wanted_tensors(config).items()
    ):
        wanted = wanted.replace(".mlp.gate.", ".block_sparse_moe.gate.") if interleaves else wanted
        if "{}" in wanted:
            parts = [weights[_expert(wanted, index, interleaves)] for index in range(shape[0])]
            found[name] = np.stack(parts)
        elif interleaves and name.split(".")[-2] in ("attn_q", "attn_k"):
            pairs = weights[wanted].reshape(-1, 2, config.head_dim // 2, *weights[wanted].shape[1:])
            found[name] = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)
        else:
            found[name] = weights[wanted]
    return found


def _expert(name: str, index: int, is_mixtral: bool) -> str:
    if not is_mixtral:
        return name.format(index)
    name = name.format(index).replace(".mlp.", ".block_sparse_moe.")
    for ours, theirs in MIXTRALS.items():
        name = name.replace(ours, theirs)
    return name
