"""Qwen3 with a KV cache: each token is computed once (Week 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.checks import check_caches
from tiny_llm_engine.arrays.layers import Linear
from tiny_llm_engine.arrays.mlx.masks import window_mask
from tiny_llm_engine.arrays.mlx.rope_tables import rope_of
from tiny_llm_engine.arrays.windows import behind_windows
from tiny_llm_engine.models.layer_weights import Checkpoint, ModelShape, head_norm, layer_weights

from .basics import embedding_of, linear_layer, silu
from .kernels import Kernels, choose_kernels
from .kv_cache import TinyKvCache, TinyKvFullCache


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


class Qwen3MLPWeek2:
    """Day 1.4's MLP with weights that multiply themselves.

    Args:
        w_gate, w_up: (F, E).
        w_down: (E, F).
    """

    def __init__(self, w_gate: Linear, w_up: Linear, w_down: Linear):
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down

    def __call__(self, x: mx.array) -> mx.array:
        """See `Qwen3MLP`: (..., E) to (..., E)."""
        # TASK 2.1.5: as Day 1.4's MLP, but a weight multiplies itself: from Day 2.3 on it may have 4 bits.
        return self.w_down(silu(self.w_gate(x)) * self.w_up(x))


def dense_mlp(config: ModelShape, weights: dict[str, Any]) -> Qwen3MLPWeek2:
    """The MLP of a layer, from the weights of `layer_weights`. Given.

    Raises:
        ValueError: it is a mixture of experts.
    """
    if "w_router" in weights:
        raise ValueError("a layer has experts: give the model make_mlp=mlp_of, of Day 4.2")
    return Qwen3MLPWeek2(*(weights[name] for name in ("w_gate", "w_up", "w_down")))


class Qwen3LayerWeek2:
    """One layer of Qwen3 that keeps its keys and values in a cache.

    Args:
        config: the sizes of the model.
        weights: by the names of `layer_weights`.
        rope: shared by all layers.
        mlp: (..., E) to (..., E).
        kernels: how attention and the norms are computed.
    """

    def __init__(self, config, weights: dict[str, Any], rope, mlp: Callable, kernels: Kernels):
        E, eps = config.hidden_size, config.rms_norm_eps
        self.head_dim, self.rope, self.attend = config.head_dim, rope, kernels.attend
        self.wq, self.wk, self.wv, self.wo = (weights[name] for name in ("wq", "wk", "wv", "wo"))
        self.mlp = mlp
        self.q_norm = head_norm(kernels.norm, self.head_dim, weights.get("q_norm"), eps)
        self.k_norm = head_norm(kernels.norm, self.head_dim, weights.get("k_norm"), eps)
        self.input_layernorm = kernels.norm(E, weights["w_input_layernorm"], eps)
        self.post_attention_layernorm = kernels.norm(E, weights["w_post_attention_layernorm"], eps)

    def attention(self, x: mx.array, step: Step, cache: TinyKvCache) -> mx.array:
        """Attention of L new tokens over themselves and all tokens that the cache holds.

        Args:
            x: (B, L, E), normalised.
            step: positions, RoPE's rows and the mask of these tokens.
            cache: this layer's cache; afterwards it also holds the new tokens.

        Returns:
            (B, L, E).
        """
        # TASK 2.1.4: as Day 1.3's layer, but keys and values go through the cache, and RoPE uses the step's positions.
        # Keys are stored after the norm and RoPE, so a past key is never rotated again.
        B, L, _ = x.shape
        query = self.wq(x).reshape(B, L, -1, self.head_dim)
        key = self.wk(x).reshape(B, L, -1, self.head_dim)
        value = self.wv(x).reshape(B, L, -1, self.head_dim)
        query = self.rope.rotate(self.q_norm(query), *step.rows).swapaxes(1, 2)
        key = self.rope.rotate(self.k_norm(key), *step.rows).swapaxes(1, 2)
        key, value, _, mask = cache.update_and_fetch(
            key, value.swapaxes(1, 2), L, step.mask, positions=step.positions
        )
        heads = self.attend(query, key, value, mask=mask)
        return self.wo(heads.swapaxes(1, 2).reshape(B, L, -1))

    def __call__(self, x: mx.array, step: Step, cache: TinyKvCache) -> mx.array:
        """
        Args:
            x: (B, L, E), the residual stream of L new tokens.
            step, cache: see `attention`.

        Returns:
            (B, L, E), the residual stream after this layer.
        """
        # TASK 2.1.5: as Day 1.5's block: attention, then the MLP, each on a normalised copy and added to the stream.
        x = x + self.attention(self.input_layernorm(x), step, cache)
        h = self.post_attention_layernorm(x)
        return x + self.mlp(h)


class Qwen3ModelWeek2:
    """Qwen3 that computes only new tokens; it reads past keys and values from caches.

    Qwen2, Llama and Mistral differ only in the weights that they have, in RoPE's tables and in sliding windows, which
    `layer_weights.py`, `rope_tables.py` and `windows.py` read from the configuration. Layers of Mixtral and
    Qwen3-MoE have another MLP, which `make_mlp` makes.

    Args:
        checkpoint: the weights, used without a copy.
        attention: "simple" (Day 1.3), "tiled" (Day 2.4), or "device", with the device's own kernels (Day 2.5).
        make_mlp: the configuration and the weights of a layer to its MLP.

    Raises:
        ValueError: `attention` has another value.
    """

    layer_class = Qwen3LayerWeek2
    is_first = is_last = True  # of the stages that share the layers (Day 3.7)

    def __init__(
        self,
        checkpoint: Checkpoint,
        attention: str = "simple",
        make_mlp: Callable[[ModelShape, dict[str, Any]], Callable] = dense_mlp,
    ):
        self.config, self.make_mlp = checkpoint.config, make_mlp
        config = checkpoint.config
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
        self.w_lm_head: Any = None
        if self.is_last:  # a tied head is the embedding table
            head = self.embedding.weight if tied else checkpoint.weight("lm_head.weight", V, E)
            self.w_lm_head = linear_layer(head)

    def _layer(self, checkpoint: Checkpoint, index: int, kernels: Kernels) -> Qwen3LayerWeek2:
        weights = layer_weights(checkpoint, index, linear_layer)
        mlp = self.make_mlp(checkpoint.config, weights)
        return self.layer_class(checkpoint.config, weights, self.rope, mlp, kernels)

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
        length = min(max_seq_len or self.config.context, self.config.context)
        return [TinyKvFullCache(length) for _ in self.layers]

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
        # TASK 2.1.6: begin the step, embed, apply every layer with its own cache, the norm, the head.
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
        check_caches(cache, len(self.layers), B, offset)
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

    def head(self, x: mx.array) -> mx.array:
        """Logits of every token of the vocabulary: (B, K, E) to (B, K, V). Given."""
        if x.shape[1] == 0:  # no logits are needed
            return mx.zeros((*x.shape[:2], self.config.vocab_size), x.dtype)
        return self.w_lm_head(x)


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
