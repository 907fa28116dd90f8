"""This course's engine as a contestant: `ModelRunner`, with all the costs of serving."""

from dataclasses import dataclass
from typing import Any

from tiny_llm_kit.engine.model_runner import ModelRunner
from tiny_llm_kit.engine.port import Port


@dataclass
class Ours:
    """One model of a solution, run the way that `batch_generate` runs it.

    Args:
        port: solution and device.
        model: `Qwen3ModelWeek2` of it.
    """

    port: Port
    model: Any

    def __post_init__(self):
        self.runner: ModelRunner = self.port.runner(self.model)
        self._batch: list = []

    def prefill(self, tokens: list[int]) -> None:
        """Computes a prompt into fresh caches, and chooses the next token."""
        cache = self.runner.create_kv_cache(len(tokens) + 1)
        self.runner.prefill(tokens, 0, cache, sample=True)
        _release(cache)

    def fill(self, rows: int, context: int, steps: int) -> None:
        """A batch of this many rows that hold `context` random tokens, with room for `steps` more."""
        _release(self._batch)
        config, backend_module = self.model.config, self.port.backend_module
        shape = (1, config.num_key_value_heads, context, config.head_dim)
        self._batch = self.runner.create_batch_cache(rows, context + steps + 1)
        for shared in self._batch:
            [own] = self.runner.create_kv_cache(context)[:1]
            parts = [
                backend_module.random_normal(shape, 1.0, 0.0, self.port.float_dtype, self.port.device)
                for _ in "kv"
            ]
            own.update_and_fetch(*parts)
            for slot in range(rows):
                shared.add_request(own, slot)
        self.rows, self.context, self.steps = rows, context, steps

    def decode(self) -> None:
        """`steps` tokens a row, each read by the host; then the batch is as it was."""
        tokens: list[int | None] = [1] * self.rows
        for step in range(self.steps):
            offsets = [self.context + step] * self.rows
            tokens = self.runner.decode(tokens, offsets, self._batch)
        for layer in self._batch:
            layer.offsets = [self.context] * self.rows


def _release(caches: list) -> None:
    for layer in caches:
        layer.release()
