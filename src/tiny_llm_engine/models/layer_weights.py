"""The checkpoint as a model reads it, and the names of a layer's weights in it. Given, for both ports."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # by these names models know a configuration, without the code that reads it from files
    from .config import ModelConfig as ModelShape
    from .mixture import Mixture as MixtureShape
    from .rope_scaling import RopeScaling
else:
    ModelShape = MixtureShape = RopeScaling = object


class Checkpoint(Protocol):
    """A model's configuration, and its weights by Hugging Face name."""

    @property
    def config(self) -> ModelShape: ...

    def weight(self, name: str, *shape: int) -> Any:
        """The array of that name, on the device. Raises CheckpointError if it is absent or has a different shape."""


# Llama has no norms on queries and keys: what `Qwen3TransformerBlock` gets in their place.
NO_HEAD_NORMS: dict[str, Any] = {"q_norm": None, "k_norm": None}


def layer_weights(
    checkpoint: Checkpoint, index: int, make_linear: Callable[..., Any] | None = None
) -> dict[str, Any]:
    """The weights of layer `index`, by the parameter names of `Qwen3TransformerBlock`.

    Families without norms on queries and keys have no `q_norm` and `k_norm`. A layer with a mixture of experts has the
    weights of `MixtureOfExperts` instead of `w_gate`, `w_up` and `w_down`.

    Args:
        make_linear: makes the layer of a matrix and of its bias, which may be None. Without it matrices are arrays, as
            in Week 1, whose models have no biases.
    """
    config = checkpoint.config
    E, F = config.hidden_size, config.intermediate_size
    Hq, Hkv, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    # ANCHOR: names (the page of Week 1 Day 5 shows these lines)
    places = {
        "w_input_layernorm": ("input_layernorm", E),
        "wq": ("self_attn.q_proj", Hq * D, E),
        "wk": ("self_attn.k_proj", Hkv * D, E),
        "wv": ("self_attn.v_proj", Hkv * D, E),
        "q_norm": ("self_attn.q_norm", D),
        "k_norm": ("self_attn.k_norm", D),
        "wo": ("self_attn.o_proj", E, Hq * D),
        "w_post_attention_layernorm": ("post_attention_layernorm", E),
        "w_gate": ("mlp.gate_proj", F, E),
        "w_up": ("mlp.up_proj", F, E),
        "w_down": ("mlp.down_proj", E, F),
    }
    # ANCHOR_END: names
    if not config.head_norms:
        del places["q_norm"], places["k_norm"]
    layer = f"model.layers.{index}."
    if config.mixture is None or index not in config.mixture.layers:
        return {ours: _weight(checkpoint, make_linear, layer, *place) for ours, place in places.items()}
    del places["w_gate"], places["w_up"], places["w_down"]
    rest = {ours: _weight(checkpoint, make_linear, layer, *place) for ours, place in places.items()}
    return rest | _experts(checkpoint, layer, config.mixture)


def _experts(checkpoint: Checkpoint, layer: str, mixture: MixtureShape) -> dict[str, Any]:
    """The weights of a mixture, by the parameter names of `MixtureOfExperts`."""
    E, F, X = checkpoint.config.hidden_size, mixture.intermediate_size, mixture.held_experts
    return {
        "w_router": checkpoint.weight(f"{layer}mlp.gate.weight", mixture.num_experts, E),
        "w_gate_up": checkpoint.weight(f"{layer}mlp.experts.gate_up_proj", X, 2 * F, E),
        "w_down": checkpoint.weight(f"{layer}mlp.experts.down_proj", X, E, F),
    }


def _weight(
    checkpoint: Checkpoint, make_linear: Callable[..., Any] | None, layer: str, name: str, *shape: int
) -> Any:
    """A weight of a layer; a matrix as a linear layer, with its bias if it has one."""
    weight = checkpoint.weight(f"{layer}{name}.weight", *shape)
    if make_linear is None or len(shape) == 1:
        return weight
    has_bias = name in checkpoint.config.biases
    return make_linear(weight, checkpoint.weight(f"{layer}{name}.bias", shape[0]) if has_bias else None)


def head_norm(norm: Callable, dim: int, weight: Any | None, eps: float) -> Callable:
    """The norm of queries or keys; the identity in families that have none."""
    return (lambda x: x) if weight is None else norm(dim, weight, eps)
