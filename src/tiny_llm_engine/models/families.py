"""Differences between families of models, read from `config.json` by the rules of transformers. Knows no arrays.

All have one architecture: norms before attention and before a gated MLP, RoPE, grouped heads. Qwen3 normalises its
queries and keys, Qwen2 has biases, Mistral has a sliding window; for Llama the file says whether there are biases.
Mixtral is Mistral with a mixture of experts as its MLP, and Qwen3-MoE is Qwen3 with one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from .files import Json, require
from .mixture import Mixture, mixtral, qwen3_moe

# The values of transformers' classes for fields that a file omits; each class has some of its own.
DEFAULTS: Json = {
    "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 151936, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "sliding_window": 4096, "max_window_layers": 28,
}  # fmt: skip
OF_MISTRAL = {
    "intermediate_size": 14336, "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 131072,
}  # fmt: skip
# The two types of layers: full attention, and a sliding window.
FULL, SLIDING = "full_attention", "sliding_attention"
Windows = tuple[int | None, tuple[str, ...]]  # the window in tokens, and the type of each layer
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
OUTPUT = ("self_attn.o_proj",)
MLP = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")


def _no_window(data: Json, layers: int) -> Windows:
    window, used, types = (
        data.get("sliding_window"),
        data.get("use_sliding_window", True),
        data.get("layer_types"),
    )
    require("sliding_window", window, window is None or used is False, "null: this architecture has none")
    is_full = types is None or (isinstance(types, list) and all(kind == FULL for kind in types))
    require("layer_types", types, is_full, f"{FULL} in every layer: this architecture has no other")
    return None, ()


def _all_slide(data: Json, layers: int) -> Windows:
    """Mistral's windows: the window is for all layers; null means none."""
    window, types = data.get("sliding_window"), data.get("layer_types")
    require("layer_types", types, types is None, "absent: in this architecture all layers are alike")
    return window, () if window is None else (SLIDING,) * layers


def _all_slide_by_switch(data: Json, layers: int) -> Windows:
    """Qwen3-MoE's windows: for all layers, if they are used at all."""
    return _all_slide(data, layers) if _uses_windows(data) else (None, ())


def _uses_windows(data: Json) -> bool:
    switch = data.get("use_sliding_window", False)
    require("use_sliding_window", switch, isinstance(switch, bool), "a bool")
    return switch


def _some_slide(data: Json, layers: int) -> Windows:
    """Qwen's windows: by a switch and a list of layer types, or for all layers from `max_window_layers` on."""
    window = data.get("sliding_window") if _uses_windows(data) else None
    types = data.get("layer_types")
    if types is not None:
        require("layer_types", types, isinstance(types, list), "a list")
        is_full = all(kind == FULL for kind in types)
        require("sliding_window", window, window is not None or is_full, "given for layer_types that slide")
        for index, kind in enumerate(types):
            require(f"layer_types[{index}]", kind, isinstance(kind, str), "a text")
        return window, tuple(types)
    if window is None:
        return None, ()
    first = data.get("max_window_layers")
    require("max_window_layers", first, type(first) is int and first >= 0, "a whole number from 0")
    full = min(first or 0, layers)
    return window, (FULL,) * full + (SLIDING,) * (layers - full)


@dataclass(frozen=True)
class Family:
    """The differences of an architecture from the others.

    Args:
        head_norms: queries and keys are normalised.
        attention_bias, mlp_bias: always (True), never (False), or given by the field of that name (None).
        output_bias: the projection after attention has a bias if the three before it have one.
        windows: reads from the file which layers have a sliding window.
        mixture: reads the numbers of a mixture of experts from the file, for this many layers.
        defaults: of fields that a file omits, where they are not those of the other classes.
    """

    head_norms: bool = False
    attention_bias: bool | None = False
    mlp_bias: bool | None = False
    output_bias: bool = True
    windows: Callable[[Json, int], Windows] = _no_window
    mixture: Callable[[Json, int], Mixture] | None = None
    defaults: Json = field(default_factory=dict, hash=False)

    def check_biases(self, attention_bias: bool, mlp_bias: bool) -> None:
        """Reject biases that this architecture never has, and missing ones that it always has."""
        for name, found, fixed in (
            ("attention_bias", attention_bias, self.attention_bias),
            ("mlp_bias", mlp_bias, self.mlp_bias),
        ):
            require(name, found, fixed in (None, found), str(fixed))


FAMILIES = {
    "Qwen3ForCausalLM": Family(
        head_norms=True, attention_bias=None, windows=_some_slide, defaults={"head_dim": 128}
    ),
    "Qwen2ForCausalLM": Family(attention_bias=True, output_bias=False, windows=_some_slide),
    "LlamaForCausalLM": Family(
        attention_bias=None,
        mlp_bias=None,
        defaults={
            "intermediate_size": 11008, "num_key_value_heads": None, "vocab_size": 32000,
            "max_position_embeddings": 2048, "sliding_window": None,
        },
    ),
    "MistralForCausalLM": Family(windows=_all_slide, defaults=OF_MISTRAL),
    "MixtralForCausalLM": Family(
        windows=_all_slide,
        mixture=mixtral,
        defaults=OF_MISTRAL | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None},
    ),
    "Qwen3MoeForCausalLM": Family(
        head_norms=True,
        attention_bias=None,
        windows=_all_slide_by_switch,
        mixture=qwen3_moe,
        defaults={
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24, "num_key_value_heads": 4,
        },
    ),
}  # fmt: skip


def with_defaults(architecture: object, data: Json) -> Json:
    """The fields of `config.json` with those that it omits, as transformers' class has them."""
    family = FAMILIES.get(architecture) if isinstance(architecture, str) else None
    return {**DEFAULTS, **family.defaults, **data} if family else dict(data)


def biases_of(architecture: str, attention_bias: bool, mlp_bias: bool) -> tuple[str, ...]:
    """The projections with a bias, by Hugging Face name."""
    attention = QKV + OUTPUT * FAMILIES[architecture].output_bias
    return attention * attention_bias + MLP * mlp_bias


def head_dim_of(data: Json) -> object:
    """D: from the file, or E / H."""
    given, E, H = data.get("head_dim"), data.get("hidden_size"), data.get("num_attention_heads")
    if given is not None:
        return given
    if type(E) is not int or type(H) is not int or H < 1:
        return None  # one of the two is rejected later, by its own name
    require(
        "hidden_size", E, E % H == 0, f"a multiple of num_attention_heads, {H}, where head_dim is not given"
    )
    return E // H


def key_value_heads_of(data: Json) -> object:
    """Hkv: from the file, or one per query head."""
    given = data.get("num_key_value_heads")
    return data.get("num_attention_heads") if given is None else given


def mixture_of(architecture: str, data: Json, layers: int) -> Mixture | None:
    """The numbers of the mixtures of a model with this many layers; None if it has none."""
    read = FAMILIES[architecture].mixture
    mixture = read(data, layers) if read else None
    return mixture if mixture and mixture.layers else None


def windows_of(architecture: str, data: Json, layers: int) -> Windows:
    """`sliding_window` and `layer_types` of a model with this many layers: (None, ()) if none slides."""
    family = FAMILIES[architecture]
    window, types = family.windows(data, layers)
    is_full = len(types) in (0, layers) and all(kind == FULL for kind in types)
    return (None, ()) if is_full else (window, types)
