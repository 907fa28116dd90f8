"""Qwen3 for packed batches: chunks and decodes of many requests in one forward, with paged keys and values (Week 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.mlx.kv_pools import TinyKvPagedPool
from tiny_llm_engine.packed_model import PackedInputs

from .packed_attention import packed_attention, packed_mask
from .qwen3_week2 import Qwen3LayerWeek2, Qwen3ModelWeek2


@dataclass(frozen=True)
class PackedStep:
    """What all layers share while they compute the same T rows.

    Args:
        slots: (T,) where the keys and values of the rows go.
        rows: the rows of RoPE's tables for their positions, as `RoPE.rotate` takes them.
        mask: which keys each row sees.
        window_mask: the same for layers with a sliding window; None if the model has no such layers.
    """

    slots: mx.array
    rows: tuple[mx.array, ...]
    mask: Any
    window_mask: Any = None


class Qwen3LayerWeek3(Qwen3LayerWeek2):
    """A layer of Week 2 with another attention: keys and values are in pages, and many requests share a row.

    It has three parts, so that each can be compiled on its own (Day 3.4). The first and the last see T rows and nothing
    of the requests, so their graphs depend on T alone, and one graph serves all layers.
    """

    packed_attention = staticmethod(packed_attention)

    def project_in(self, x: mx.array, *rows: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """Queries, keys and values of T rows. Given.

        Args:
            x: (1, T, E), the residual stream.
            rows: of RoPE's tables, see `PackedStep`.

        Returns:
            query (T, H, D), key and value (T, Hkv, D).
        """
        _, T, _ = x.shape
        x = self.input_layernorm(x)
        query = self.wq(x).reshape(1, T, -1, self.head_dim)
        key = self.wk(x).reshape(1, T, -1, self.head_dim)
        value = self.wv(x).reshape(T, -1, self.head_dim)
        query, key = self.rope.rotate(self.q_norm(query), *rows), self.rope.rotate(self.k_norm(key), *rows)
        return query[0], key[0], value

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, step: PackedStep, cache: TinyKvPagedPool
    ) -> mx.array:
        """Attention of T rows, each over its own request's text. Given.

        Args:
            query, key, value: from `project_in`.
            step: slots and masks of these rows.
            cache: this layer's pool; it holds the rows' keys and values afterwards.

        Returns:
            (T, H, D).
        """
        key, value = cache.write(step.slots, key, value)
        pages = cache.key_pages, cache.value_pages
        return self.packed_attention(query, key, value, *pages, step.mask)

    def project_out(self, x: mx.array, heads: mx.array) -> mx.array:
        """The residual stream after attention and the MLP. Given.

        Args:
            x: (1, T, E), the residual stream before this layer.
            heads: (T, H, D), from `attention`.

        Returns:
            (1, T, E).
        """
        _, T, _ = x.shape
        x = x + self.wo(heads.reshape(1, T, -1))
        return x + self.mlp(self.post_attention_layernorm(x))

    def __call__(self, x: mx.array, step: PackedStep, cache: TinyKvPagedPool) -> mx.array:
        """
        Args:
            x: (1, T, E), the residual stream.
            step, cache: see `attention`.

        Returns:
            (1, T, E), the residual stream after this layer.
        """
        query, key, value = self.project_in(x, *step.rows)
        return self.project_out(x, self.attention(query, key, value, step, cache))


def layer_by_layer(
    model: "Qwen3ModelWeek3", inputs: PackedInputs, pools: Sequence[TinyKvPagedPool]
) -> mx.array | None:
    """The logits of a step, see `Qwen3ModelWeek3`. Given."""
    step = model.begin(inputs, pools[0].page_size)
    x = model.embedding(inputs.token_ids[None])
    for layer, pool in zip(model.layers, pools, strict=True):
        x = layer(x, step, pool)
    return None if inputs.sample_rows is None else model.finish(x, inputs.sample_rows)


class Qwen3ModelWeek3(Qwen3ModelWeek2):
    """Qwen3 that computes a packed batch: every weight is read once per step, whatever is in it.

    The weights, the norms, the MLP and the head are those of Week 2, for all its families.

    Args:
        checkpoint, attention, make_mlp: see `Qwen3ModelWeek2`; attention itself is that of packed batches, Day 3.3's.
    """

    layer_class = Qwen3LayerWeek3
    # A device may have its own, and its own `packed_attention` of the layers.
    packed_mask, compute = staticmethod(packed_mask), staticmethod(layer_by_layer)

    def __call__(self, inputs: PackedInputs, pools: Sequence[TinyKvPagedPool]) -> mx.array | None:
        """Computes T rows, and writes their keys and values into the pools. Given.

        Args:
            inputs: arrays.
            pools: one per layer, from `create_kv_pools`.

        Returns:
            (K, V) logits of `inputs.sample_rows`; None when there are no such rows.
        """
        return self.compute(self, inputs, pools)

    def begin(self, inputs: PackedInputs, page_size: int) -> PackedStep:
        """RoPE's rows and the masks of one step. Given."""
        window = self.config.sliding_window
        masks = [self.packed_mask(inputs, page_size, size) for size in (None, *([window] if window else []))]
        return PackedStep(inputs.slots, self.rope.rows(inputs.positions), *masks)

    def finish(self, x: mx.array, sample_rows: mx.array) -> mx.array:
        """Logits of some rows: (1, T, E) and (K,) to (K, V). Given."""
        return self.head(self.norm(mx.take(x, sample_rows, axis=1)))[0]
