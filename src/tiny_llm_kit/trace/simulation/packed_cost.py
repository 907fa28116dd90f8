"""Cost of a packed step: seconds as a function of the chunks and the decodes in it.

Two shapes of that function. `AdditiveCost` charges each token and each pair; a CPU behaves so, and it can be worked out
by hand. `RooflineCost` takes the larger of the time to compute and the time to read memory: decodes beside a large
chunk are nearly free. Pairs are counted as in `cost_model`.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from .cost_model import pairs

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class StepWork:
    """The work of one step, in the terms in which it is charged.

    Args:
        chunk_tokens: tokens of prompts, of all chunks together.
        chunk_pairs: pairs of one of those tokens and a token that it sees.
        chunk_past: tokens of earlier steps that the chunks read.
        decodes: requests that decode.
        decode_pairs: tokens that these see, themselves included.
    """

    chunk_tokens: int = 0
    chunk_pairs: int = 0
    chunk_past: int = 0
    decodes: int = 0
    decode_pairs: Any = 0  # of a stretch of steps one number each, in an array

    @classmethod
    def of(cls, batch: Any) -> "StepWork":
        """The work of a `PackedBatch`.

        One row with a context counts as a decode, since it looks like a chunk of 1.
        """
        tokens = seen = past = decodes = decode_pairs = 0
        starts = batch.query_start
        for index, context in enumerate(batch.context_lens):
            size = starts[index + 1] - starts[index]
            if size == 1 and context:
                decodes, decode_pairs = decodes + 1, decode_pairs + context + 1
            else:
                tokens, seen, past = tokens + size, seen + pairs(size, context), past + context
        return cls(tokens, seen, past, decodes, decode_pairs)

    def stretch(self, steps: int) -> "StepWork":
        """The work of this many decode steps in a row; in each, every request sees one token more."""
        import numpy as np

        return replace(self, decode_pairs=self.decode_pairs + self.decodes * np.arange(steps))


class PackedCost(Protocol):
    """A cost function; for a stretch of steps it returns an array."""

    def seconds(self, work: StepWork) -> Any: ...


@dataclass(frozen=True)
class AdditiveCost:
    """Additive cost: fixed seconds per step, plus seconds per token and per pair.

    Args:
        step: of the step itself.
        chunk_token, chunk_pair: of a token of a prompt, and of each token that it sees.
        decode, decode_pair: of a request that decodes, and of each token that it sees.
    """

    step: float
    chunk_token: float
    chunk_pair: float = 0.0
    decode: float = 0.0
    decode_pair: float = 0.0

    def seconds(self, work: StepWork) -> Any:
        return (
            self.step
            + self.chunk_token * work.chunk_tokens
            + self.chunk_pair * work.chunk_pairs
            + self.decode * work.decodes
            + self.decode_pair * work.decode_pairs
        )


@dataclass(frozen=True)
class RooflineCost:
    """Roofline cost: max(T_math, T_mem) plus an overhead, in seconds.

    Args:
        overhead: fixed cost of a step.
        token: arithmetic of a token, in all products with weights.
        pair: arithmetic of a token and one that it sees, in attention.
        weights: reading all weights once.
        read: reading the keys and values of one token.
        tile: products compute whole tiles of this many tokens; 1 rounds nothing.
    """

    overhead: float
    token: float
    pair: float
    weights: float
    read: float
    tile: int = 1

    def math(self, work: StepWork) -> Any:
        """T_math: seconds of arithmetic."""
        tiles = -(-(work.chunk_tokens + work.decodes) // self.tile)
        return self.token * self.tile * tiles + self.pair * (work.chunk_pairs + work.decode_pairs)

    def memory(self, work: StepWork) -> Any:
        """T_mem: seconds of reading memory."""
        return self.weights + self.read * (work.chunk_past + work.decode_pairs)

    def seconds(self, work: StepWork) -> Any:
        math, memory = self.math(work), self.memory(work)
        if isinstance(work.decode_pairs, int):
            return self.overhead + max(math, memory)
        return self.overhead + _larger(math, memory)


def _larger(math: "np.ndarray", memory: "np.ndarray") -> "np.ndarray":
    import numpy as np

    return np.maximum(math, memory)


# The incidents of Day 3.5: 10 ms for a step, 0.1 ms for each token of a prompt in it.
INCIDENTS = AdditiveCost(step=0.010, chunk_token=0.0001)
