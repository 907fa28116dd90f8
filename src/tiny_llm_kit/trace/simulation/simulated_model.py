"""A model that computes nothing: its clock advances by the cost of each step, the same on every machine."""

from collections.abc import Sequence

from ...solution_types import BatchCache, KvCache, SamplingParams
from .cost_model import UNITS, Cost, Costs, pairs


class SimulatedClock:
    """A clock that advances only while the simulated model runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def wait_until(self, time: float) -> None:
        self.now = max(self.now, time)


class SimulatedCache:
    """The cache of one request, or of all slots, in one layer: the number of tokens it would hold."""

    def __init__(self):
        self.offset = 0

    def rewind(self, n: int) -> None:
        self.offset -= n

    def add_request(self, prefilled: KvCache, slot: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def release(self) -> None:
        self.offset = 0


class SimulatedModel:
    """A `ServingModel` whose steps take time and choose token 0.

    Give each request its length as `max_tokens`.

    Args:
        costs: what the steps take.
        max_model_len: tokens of a prompt and its answer, at most.
    """

    num_hidden_layers = 1
    vocab_size = 1

    def __init__(self, costs: Costs = UNITS, max_model_len: int = 2**20):
        self.costs, self.max_model_len, self.clock = costs, max_model_len, SimulatedClock()

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[KvCache]:
        return [SimulatedCache()]

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[BatchCache]:
        return [SimulatedCache()]

    def prefill(
        self,
        tokens: Sequence[int],
        offset: int,
        kv_cache: Sequence[KvCache],
        *,
        sampling: SamplingParams | None = None,
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
        kv_cache: Sequence[BatchCache],
        *,
        sampling: Sequence[SamplingParams | None] | None = None,
    ) -> list[int | None]:
        """See `ServingModel.decode`."""
        running = [offset + 1 for token, offset in zip(tokens, offsets, strict=True) if token is not None]
        self._take(self.costs.decode, len(running), sum(running))
        return [None if token is None else 0 for token in tokens]

    def _take(self, cost: Cost, tokens: int, seen: int) -> None:
        self.clock.now += cost.seconds(tokens, seen)
