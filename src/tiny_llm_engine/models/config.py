"""The numbers of a model's shape, read from `config.json` and checked once. Knows no arrays.

Field names are Hugging Face's. A `ModelConfig` is always valid: head counts divide, counts are positive.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from .families import (
    FAMILIES,
    FULL,
    SLIDING,
    biases_of,
    head_dim_of,
    key_value_heads_of,
    mixture_of,
    windows_of,
    with_defaults,
)
from .files import CheckpointError, Json, read_json, require, require_count
from .mixture import Mixture
from .rope_scaling import RopeScaling, read_rope_scaling, rope_fields, scaled_context

ARCHITECTURES = tuple(FAMILIES)
DTYPES = ("float32", "bfloat16", "float16")
LARGEST_NUMBER = 1e38  # about the largest float32
QUANTIZATION_KEYS = ("group_size", "bits", "mode", "quant_method")


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Quantisation of stored weights: `bits` per number, one scale and bias per `group_size` numbers.

    Args:
        by_name: the quantisation of each weight that differs, by its name.
    """

    group_size: int
    bits: int
    by_name: Mapping[str, "Quantization"] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        require("quantization.group_size", self.group_size, self.group_size in (32, 64, 128), "32, 64 or 128")
        require("quantization.bits", self.bits, self.bits in (4, 8), "4 or 8")

    def of(self, name: str) -> "Quantization":
        """The quantisation of the weight of this name."""
        return self.by_name.get(name, self)

    @property
    def all_bits(self) -> set[int]:
        """Bits of any of the weights."""
        return {self.bits, *(each.bits for each in self.by_name.values())}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The shape of a model. Sizes count numbers, `max_position_embeddings` and `sliding_window` count tokens.

    Args:
        attention_bias, mlp_bias: whether these projections have biases; `biases` lists them.
        max_position_embeddings: the model's context, with that of a scaled RoPE.
        max_model_len: tokens that are read, where these are fewer, see `context`; not a field of the file.
        sliding_window: window in tokens, the query's own included; None if no layer has one.
        layer_types: "full_attention" or "sliding_attention" for each layer; if empty, all are full.
        mixture: the layers whose MLP is a mixture of experts; None without any.
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
    max_model_len: int | None = field(default=None, compare=False)

    def __post_init__(self):
        known = ", ".join(ARCHITECTURES)
        require("architectures[0]", self.architecture, self.architecture in ARCHITECTURES, known)
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type is int:
                require_count(each.name, value)
            if each.type is float:
                require(each.name, value, _is_positive(value), "a positive number")
            if each.type is bool:
                require(each.name, value, isinstance(value, bool), "a bool")
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
            require_count("sliding_window", window)

    @property
    def context(self) -> int:
        """The tokens that are read at most, and so the positions that RoPE has tables for."""
        return min(self.max_position_embeddings, self.max_model_len or self.max_position_embeddings)

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


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 < value < math.inf
        and value <= LARGEST_NUMBER
    )


def read_config(folder: Path) -> ModelConfig:
    """Read `config.json` of a model folder, in the spelling of old and new transformers and of mlx-lm.

    Raises:
        CheckpointError: as `ModelConfig`, and for what is not supported (other activations, other RoPEs).
    """
    file = folder / "config.json"
    data = read_json(file)
    try:
        return config_of(with_defaults(_architecture(data), data))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; correct the field or choose another model") from None


def config_of(data: Json) -> ModelConfig:
    """The configuration in the fields of `config.json`, all given. Raises CheckpointError as `read_config`."""
    architecture = _architecture(data)
    known = ", ".join(ARCHITECTURES)
    require("architectures[0]", architecture, architecture in ARCHITECTURES, known)
    activation = data.get("hidden_act", "silu")
    require("hidden_act", activation, activation == "silu", "silu")
    family = FAMILIES[str(architecture)]
    same_names = (
        "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
        "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    same: Json = {name: data.get(name) for name in same_names}
    same |= {"num_key_value_heads": key_value_heads_of(data), "head_dim": head_dim_of(data)}
    rope, same["rope_theta"] = rope_fields(data)
    dtype = data.get("dtype", data.get("torch_dtype"))
    config = ModelConfig(
        architecture=str(architecture),
        **same,
        tie_word_embeddings=data.get("tie_word_embeddings", False),
        attention_bias=data.get("attention_bias", family.attention_bias is True),
        mlp_bias=data.get("mlp_bias", False),
        dtype=None if dtype == "auto" else dtype,
        quantization=_quantization(data),
    )
    # The rest needs sizes that were checked above.
    window, types = windows_of(config.architecture, data, config.num_hidden_layers)
    mixture = mixture_of(config.architecture, data, config.num_hidden_layers)
    config = replace(config, sliding_window=window, layer_types=types, mixture=mixture)
    scaling = read_rope_scaling(rope, config, data)
    longest = scaled_context(rope, config.max_position_embeddings, data)
    return replace(config, rope_scaling=scaling, max_position_embeddings=longest)


def _architecture(data: Json) -> object:
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
    layers = {f"{name}.weight": value for name, value in found.items() if name not in QUANTIZATION_KEYS}
    for name, value in layers.items():
        require(f"{field}.{name}", value, isinstance(value, bool | dict), "an object, true or false")
        mode = value.get("mode", "affine") if isinstance(value, dict) else "affine"
        require(f"{field}.{name}.mode", mode, mode == "affine", "MLX's affine: take the bf16 weights instead")
    # A layer that says false has plain numbers, and its file says so too; true is what the model has.
    by_name = {name: _bits_of(value) for name, value in layers.items() if isinstance(value, dict)}
    return replace(_bits_of(found), by_name=by_name)


def _bits_of(entry: Json) -> Quantization:
    return Quantization(group_size=entry.get("group_size"), bits=entry.get("bits"))  # type: ignore[arg-type]
