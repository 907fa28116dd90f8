"""A layer of Week 3 with fewer products: queries, keys and values in one, gate and up in one.

On a GPU a decode waits for the launch of kernels, not for arithmetic. Compiled with the rest of a layer, this leaves
four products, and one or two kernels between any two of them.
"""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from tiny_llm_engine.arrays.layers import DenseLinear
from tiny_llm_engine.arrays.windows import changed_layer


class JoinedLayer:
    """A `Qwen3LayerWeek3` whose plain matrices are joined; what is joined is copied, and the layer keeps views of it.

    Args:
        layer: one with plain matrices for queries, keys and values.
    """

    def __init__(self, layer: Any):
        self.layer, self.packed_attention = layer, layer.packed_attention
        self.w_in = joined(layer, "wq", "wk", "wv")
        self.heads = [layer.wq.shape[0], layer.wk.shape[0], layer.wv.shape[0]]
        self.mlp = JoinedMLP(layer.mlp) if are_plain(layer.mlp, "w_gate", "w_up") else layer.mlp

    def __call__(self, x: torch.Tensor, step: Any, cache: Any) -> torch.Tensor:
        """See `Qwen3LayerWeek3`."""
        query, key, value = self.project_in(x, *step.rows)
        key, value = cache.write(step.slots, key, value)
        pages = cache.key_pages, cache.value_pages
        return self.project_out(x, self.packed_attention(query, key, value, *pages, step.mask))

    def project_in(
        self, x: torch.Tensor, *rows: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Qwen3LayerWeek3.project_in`."""
        layer = self.layer
        parts = self.w_in(layer.input_layernorm(x)).split(self.heads, dim=-1)
        query, key, value = (part.unflatten(-1, (-1, layer.head_dim)) for part in parts)
        query, key = (
            layer.rope.rotate(norm(part), *rows)
            for norm, part in ((layer.q_norm, query), (layer.k_norm, key))
        )
        return query[0], key[0], value[0]

    def project_out(self, x: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """See `Qwen3LayerWeek3.project_out`."""
        x = x + self.layer.wo(heads.flatten(1)[None])
        return x + self.mlp(self.layer.post_attention_layernorm(x))


class JoinedMLP:
    """The MLP of a layer, with gate and up in one product."""

    def __init__(self, mlp: Any):
        self.w_gate_up, self.w_down = joined(mlp, "w_gate", "w_up"), mlp.w_down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Qwen3MLP`: (..., E) to (..., E)."""
        gate, up = self.w_gate_up(x).chunk(2, dim=-1)
        return self.w_down(F.silu(gate) * up)


def are_plain(owner: Any, *names: str) -> bool:
    """Whether these attributes are plain matrices."""
    return all(isinstance(getattr(owner, name, None), DenseLinear) for name in names)


def joined(owner: Any, *names: str) -> DenseLinear:
    """Plain matrices one below the other. The owner's become views of it, so that memory holds each once."""
    parts = [getattr(owner, name) for name in names]
    sizes = [part.shape[0] for part in parts]
    weight = torch.cat([part.weight for part in parts])
    bias = None
    if any(part.bias is not None for part in parts):
        bias = torch.cat(
            [part.weight.new_zeros(part.shape[0]) if part.bias is None else part.bias for part in parts]
        )
    for name, part, view in zip(names, parts, weight.split(sizes), strict=True):
        setattr(owner, name, replace(part, weight=view))
    return replace(parts[0], weight=weight, bias=bias)


def join_products(model: Any) -> None:
    """Puts a `JoinedLayer` in the place of each layer of a model of Week 3 whose matrices are plain."""

    def join(layer: Any) -> Any:
        return JoinedLayer(layer) if are_plain(layer, "wq", "wk", "wv") else layer

    model.layers = [changed_layer(layer, join) for layer in model.layers]
