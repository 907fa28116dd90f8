"""Layers of Week 3 with fewer products: queries, keys and values in one, gate and up in one.

On a GPU a decode waits for the launch of kernels, not for arithmetic. Compiled with the rest of a layer, this leaves
four products, and few kernels between any two of them.
"""

from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from tiny_llm_engine.arrays.layers import DenseLinear, Linear
from tiny_llm_engine.arrays.windows import changed_layer


@cache
def joined_class(kind: type) -> type:
    """A class of layers whose `project_in` multiplies by `w_in`; the rest is as it was."""
    return type(f"Joined{kind.__name__}", (kind,), {"project_in": project_in})


def project_in(layer: Any, x: torch.Tensor, *rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """See `Qwen3LayerWeek3.project_in`."""
    heads = layer.w_in(layer.input_layernorm(x)).unflatten(-1, (-1, layer.head_dim))
    query, key, value = heads.split(layer.num_heads, dim=-2)
    query, key = (layer.rope.rotate(part, *rows)[0] for part in (layer.q_norm(query), layer.k_norm(key)))
    return query, key, value[0]


@dataclass(eq=False)
class JoinedMLP:
    """The MLP of a layer, with gate and up in one product."""

    w_gate_up: DenseLinear
    w_down: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Qwen3MLP`: (..., E) to (..., E)."""
        gate, up = self.w_gate_up(x).chunk(2, dim=-1)
        return self.w_down(F.silu(gate) * up)


def joined(owner: Any, *names: str) -> DenseLinear | None:
    """Plain matrices one below the other; None if they are of other kinds. The owner's become views of it."""
    parts: list[Any] = [getattr(owner, name, None) for name in names]
    if not all(isinstance(part, DenseLinear) for part in parts):
        return None
    biases = [part.bias for part in parts if part.bias is not None]
    if len(biases) not in (0, len(parts)):
        return None
    weight = torch.cat([part.weight for part in parts])
    views = weight.split([part.shape[0] for part in parts])
    for name, part, view in zip(names, parts, views, strict=True):
        setattr(owner, name, DenseLinear(part.func, w=view, bias=part.bias))
    return DenseLinear(parts[0].func, w=weight, bias=torch.cat(biases) if biases else None)


def join(layer: Any) -> Any:
    """A layer with joined products, as far as its matrices are plain."""
    made, sizes = copy(layer), [w.shape[0] // layer.head_dim for w in (layer.wq, layer.wk, layer.wv)]
    if (w_in := joined(made, "wq", "wk", "wv")) is not None:
        made.w_in, made.num_heads, made.__class__ = w_in, sizes, joined_class(type(layer))
    if (w_gate_up := joined(layer.mlp, "w_gate", "w_up")) is not None:
        made.mlp = JoinedMLP(w_gate_up, layer.mlp.w_down)
    return made


def join_products(model: Any) -> None:
    """Joins the products of each layer of a model of Week 3."""
    model.layers = [changed_layer(layer, join) for layer in model.layers]
