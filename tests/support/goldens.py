"""Golden outputs of Hugging Face's transformers, on random weights that NumPy makes again from a seed.

Only inputs and outputs are stored, in `tests/goldens/`, with their provenance beside them; the command that makes
them is `tests_refsol/make_goldens.py`. So a day test compares with transformers without needing it.
"""

from dataclasses import dataclass

import numpy as np

from tiny_llm_course.grading.small_models import SmallModel, random_weights
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.parallel.parts_of_files import index_of
from tiny_llm_extensions.parallel.rank_parts import RankPart

FOLDER = ROOT / "tests" / "goldens"


@dataclass(frozen=True)
class SmallMixture:
    """A small mixture of experts, the MLP of one layer."""

    family: str  # "Mixtral" or "Qwen3Moe", the beginning of transformers' class names
    num_experts: int  # X
    k: int  # experts per token
    renormalise: bool  # whether the weights of a token are divided by their sum
    hidden_size: int  # E
    intermediate_size: int  # F of each expert
    tokens: int  # T of the inputs
    seed: int  # of its weights and inputs


MIXTURES = {
    "mixtral": SmallMixture("Mixtral", 5, 2, True, 12, 10, 9, seed=14),
    "qwen3-moe": SmallMixture("Qwen3Moe", 9, 3, True, 10, 6, 7, seed=15),
    "qwen3-moe-shares": SmallMixture("Qwen3Moe", 7, 4, False, 8, 14, 11, seed=16),
}


def golden(name: str) -> dict[str, np.ndarray]:
    """The stored arrays of a case, float32 except for the ids.

    inputs: (B, L) token ids. logits: (B, L, V) of the whole model for them.
    x: (B, L, E), a stream. attention, block: (B, L, E), the outputs of layer 0's attention and of all of layer 0 for
    x, under the causal mask.
    """
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays)


def golden_mixture(name: str) -> dict[str, np.ndarray]:
    """The stored arrays of a mixture for the x of `random_mixture`.

    experts: (T, k), the most probable first. weights: (T, k). y: (T, E), the output of the layer.
    """
    return golden(name)


def random_mixture(case: SmallMixture) -> dict[str, np.ndarray]:
    """Random float32 weights and inputs of a mixture.

    x: (T, E). router: (X, E). gate_up: (X, 2F, E), an expert's gate above its up. down: (X, E, F).
    """
    random = np.random.RandomState(case.seed)
    X, E, F = case.num_experts, case.hidden_size, case.intermediate_size
    shapes = {"x": (case.tokens, E), "router": (X, E), "gate_up": (X, 2 * F, E), "down": (X, E, F)}
    return {
        name: (random.standard_normal(shape) / (1 if name == "x" else np.sqrt(shape[-1]))).astype(np.float32)
        for name, shape in shapes.items()
    }


def random_inputs(case: SmallModel) -> tuple[np.ndarray, np.ndarray]:
    """(B, L) token ids and a (B, L, E) residual stream for a case."""
    random = np.random.RandomState(case.seed + 1000)
    inputs = random.randint(0, case.config.vocab_size, (case.rows, case.tokens))
    stream = 0.3 + random.standard_normal((case.rows, case.tokens, case.config.hidden_size))
    return inputs, stream.astype(np.float32)


def rank_checkpoint(b: Port, case: SmallModel, part: RankPart) -> Checkpoint:
    """One rank's part of the case's weights, in float32 on the port `b`."""
    weights = {
        name: b.array(weight[index_of(part.shard(name, weight.shape, case.config), weight.shape)])
        for name, weight in random_weights(case).items()
    }
    return Checkpoint(part.config(case.config), weights)
