"""A stage of a pipeline: some consecutive layers of Qwen3, between two other stages (Week 3)."""

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.mlx.kv_pools import TinyKvPagedPool
from tiny_llm_engine.models.layer_weights import Checkpoint, ModelShape
from tiny_llm_engine.packed_model import PackedInputs
from tiny_llm_extensions.parallel.groups import Group

from ..serving.parallel.shards import stage_layers
from .qwen3_week2 import dense_mlp
from .qwen3_week3 import Qwen3ModelWeek3


class PipelineStage(Qwen3ModelWeek3):
    """The layers of one stage. The first stage also has the embedding, and the last one the head.

    Rank 0 is the last stage, because it draws the tokens; rank r is stage r - 1. So activations go from every rank to
    the next one, and from the last rank to rank 0.

    Args:
        checkpoint: the weights of this stage's layers, of the embedding and of the head, as far as it has them.
        attention, make_mlp: see `Qwen3ModelWeek3`.
        group: all stages.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        attention: str = "simple",
        make_mlp: Callable[[ModelShape, dict[str, Any]], Callable] = dense_mlp,
        *,
        group: Group,
    ):
        self.group, self.stage = group, (group.rank - 1) % group.size
        self.is_first, self.is_last = self.stage == 0, self.stage == group.size - 1
        super().__init__(checkpoint, attention, make_mlp)

    @property
    def layer_range(self) -> range:
        """The layers of this stage, by their index in the model."""
        return stage_layers(self.config.num_hidden_layers, self.group.size, self.stage)

    def __call__(self, inputs: PackedInputs, pools: Sequence[TinyKvPagedPool]) -> mx.array | None:
        """Computes this stage's part of T rows.

        Args:
            inputs: the same on every stage.
            pools: one for each layer of this stage, from `create_kv_pools`.

        Returns:
            On the last stage the logits, see `Qwen3ModelWeek3`; None on all others, which send (1, T, E) to the next.
        """
        step = self.begin(inputs, pools[0].page_size)
        # TASK 3.7.7: what comes before this stage's layers, the layers, and what comes after them.
        # The first stage has the embedding and the last one `finish`; in between (1, T, E) goes from rank to rank.
        x = self.receive(inputs)
        for layer, pool in zip(self.layers, pools, strict=True):
            x = layer(x, step, pool)
        if not self.is_last:
            self.group.send(x, (self.group.rank + 1) % self.group.size)
            return None
        return None if inputs.sample_rows is None else self.finish(x, inputs.sample_rows)

    def receive(self, inputs: PackedInputs) -> mx.array:
        """(1, T, E), the residual stream before this stage's layers: from the embedding, or from the stage before."""
        if self.is_first:
            return self.embedding(inputs.token_ids[None])
        shape = (1, inputs.token_ids.shape[0], self.config.hidden_size)
        return self.group.receive(shape, self.norm.weight, (self.group.rank - 1) % self.group.size)
