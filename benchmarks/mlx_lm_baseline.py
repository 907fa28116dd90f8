"""mlx-lm as a baseline, with the same weights in memory. MLX port only."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm import batch_generate
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.qwen3 import Model, ModelArgs

from tiny_llm_course.trace.workload import Workload
from tiny_llm_engine.backends import backend_mlx as backend_module
from tiny_llm_engine.machine import blas
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.weights.random_weights import RandomCheckpoint

from .baselines import hub_shape
from .own_process import OwnProcess


def callers(checkpoint: RandomCheckpoint) -> dict[str, "MlxLm"]:
    """The model, for single calls."""
    return {"mlx-lm": MlxLm(checkpoint)}


def generators(name: str, checkpoint: RandomCheckpoint, rows: int, *_: Any) -> dict[str, Any]:
    """The batches of mlx-lm in this process, or as pip installs it, in one of its own."""
    if name == "mlx-lm":
        return {name: MlxLmBatch(checkpoint, rows)}
    own = OwnProcess(
        own_mlx_lm,
        *(checkpoint.config, checkpoint.dtype, checkpoint.device, rows),
        environment={blas.SWITCH: "0"},
        notes="as pip installs it: in a process of its own, with the BLAS of MLX's wheel",
    )
    return {name: own}


@dataclass
class MlxLm:
    """mlx-lm's Qwen3 with its own cache."""

    checkpoint: RandomCheckpoint  # whose arrays it shares

    def __post_init__(self):
        self.model = Model(ModelArgs(model_type="qwen3", **hub_shape(self.checkpoint.config)))
        for name, array in tree_flatten(self.model.parameters()):
            self.checkpoint.weight(name, *array.shape)  # drawn here, if our engine did not ask for it before
        self.model.load_weights(list(self.checkpoint.weights.items()), strict=True)

    def prefill(self, tokens: list[int]) -> None:
        """Compute a prompt into a fresh cache, and chooses the next token."""
        self._next([tokens], make_prompt_cache(self.model))

    def _next(self, tokens: list[list[int]], cache: list) -> list[int]:
        # The inner model and then the head: called as a whole, mlx-lm would score every token of a prompt.
        last = self.model.model(mx.array(tokens), cache=cache)[:, -1]
        tied = self.checkpoint.config.tie_word_embeddings
        head = self.model.model.embed_tokens.as_linear if tied else self.model.lm_head
        return mx.argmax(head(last), axis=-1).tolist()

    def fill(self, rows: int, context: int, steps: int) -> None:
        """Make a batch of rows that hold `context` random tokens, with room for `steps` more."""
        config, dtype = self.checkpoint.config, self.checkpoint.backend_module.DTYPES[self.checkpoint.dtype]
        shape = (rows, config.num_key_value_heads, context, config.head_dim)
        self._past = make_prompt_cache(self.model)
        for layer in self._past:
            layer.update_and_fetch(*(mx.random.normal(shape).astype(dtype) for _ in "kv"))
        mx.eval([layer.state for layer in self._past])
        self.rows, self.context, self.steps = rows, context, steps

    def decode(self) -> None:
        """Decode `steps` tokens per row, each read by the host; then the cache is as it was."""
        tokens = [[1]] * self.rows
        for _ in range(self.steps):
            tokens = [[token] for token in self._next(tokens, self._past)]
        for layer in self._past:
            layer.trim(self.steps)


class NoText:
    """The tokenizer of mlx-lm's batch: it ends no answer and decodes nothing."""

    eos_token_ids: tuple[int, ...] = ()

    def decode(self, ids: list[int]) -> str:
        return ""


@dataclass
class MlxLmBatch:
    """mlx-lm's own continuous batching, `batch_generate`, with its defaults but for the number of requests."""

    checkpoint: RandomCheckpoint  # whose arrays it shares
    rows: int  # requests that run at a time

    def __post_init__(self):
        self.model = MlxLm(self.checkpoint).model

    def generate(self, workload: Workload) -> None:
        """Answer all requests, each with as many tokens as it asks for."""
        prompts, answers = zip(*((list(spec.prompt), spec.answer) for spec in workload.requests), strict=True)
        batch_generate(
            self.model,
            NoText(),
            list(prompts),
            max_tokens=list(answers),
            completion_batch_size=self.rows,
            prefill_batch_size=min(8, self.rows),
        )


def own_mlx_lm(config: ModelConfig, dtype: str, device: str, rows: int) -> MlxLmBatch:
    """Make an `MlxLmBatch` with weights of its own, for a process of its own."""
    backend_module.pick_device(device)
    return MlxLmBatch(RandomCheckpoint(config, backend_module, dtype, device), rows)
