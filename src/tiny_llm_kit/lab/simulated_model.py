"""A model that computes nothing: its clock moves by what each step would cost. The same in every run, on any machine.

A step costs seconds = a + b·tokens + c·tokens·context. The context is the number of tokens that a token sees, itself
included, and on average over the tokens of the step: a prompt of n tokens that is computed whole has the context
(n + 1) / 2. So a whole prompt and its chunks cost the same attention, and differ in what a step costs by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Cost:
    """What a step takes: seconds = a + b·tokens + c·tokens·context.

    Args:
        a: seconds of the step itself.
        b: seconds of each token.
        c: seconds of each token for each one that it sees.
    """

    a: float
    b: float
    c: float

    def seconds(self, tokens: int, context: float = 0) -> float:
        return self.a + self.b * tokens + self.c * tokens * context


@dataclass(frozen=True)
class Costs:
    """What the two kinds of steps take. The defaults are the shipped model in the PyTorch port on a CPU with two cores
    and one thread, rounded: as good as any other machine, where it matters only that there is one.

    Args:
        prefill: of a chunk.
        decode: of a step of the batch; its tokens are the running requests.
    """

    prefill: Cost = field(default_factory=lambda: Cost(0.012, 0.00014, 1.6e-7))
    decode: Cost = field(default_factory=lambda: Cost(0.008, 0.001, 5e-6))


class SimulatedClock:
    """Seconds that pass only while the simulated model runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SimulatedCache:
    """The cache of one request in one layer: how many tokens it would hold."""

    def __init__(self):
        self.offset = 0

    def rewind(self, n: int) -> None:
        self.offset -= n

    def release(self) -> None:
        self.offset = 0


class SimulatedBatchCache:
    """The cache of all slots in one layer."""

    def add_request(self, prefilled: SimulatedCache, slot: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def release(self) -> None:
        pass


class SimulatedTokenizer:
    """One token a word, which says nothing. No token ends a text: a request's `max_tokens` is its length."""

    eos_token_ids = frozenset()

    def encode(self, text: str) -> list[int]:
        return [0] * len(text.split())

    def detokenizer(self) -> "SimulatedTokenizer":
        return self

    def add(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


class SimulatedModel:
    """A `ServingModel` whose steps take time and choose token 0. Give each request its length as `max_tokens`.

    Args:
        costs: what the steps take.
        max_model_len: tokens of a prompt and its answer, at most.
        clock: moved by every step.
    """

    num_hidden_layers = 1
    vocab_size = 1

    def __init__(
        self, costs: Costs | None = None, max_model_len: int = 2**20, clock: SimulatedClock | None = None
    ):
        self.costs, self.max_model_len, self.clock = (
            costs or Costs(),
            max_model_len,
            clock or SimulatedClock(),
        )

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[SimulatedCache]:
        return [SimulatedCache()]

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[SimulatedBatchCache]:
        return [SimulatedBatchCache()]

    def prefill(
        self,
        tokens: Sequence[int],
        offset: int,
        kv_cache: Sequence[Any],
        *,
        sampling: Any = None,
        sample: bool,
    ) -> int | None:
        """See `ServingModel.prefill`."""
        self._take(self.costs.prefill, len(tokens), pairs(len(tokens), offset))
        kv_cache[0].offset += len(tokens)
        return 0 if sample else None

    def decode(
        self,
        tokens: Sequence[int | None],
        offsets: Sequence[int],
        kv_cache: Sequence[Any],
        *,
        sampling: Sequence[Any] | None = None,
    ) -> list[int | None]:
        """See `ServingModel.decode`."""
        running = [offset for token, offset in zip(tokens, offsets, strict=True) if token is not None]
        self._take(self.costs.decode, len(running), sum(pairs(1, offset) for offset in running))
        return [None if token is None else 0 for token in tokens]

    def _take(self, cost: Cost, tokens: int, seen: int) -> None:
        self.clock.now += cost.seconds(tokens, seen / tokens)


def pairs(tokens: int, offset: int) -> int:
    """How often one of these tokens sees a token: all `offset` before them, and each itself and those before it."""
    return tokens * offset + tokens * (tokens + 1) // 2
