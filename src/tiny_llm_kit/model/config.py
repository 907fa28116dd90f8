"""The numbers of a model's shape, read from `config.json` and checked once. Knows no arrays.

Field names are Hugging Face's. A `ModelConfig` is always valid: head counts divide, counts are positive.
"""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from .families import FAMILIES, biases_of, head_dim_of, key_value_heads_of, mixture_of, windows_of
from .files import CheckpointError, read_json, require
from .mixture import Mixture
from .rope_scaling import RopeScaling, read_rope_scaling, rope_fields

ARCHITECTURES = tuple(FAMILIES)
DTYPES = ("float32", "bfloat16", "float16")
# Larger than in any model; it keeps a hostile file from making us build a table of 10^15 rows.
LARGEST_COUNT = 2**24
LARGEST_NUMBER = 1e38  # about the largest float32
# The two types of layers: full attention, and a sliding window.
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Quantisation of an MLX checkpoint: `bits` per number, one scale and bias per `group_size` numbers."""

    group_size: int
    bits: int

    def __post_init__(self):
        require("quantization.group_size", self.group_size, self.group_size in (32, 64, 128), "32, 64 or 128")
        require("quantization.bits", self.bits, self.bits in (4, 8), "4 or 8")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model. Sizes count numbers, `max_position_embeddings` and `sliding_window` count tokens.

    Args:
        attention_bias, mlp_bias: whether these projections have biases; `biases` lists them.
        sliding_window: window in tokens, the query's own included; None if no layer has one.
        layer_types: "full_attention" or "sliding_attention" for each layer; if empty, all are full.
        mixture: the layers whose MLP is a mixture of experts; None if there are none.
        rope_scaling: the frequencies of a scaled RoPE; None for the plain one of `rope_theta`.
        dtype: the type in which the weights were saved; the caller chooses that in which they are loaded.

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
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] = ()
    rope_scaling: RopeScaling | None = None
    mixture: Mixture | None = None
    dtype: str | None = None
    quantization: Quantization | None = None

    def __post_init__(self):
        known = ", ".join(ARCHITECTURES)
        require("architectures[0]", self.architecture, self.architecture in ARCHITECTURES, known)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int:
                require(field.name, value, _is_count(value), f"a whole number from 1 to {LARGEST_COUNT}")
            if field.type is float:
                require(field.name, value, _is_positive(value), "a positive number")
            if field.type is bool:
                require(field.name, value, isinstance(value, bool), "a bool")
        require("dtype", self.dtype, self.dtype in (None, *DTYPES), " or ".join(DTYPES))
        require("head_dim", self.head_dim, self.head_dim % 2 == 0, "even: RoPE turns pairs")
        if self.num_attention_heads % self.num_key_value_heads:
            raise CheckpointError(
                f"num_key_value_heads {self.num_key_value_heads} does not divide "
                f"num_attention_heads {self.num_attention_heads}: every K/V head serves equally many query heads"
            )
        FAMILIES[self.architecture].check_biases(self.attention_bias, self.mlp_bias)
        self._check_layer_types()

    def _check_layer_types(self) -> None:
        types, layers, window = self.layer_types, self.num_hidden_layers, self.sliding_window
        require("layer_types", types, len(types) in (0, layers), f"one type for each of the {layers} layers")
        for index, kind in enumerate(types):
            require(f"layer_types[{index}]", kind, kind in (FULL, SLIDING), f"{FULL} or {SLIDING}")
        if window is not None or SLIDING in types:
            require("sliding_window", window, _is_count(window), f"a whole number from 1 to {LARGEST_COUNT}")

    @property
    def head_norms(self) -> bool:
        """Whether queries and keys are normalised before RoPE."""
        return FAMILIES[self.architecture].head_norms

    @property
    def biases(self) -> tuple[str, ...]:
        """The projections of a layer that have a bias, by Hugging Face name: "self_attn.q_proj", …"""
        return biases_of(self.architecture, self.attention_bias, self.mlp_bias)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The sliding window of each layer in tokens, or None for full attention."""
        types = self.layer_types or (FULL,) * self.num_hidden_layers
        return tuple(self.sliding_window if kind == SLIDING else None for kind in types)

    def require_plain(self, reader: str) -> None:
        """Reject a model that `reader`, such as Week 1's model, cannot compute.

        Raises:
            CheckpointError: the model has biases, windows, experts or a scaled RoPE.
        """
        beyond = ["biases"] * bool(self.biases) + ["sliding_window"] * any(self.windows)
        beyond += ["experts"] * (self.mixture is not None)
        beyond += [f"rope_type {self.rope_scaling.rope_type}"] if self.rope_scaling else []
        if beyond:
            raise CheckpointError(f"{reader} does not compute {', '.join(beyond)}: use Week 2's model")


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= LARGEST_COUNT


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf and value <= LARGEST_NUMBER


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` of a model folder, in the spelling of old and new transformers and of mlx-lm.

    Raises:
        CheckpointError: as `ModelConfig`, and for what is not supported (other activations, other RoPEs).
    """
    file = folder / "config.json"
    data = read_json(file)
    try:
        return _config(data)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; correct the field or choose another model") from None


def _config(data: dict[str, Any]) -> ModelConfig:
    architecture = _architecture(data)
    known = ", ".join(ARCHITECTURES)
    require("architectures[0]", architecture, architecture in ARCHITECTURES, known)
    activation = data.get("hidden_act", "silu")
    require("hidden_act", activation, activation == "silu", "silu")
    family = FAMILIES[architecture]
    same_names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    same: dict[str, Any] = {name: data.get(name) for name in same_names}
    rope, theta = rope_fields(data)
    config = ModelConfig(
        architecture=architecture,
        **same,
        num_key_value_heads=key_value_heads_of(architecture, data),
        head_dim=head_dim_of(architecture, data),
        rope_theta=theta,
        # transformers omits a field that has the default of the architecture's class.
        tie_word_embeddings=data.get("tie_word_embeddings", False),
        attention_bias=data.get("attention_bias", family.attention_bias is True),
        mlp_bias=data.get("mlp_bias", False),
        dtype=data.get("dtype", data.get("torch_dtype")),
        quantization=_quantization(data),
    )
    # The rest needs sizes that were checked above.
    window, types = windows_of(architecture, data, config.num_hidden_layers)
    mixture = mixture_of(architecture, data, config.num_hidden_layers)
    config = replace(config, sliding_window=window, layer_types=types, mixture=mixture)
    return replace(config, rope_scaling=read_rope_scaling(rope, config, data))


def _architecture(data: dict[str, Any]) -> Any:
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and len(names) == 1 else names


def _quantization(data: dict) -> Quantization | None:
    """mlx-lm's quantisation, which its files repeat under `quantization_config`, transformers' name for any method."""
    field = "quantization" if "quantization" in data else "quantization_config"
    found = data.get(field)
    if found is None:
        return None
    require(field, found, isinstance(found, dict), "an object")
    method = found.get("quant_method", found.get("mode", "affine"))
    require(
        f"{field}.quant_method", method, method == "affine", "MLX's affine: take the bf16 weights instead"
    )
    others = sorted(found.keys() - {"group_size", "bits", "mode"})
    require(field, others, not others, "one group_size and bits for the whole model")
    return Quantization(group_size=found.get("group_size"), bits=found.get("bits"))
