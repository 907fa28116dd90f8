"""Qwen3 with a KV cache: each token is computed once (Week 2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..layer_weights import Checkpoint, head_norm, layer_weights
from .basics import silu
from .batching_kv_cache import BatchingKvCache
from .embedding import embedding_of
from .kernels import Kernels, choose_kernels
from .kv_cache import TinyKvCache, TinyKvFullCache
from .mixture import mixture_of
from .paged_kv_cache import TinyKvPagedPool
from .projection import project
from .rope_tables import rope_of
from .window_mask import behind_windows, window_mask


@dataclass(frozen=True)
class Step:
    """What all layers share in a step of L tokens: made once per step, not once per layer.

    Args:
        positions: (L,) or (B, L), the positions of the tokens.
        rows: the rows of RoPE's tables for these positions, as `RoPE.rotate` takes them.
        mask: attention mask over the keys that the caches return.
        window_mask: the same for layers with a sliding window, if the model has such layers.
    """

    positions: mx.array
    rows: tuple[mx.array, ...]
    mask: mx.array | str | None
    window_mask: mx.array | str | None = None


class Qwen3LayerWeek2:
    """One layer of Qwen3 that keeps its keys and values in a cache.

    Args:
        config: the sizes of the model.
        weights: by the names of `layer_weights`.
        rope: shared by all layers.
        kernels: how attention and the norms are computed.
    """

    def __init__(self, config, weights: dict[str, mx.array], rope, kernels: Kernels):
        E, eps = config.hidden_size, config.rms_norm_eps
        self.head_dim, self.rope, self.attend = config.head_dim, rope, kernels.attend
        self.wq, self.wk, self.wv, self.wo = (weights[name] for name in ("wq", "wk", "wv", "wo"))
        self.take_mlp(config, weights)
        self.q_norm = head_norm(kernels.norm, self.head_dim, weights.get("q_norm"), eps)
        self.k_norm = head_norm(kernels.norm, self.head_dim, weights.get("k_norm"), eps)
        self.input_layernorm = kernels.norm(E, weights["w_input_layernorm"], eps)
        self.post_attention_layernorm = kernels.norm(E, weights["w_post_attention_layernorm"], eps)

    def take_mlp(self, config, weights: dict[str, mx.array]) -> None:
        """Keeps the weights of the MLP."""
        self.w_gate, self.w_up, self.w_down = (weights[name] for name in ("w_gate", "w_up", "w_down"))

    def attention(self, x: mx.array, step: Step, cache: TinyKvCache) -> mx.array:
        """Attention of L new tokens over themselves and all tokens that the cache holds.

        Args:
            x: (B, L, E), normalised.
            step: positions, RoPE's rows and the mask of these tokens.
            cache: this layer's cache; afterwards it also holds the new tokens.

        Returns:
            (B, L, E).
        """
        # TASK 2.1.3: as Day 1.3's layer, but keys and values go through the cache, and RoPE uses the step's positions.
        # Keys are stored after the norm and RoPE, so a past key is never rotated again.
        B, L, _ = x.shape
        query = project(x, self.wq).reshape(B, L, -1, self.head_dim)
        key = project(x, self.wk).reshape(B, L, -1, self.head_dim)
        value = project(x, self.wv).reshape(B, L, -1, self.head_dim)
        query = self.rope.rotate(self.q_norm(query), *step.rows).swapaxes(1, 2)
        key = self.rope.rotate(self.k_norm(key), *step.rows).swapaxes(1, 2)
        key, value, _, mask = cache.update_and_fetch(
            key, value.swapaxes(1, 2), L, step.mask, positions=step.positions
        )
        heads = self.attend(query, key, value, mask=mask)
        return project(heads.swapaxes(1, 2).reshape(B, L, -1), self.wo)

    def __call__(self, x: mx.array, step: Step, cache: TinyKvCache) -> mx.array:
        """
        Args:
            x: (B, L, E), the residual stream of L new tokens.
            step, cache: see `attention`.

        Returns:
            (B, L, E), the residual stream after this layer.
        """
        # TASK 2.1.4: as Day 1.5's block: attention, then the MLP, each on a normalised copy and added to the stream.
        # `project` replaces `linear`: from Day 2.3 on a weight may be quantised to 4 bits.
        x = x + self.attention(self.input_layernorm(x), step, cache)
        h = self.post_attention_layernorm(x)
        return x + project(silu(project(h, self.w_gate)) * project(h, self.w_up), self.w_down)


class Qwen3MixtureLayerWeek2(Qwen3LayerWeek2):
    """A layer whose MLP is a mixture of experts (Week 4). Given."""

    def take_mlp(self, config, weights: dict[str, mx.array]) -> None:
        self.mixture = mixture_of(config.mixture, weights)

    def __call__(self, x: mx.array, step: Step, cache: TinyKvCache) -> mx.array:
        """See `Qwen3LayerWeek2`."""
        x = x + self.attention(self.input_layernorm(x), step, cache)
        return x + self.mixture(self.post_attention_layernorm(x))


class Qwen3ModelWeek2:
    """Qwen3 that computes only new tokens; it reads past keys and values from caches.

    Qwen2, Llama and Mistral differ only in the weights that they have, in RoPE's tables and in sliding windows, which
    `layer_weights.py`, `rope_tables.py` and `window_mask.py` read from the configuration. Layers of Mixtral and
    Qwen3-MoE have another MLP, in `mixture.py`.

    Args:
        checkpoint: the weights, used without a copy.
        attention: "simple" (Day 1.3), "tiled" (Day 2.4), or "device", with the device's own kernels (Day 2.5).

    Raises:
        ValueError: `attention` has another value.
    """

    layer_class = Qwen3LayerWeek2
    mixture_layer_class = Qwen3MixtureLayerWeek2
    is_first = is_last = True  # of the stages that share the layers (Day 3.7)

    def __init__(self, checkpoint: Checkpoint, attention: str = "simple"):
        self.config = config = checkpoint.config
        kernels = choose_kernels(attention)
        E, V = config.hidden_size, self.vocab_rows
        self.num_hidden_layers = config.num_hidden_layers
        tied = config.tie_word_embeddings
        self.embedding: Any = None
        if self.is_first or (self.is_last and tied):
            self.embedding = embedding_of(V, E, checkpoint.weight("model.embed_tokens.weight", V, E))
        self.rope = rope_of(config, kernels)
        layers = [self._layer(checkpoint, index, kernels) for index in self.layer_range]
        self.layers = behind_windows(layers, [config.windows[index] for index in self.layer_range])
        self.norm = kernels.norm(E, checkpoint.weight("model.norm.weight", E), config.rms_norm_eps)
        has_head = self.is_last and not tied
        self.w_lm_head = checkpoint.weight("lm_head.weight", V, E) if has_head else None

    def _layer(self, checkpoint: Checkpoint, index: int, kernels: Kernels) -> Qwen3LayerWeek2:
        weights = layer_weights(checkpoint, index)
        kind = self.mixture_layer_class if "w_router" in weights else self.layer_class
        return kind(checkpoint.config, weights, self.rope, kernels)

    @property
    def layer_range(self) -> range:
        """The layers that this model holds: all, unless stages share them (Day 3.7)."""
        return range(self.config.num_hidden_layers)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head that this model holds: all, unless ranks share them (Day 3.7)."""
        return self.config.vocab_size

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[TinyKvFullCache]:
        """An empty cache for each layer, for at most `max_seq_len` tokens; the model's whole context when None."""
        limit = self.config.max_position_embeddings
        length = limit if max_seq_len is None else min(max_seq_len, limit)
        return [TinyKvFullCache(length) for _ in self.layers]

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[BatchingKvCache]:
        """A cache per layer with `max_active_requests` empty slots of at most `max_seq_len` tokens each."""
        return [BatchingKvCache(max_active_requests, max_seq_len) for _ in self.layers]

    def create_kv_pools(self, num_blocks: int, page_size: int) -> list[TinyKvPagedPool]:
        """A pool per layer of `num_blocks` blocks of keys and values, shared by all requests (Day 3.1)."""
        config, weight = self.config, self.norm.weight
        sizes = num_blocks, page_size, config.num_key_value_heads, config.head_dim
        return [TinyKvPagedPool(*sizes, weight.dtype) for _ in self.layers]

    def __call__(
        self,
        inputs: mx.array,
        offset: int | Sequence[int] | mx.array,
        cache: Sequence[TinyKvCache],
        logits_to_keep: int | mx.array | None = None,
        mask: mx.array | str = "causal",
    ) -> mx.array:
        """Computes L new tokens per row, and stores their keys and values in the caches.

        Args:
            inputs: (B, L) token ids.
            offset: number of tokens before them: one for all rows, or one per row; or their positions as an array, (L,)
                or (B, L).
            cache: one per layer, from `create_kv_cache`.
            logits_to_keep: number of last tokens to score, or an array (K,) of their indices; all tokens when None.
            mask: "causal", or an array over the keys that the caches return.

        Returns:
            (B, K, V) logits of the K tokens kept.

        Raises:
            ValueError: there is not one cache per layer, the offset is not the number of tokens that they hold, or
                `logits_to_keep` is not from 0 to L. Positions in an array are not checked.
        """
        # TASK 2.1.5: begin the step, embed, apply every layer with its own cache, the norm, the head.
        # The head is the largest product of a small model: before it, drop the tokens whose logits are not needed.
        step = self.begin(inputs, offset, cache, mask)
        x = self.embedding(inputs)
        for layer, layer_cache in zip(self.layers, cache, strict=True):
            x = layer(x, step, layer_cache)
        return self.head(self.norm(kept(x, logits_to_keep)))

    def begin(
        self,
        inputs: mx.array,
        offset: int | Sequence[int] | mx.array,
        cache: Sequence[TinyKvCache],
        mask: mx.array | str | None,
    ) -> Step:
        """Positions, RoPE's rows and the masks of one step. The arguments are those of the model's call. Given."""
        B, L = inputs.shape
        self._check_caches(B, offset, cache)
        if isinstance(offset, mx.array):
            spans = offset
        elif isinstance(offset, int):
            spans = slice(offset, offset + L)
        else:
            spans = [slice(start, start + L) for start in offset]
        positions = self.rope.positions(spans, B, L)
        dtype = self.embedding.weight.dtype
        if isinstance(mask, str):
            mask = cache[0].make_mask(L, dtype, positions=positions)
        windowed = window_mask(mask, positions, cache[0].num_keys(L), self.config.sliding_window, dtype)
        return Step(positions, self.rope.rows(positions), mask, windowed)

    def _check_caches(
        self, B: int, offset: int | Sequence[int] | mx.array, cache: Sequence[TinyKvCache]
    ) -> None:
        """Raises ValueError for caches of another model, or an offset that is not the number of tokens held."""
        if len(cache) != len(self.layers):
            raise ValueError(
                f"{len(cache)} caches for {len(self.layers)} layers: give one per layer, as create_kv_cache does"
            )
        if isinstance(offset, mx.array):
            return  # to read it, the host would wait for the device
        given, held = [offset] * B if isinstance(offset, int) else list(offset), cache[0].next_positions(B)
        if given != held:
            raise ValueError(
                f"offset {given}, but the rows of the caches hold {held} tokens: give this number"
            )

    def head(self, x: mx.array) -> mx.array:
        """Logits of every token of the vocabulary: (B, K, E) to (B, K, V). Given."""
        if x.shape[1] == 0:  # no logits are needed
            return mx.zeros((*x.shape[:2], self.config.vocab_size), x.dtype)
        # A tied head is the embedding table; `project` finds the fast path for its kind and the number of rows.
        return project(x, self.embedding.weight if self.w_lm_head is None else self.w_lm_head)


def kept(x: mx.array, logits_to_keep: int | mx.array | None) -> mx.array:
    """The tokens whose logits are wanted: (B, L, E) to (B, K, E). Given.

    Raises:
        ValueError: `logits_to_keep` is negative or larger than L.
    """
    if logits_to_keep is None:
        return x
    if isinstance(logits_to_keep, int):
        if not 0 <= logits_to_keep <= x.shape[1]:
            raise ValueError(f"logits_to_keep is {logits_to_keep}, of {x.shape[1]} new tokens")
        return x[:, x.shape[1] - logits_to_keep :]
    return mx.take(x, logits_to_keep, axis=1)
