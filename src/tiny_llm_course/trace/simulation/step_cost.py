"""What a model's step costs: seconds as a function of its work, `StepCost`, in two formulas.

`AdditiveCost` charges each token and each pair: a CPU behaves so, and it can be worked out by hand. It serves engines
of two phases, whose steps have chunks or decodes, and hybrid ones. `RooflineCost` takes the larger of the time to
compute and the time to read memory, so decodes beside a large chunk are nearly free.

A pair is a token of the step and one that it sees, itself included. So a whole prompt and its chunks have the same
pairs, and differ in the fixed cost per step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tiny_llm_engine.solutions.solution_types import PackedBatch, Part


def pairs(tokens: int, offset: int) -> int:
    """Number of pairs of `tokens` tokens after `offset` others.

    Each token sees the `offset` tokens, those before it in the step, and itself.
    """
    return tokens * offset + tokens * (tokens + 1) // 2


@dataclass(frozen=True)
class StepWork:
    """The work of one step, in the terms in which it is charged."""

    chunk_tokens: int = 0  # tokens of prompts, of all chunks together
    chunk_pairs: int = 0  # pairs of one of those tokens and a token that it sees
    chunk_past: int = 0  # tokens of earlier steps that the chunks read
    decodes: int = 0  # requests that decode
    # tokens that these see, themselves included; of a stretch of steps one number each, in an array
    decode_pairs: Any = 0

    @classmethod
    def of(cls, chunks: Sequence[tuple[int, int]], decodes: Sequence[int] = ()) -> "StepWork":
        """The work of chunks and decodes.

        Args:
            chunks: tokens of each chunk, and the tokens before it.
            decodes: the tokens that each decoding request sees, the new one included.
        """
        tokens = seen = past = 0
        for size, start in chunks:
            tokens, seen, past = tokens + size, seen + pairs(size, start), past + start
        return cls(tokens, seen, past, len(decodes), sum(decodes))

    @classmethod
    def of_batch(cls, batch: PackedBatch) -> "StepWork":
        """The work of a packed batch; one row with a context counts as a decode, since it looks like a chunk of 1."""
        chunks, decodes, starts = [], [], batch.query_start
        for index, context in enumerate(batch.context_lens):
            size = starts[index + 1] - starts[index]
            if size == 1 and context:
                decodes.append(context + 1)
            else:
                chunks.append((size, context))
        return cls.of(chunks, decodes)

    @classmethod
    def of_parts(cls, parts: Sequence[Part]) -> "StepWork":
        """The work of a step, from the parts of its event."""
        decodes = [one.num_computed for part in parts if part.kind == "decode" for one in part.requests]
        return cls.of([(part.tokens, part.context) for part in parts if part.kind == "chunk"], decodes)

    def stretch(self, steps: int) -> "StepWork":
        """The work of this many decode steps in a row; in each, every request sees one token more."""
        import numpy as np

        return replace(self, decode_pairs=self.decode_pairs + self.decodes * np.arange(steps))


class StepCost(Protocol):
    """A cost function; for a stretch of steps it returns an array."""

    def seconds(self, work: StepWork) -> Any: ...


@dataclass(frozen=True)
class Line:
    """A cost line: seconds = a + b·tokens + c·pairs."""

    a: float  # seconds of the step itself
    b: float  # seconds of each token
    c: float = 0.0  # seconds of each pair

    def seconds(self, tokens: int, pairs: float = 0) -> float:
        return self.a + self.b * tokens + self.c * pairs


@dataclass(frozen=True)
class AdditiveCost:
    """Additive cost: fixed seconds per step, plus seconds per token and per pair.

    A step of chunks and decodes pays the larger fixed cost once.
    """

    prefill: Line  # of the chunks in a step
    decode: Line  # of its decodes; the tokens are the requests

    @classmethod
    def of_terms(
        cls,
        step: float,
        chunk_token: float,
        chunk_pair: float = 0.0,
        decode: float = 0.0,
        decode_pair: float = 0.0,
    ) -> "AdditiveCost":
        """The cost of an engine whose steps have one fixed cost, whatever is in them."""
        return cls(Line(step, chunk_token, chunk_pair), Line(step, decode, decode_pair))

    def seconds(self, work: StepWork) -> Any:
        chunk, decode = self.prefill, self.decode
        fixed = chunk.a if work.chunk_tokens else decode.a
        if work.chunk_tokens and work.decodes:
            fixed = max(chunk.a, decode.a)
        return (
            fixed
            + chunk.b * work.chunk_tokens
            + chunk.c * work.chunk_pairs
            + decode.b * work.decodes
            + decode.c * work.decode_pairs
        )


@dataclass(frozen=True)
class RooflineCost:
    """Roofline cost: max(T_math, T_mem) plus an overhead, in seconds; the time to compute, and to read memory."""

    overhead: float  # fixed cost of a step
    token: float  # arithmetic of a token, in all products with weights
    pair: float  # arithmetic of a token and one that it sees, in attention
    weights: float  # reading all weights once
    read: float  # reading the keys and values of one token
    tile: int = 1  # products compute whole tiles of this many tokens; 1 rounds nothing

    def seconds(self, work: StepWork) -> Any:
        tiles = -(-(work.chunk_tokens + work.decodes) // self.tile)
        math = self.token * self.tile * tiles + self.pair * (work.chunk_pairs + work.decode_pairs)
        memory = self.weights + self.read * (work.chunk_past + work.decode_pairs)
        if isinstance(work.decode_pairs, int):
            return self.overhead + max(math, memory)
        import numpy as np

        return self.overhead + np.maximum(math, memory)


# A unit of time for each token of a prompt, and for each decode step: latencies that can be worked out by hand.
UNITS = AdditiveCost(Line(0, 1), Line(1, 0))
# The incidents of Day 3.5: 10 ms for a step, 0.1 ms for each token of a prompt in it.
INCIDENTS = AdditiveCost.of_terms(step=0.010, chunk_token=0.0001)
