"""Measures the cost of a runner's steps, for the step profile of Day 3.5."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from tiny_llm_engine.backends.samples import seconds_of
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..graphs.pad_batch import pad_batch

ROUNDS = 3  # measured runs, after one that warms up
SIZES = (16, 64, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class StepLine:
    """A cost line: seconds = a + b · tokens."""

    a: float
    b: float


def fit_line(samples: Sequence[tuple[int, float, float]]) -> StepLine:
    """The line that is nearest to the samples (tokens, pairs, seconds) in relative terms, and does not fall."""
    tokens, _, seconds = np.array(samples, dtype=np.float64).T
    b, a = np.polyfit(tokens, seconds, 1, w=1 / seconds)
    return StepLine(float(a), float(b)) if b > 0 else StepLine(float(np.mean(seconds)), 0.0)


class StepTimer:
    """Runs steps of the pad block, see `pad_batch`.

    Args:
        names: the module `serving` of a solution.
        runner: the runner of the steps.
        context: tokens that each decode reads.
    """

    def __init__(self, names: ServingPackage, runner: PackedRunner, block_size: int, context: int):
        self.names, self.runner, self.block_size, self.context = names, runner, block_size, context

    def seconds(self, tokens: int, decodes: int, past: int = 0) -> float:
        """The median seconds of a step with `tokens` tokens: `decodes` decodes, and one prompt for the rest.

        `past` tokens of that prompt were computed before.
        """
        requests = [(1, self.context)] * decodes + [(tokens - decodes, past)] * (tokens > decodes)
        batch = pad_batch(self.names, self.runner.num_blocks, self.block_size, requests)
        return median(seconds_of(lambda: self.runner.run(batch), ROUNDS))
