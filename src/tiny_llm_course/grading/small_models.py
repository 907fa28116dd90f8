"""Small models with random weights that NumPy makes again from a seed, for tests and screens."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.weight_shapes import weight_shapes
from tiny_llm_engine.solutions.port import Port


@dataclass(frozen=True)
class SmallModel:
    """A small Qwen3 with unusual sizes, so that no default and no coincidence hides a mistake."""

    config: ModelConfig  # its shape
    seed: int  # of its weights and inputs
    rows: int  # B of the inputs
    tokens: int  # L of the inputs


# Query heads per key head: 1, 3 and 8. Hq · D is never E, theta and eps are never the defaults of a class.
NAMES = ("tied-1", "untied-3", "tied-8")
SIZES: dict[str, tuple[Any, ...]] = {
    "hidden_size": (20, 36, 24),
    "num_hidden_layers": (2, 3, 2),
    "num_attention_heads": (3, 6, 8),
    "num_key_value_heads": (3, 2, 1),
    "head_dim": (8, 10, 6),
    "intermediate_size": (28, 52, 44),
    "vocab_size": (41, 53, 67),
    "max_position_embeddings": (64, 48, 32),
    "rms_norm_eps": (1e-2, 3e-2, 1e-3),
    "rope_theta": (500.0, 100.0, 2000.0),
    "tie_word_embeddings": (True, False, True),
}
INPUTS = {"seed": (11, 12, 13), "rows": (2, 3, 1), "tokens": (7, 11, 5)}


def _case(column: int) -> SmallModel:
    config = ModelConfig(**{name: row[column] for name, row in SIZES.items()})
    return SmallModel(config, **{name: row[column] for name, row in INPUTS.items()})


CASES = {name: _case(column) for column, name in enumerate(NAMES)}


def small_model(seed: int, rows: int = 1, tokens: int = 1, **sizes: int | float | bool) -> SmallModel:
    """The first of `CASES` with other sizes."""
    return SmallModel(replace(CASES["tied-1"].config, **sizes), seed, rows, tokens)


def random_weights(case: SmallModel) -> dict[str, np.ndarray]:
    """Random float32 weights by Hugging Face name.

    Matrices preserve the size of activations; norms are far enough from 1 to matter.
    """
    # RandomState and not default_rng: NumPy promises that its stream never changes.
    random = np.random.RandomState(case.seed)
    weights = {}
    for name, shape in weight_shapes(case.config).items():
        normal = random.standard_normal(shape)
        weight = 1 + 0.3 * normal if len(shape) == 1 else normal / np.sqrt(shape[-1])
        weights[name] = weight.astype(np.float32)
    return weights


def random_checkpoint(b: Port, case: SmallModel, dtype: str = "float32") -> Checkpoint:
    """The case's weights on the port `b`."""
    weights = {name: b.array(weight, dtype) for name, weight in random_weights(case).items()}
    return Checkpoint(case.config, weights)
