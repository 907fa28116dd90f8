"""The numbers of a model's shape, read from `config.json` and checked once. Knows no arrays.

Field names are Hugging Face's. Whoever holds a `ModelConfig` may trust it: heads divide, counts are positive.
"""

import math
from dataclasses import dataclass, fields
from pathlib import Path

from .model_files import CheckpointError, read_json, shown

ARCHITECTURES = ("Qwen3ForCausalLM",)
DTYPES = ("float32", "bfloat16", "float16")
# No model comes near it, and a file from a stranger cannot make us build a table of 10^15 rows.
LARGEST_COUNT = 2**24
# What the course computes. A model that wants something else would load, and then answer nonsense.
PLAIN_QWEN3 = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """How an MLX checkpoint packs a weight: `bits` per number, one scale and bias per `group_size` numbers."""

    group_size: int
    bits: int

    def __post_init__(self):
        _require(
            "quantization.group_size", self.group_size, self.group_size in (32, 64, 128), "32, 64 or 128"
        )
        _require("quantization.bits", self.bits, self.bits in (4, 8), "4 or 8")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model. Sizes count numbers, `max_position_embeddings` counts tokens.

    Raises:
        CheckpointError: a field is missing, has the wrong type, is out of range, or contradicts another.
    """

    architecture: str = "Qwen3ForCausalLM"
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool = False
    dtype: str | None = (
        None  # the type the weights were saved in; what they are loaded as is the caller's choice
    )
    quantization: Quantization | None = None

    def __post_init__(self):
        known = ", ".join(ARCHITECTURES)
        _require("architectures[0]", self.architecture, self.architecture in ARCHITECTURES, known)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                _require(field.name, value, _is_count(value), f"a whole number from 1 to {LARGEST_COUNT}")
            if field.type is float:
                _require(field.name, value, _is_positive(value), "a positive number")
        _require(
            "tie_word_embeddings",
            self.tie_word_embeddings,
            isinstance(self.tie_word_embeddings, bool),
            "a bool",
        )
        _require("dtype", self.dtype, self.dtype in (None, *DTYPES), " or ".join(DTYPES))
        _require("head_dim", self.head_dim, self.head_dim % 2 == 0, "even: RoPE turns pairs")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide "
                f"num_attention_heads {self.num_attention_heads}: every K/V head serves equally many query heads"
            )


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _is_positive(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _require(field: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{field} is {found} and must be {wanted}")


def read_config(folder: Path) -> ModelConfig:
    """Reads `config.json` of a model folder, in the spelling of old and new transformers and of mlx-lm.

    Raises:
        CheckpointError: as `ModelConfig`, and for what the course does not compute (scaled RoPE, other activations).
    """
    file = folder / "config.json"
    data = read_json(file)
    try:
        return _config(data)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; correct the field or choose another model") from None


def _config(data: dict) -> ModelConfig:
    architecture = _architecture(data)
    for field, value in PLAIN_QWEN3.items():
        _require(field, data.get(field, value), data.get(field, value) == value, str(value))
    same_names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
        "intermediate_size", "vocab_size", "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    return ModelConfig(
        architecture=architecture,
        **{name: data.get(name) for name in same_names},
        rope_theta=_rope_theta(data),
        # Files written by transformers leave a field out when it has the default of the architecture's class.
        tie_word_embeddings=data.get("tie_word_embeddings", False),
        dtype=data.get("dtype", data.get("torch_dtype")),
        quantization=_quantization(data),
    )


def _architecture(data: dict) -> object:
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 else names


def _rope_theta(data: dict) -> object:
    """RoPE's base: a field of its own in older files, part of `rope_parameters` in newer ones."""
    for field in ("rope_parameters", "rope_scaling"):
        rope = data.get(field) or {}
        _require(field, rope, isinstance(rope, dict), "an object")
        kind = rope.get("rope_type", rope.get("type", "default"))
        _require(f"{field}.rope_type", kind, kind == "default", "default: scaled RoPE is not supported")
    return (data.get("rope_parameters") or {}).get("rope_theta", data.get("rope_theta"))


def _quantization(data: dict) -> Quantization | None:
    """mlx-lm's packing; its files repeat it under the name that transformers uses for every other method."""
    field = "quantization" if "quantization" in data else "quantization_config"
    packing = data.get(field)
    if packing is None:
        return None
    _require(field, packing, isinstance(packing, dict), "an object")
    method = packing.get("quant_method", packing.get("mode", "affine"))
    _require(
        f"{field}.quant_method", method, method == "affine", "MLX's affine: take the bf16 weights instead"
    )
    others = sorted(packing.keys() - {"group_size", "bits", "mode"})
    _require(field, others, not others, "one group_size and bits for the whole model")
    return Quantization(group_size=packing.get("group_size"), bits=packing.get("bits"))
