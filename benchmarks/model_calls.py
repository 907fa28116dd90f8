"""Calls of this course's engines on one model, as they are timed: with all the costs of serving."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_engine.chunked_prefill.model_runner import ModelRunner
from tiny_llm_engine.loading import Loading
from tiny_llm_engine.models.weights.random_weights import SHAPES, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DTYPES, model_argument
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network, random_network
from tiny_llm_extensions.profiling.quantized_choice import activation_choice

from .options import count, option

BLOCK = 128  # tokens of a KV block of Week 3's engine


@dataclass(frozen=True)
class ModelPlan:
    """Options of a benchmark of Week 3's engine on one model."""

    model: str = option("smollm2", "a shipped name, a folder or a file", type=model_argument)
    config: str | None = option(
        None, "instead of --model: a shape with random weights", choices=sorted(SHAPES)
    )
    layers: int | None = count(None, "with random weights: fewer layers than the shape has")
    dtype: str = option("auto", choices=DTYPES)
    threads: int = count(os.cpu_count() or 1)

    def network(self, port: Port) -> Any:
        """The model that is asked for."""
        if self.config is None:
            loading = Loading(rounded=activation_choice(port, None))
            return load_network(port, self.model, "week3", loading)[0]
        return random_network(port, shape(self.config, self.layers))[0]


@dataclass
class Week2Calls:
    """One model of a solution, run the way that `batch_generate` runs it."""

    port: Port  # solution and device
    model: Any  # `Qwen3ModelWeek2` of it

    def __post_init__(self):
        self.runner: ModelRunner = self.port.runner(self.model)
        self._batch: list = []

    def prefill(self, tokens: Sequence[int], sample: bool = True) -> None:
        """Compute a prompt into fresh caches and, if it is to be sampled, chooses the next token."""
        cache = self.runner.create_kv_cache(len(tokens) + 1)
        self.runner.prefill(tokens, 0, cache, sample=sample)
        _release(cache)

    def fill(self, rows: int, context: int, steps: int) -> None:
        """Make a batch of rows that hold `context` random tokens, with room for `steps` more."""
        _release(self._batch)
        config, port = self.model.config, self.port
        shape = (1, config.num_key_value_heads, context, config.head_dim)
        self._batch = self.runner.create_batch_cache(rows, context + steps + 1)
        for shared in self._batch:
            [own] = self.runner.create_kv_cache(context)[:1]
            parts = [
                port.backend_module.random_normal(shape, 1.0, 0.0, port.float_dtype, port.device)
                for _ in "kv"
            ]
            own.update_and_fetch(*parts)
            for slot in range(rows):
                shared.add_request(own, slot)
        self.rows, self.context, self.steps = rows, context, steps

    def decode(self) -> None:
        """Decode `steps` tokens per row, each read by the host; then the batch is as it was."""
        tokens: list[int | None] = [1] * self.rows
        for step in range(self.steps):
            tokens = self.runner.decode(tokens, [self.context + step] * self.rows, self._batch)
        for layer in self._batch:
            layer.offsets = [self.context] * self.rows


def _release(caches: Iterable[Any]) -> None:
    for layer in caches:
        layer.release()


class Week3Calls:
    """A packed model with Week 3's engine, as written, compiled, or as the device has it, for batches up to a size."""

    def __init__(
        self, port: Port, network: Any, is_eager: bool | None, rows: int, tokens: int, **options: Any
    ):
        self.blocks = -(-tokens // BLOCK)
        self.engine = LLM.of(
            port,
            network,
            EndlessTokenizer(),
            enforce_eager=is_eager,
            max_num_seqs=rows,
            max_model_len=tokens,
            max_num_batched_tokens=max(rows, tokens),
            block_size=BLOCK,
            num_blocks=rows * self.blocks,
            **options,
        ).engine

    def prefill(self, tokens: Sequence[int]) -> None:
        """Compute a prompt from position 0, and chooses the next token."""
        self._run([tokens], 0)

    def fill(self, rows: int, context: int, steps: int) -> None:
        """Take rows of `context` tokens, whatever their blocks hold, with room for `steps` more."""
        self.rows, self.context, self.steps = rows, context, steps

    def decode(self) -> None:
        """Decode `steps` tokens per row, each read by the host."""
        tokens = [1] * self.rows
        for step in range(self.steps):
            tokens = self._run([[token] for token in tokens], self.context + step)

    def _run(self, rows: Sequence[Sequence[int]], context: int) -> list[int]:
        """Run one call: the next token of each row, which has `context` tokens in its own blocks already."""
        names, size = self.engine.names, len(rows[0])
        tables = [list(range(row * self.blocks, (row + 1) * self.blocks)) for row in range(len(rows))]
        stop = context + size
        batch = names.PackedBatch(
            token_ids=[token for row in rows for token in row],
            positions=list(range(context, stop)) * len(rows),
            slots=[
                table[place // BLOCK] * BLOCK + place % BLOCK
                for table in tables
                for place in range(context, stop)
            ],
            query_start=list(range(0, size * len(rows) + 1, size)),
            context_lens=[context] * len(rows),
            block_tables=tables,
            sample_rows=[size * (row + 1) - 1 for row in range(len(rows))],
            sampling=[names.SamplingParams()] * len(rows),
        )
        return [each.token for each in self.engine.runner.run(batch)]
