"""Models that compute nothing: a clock advances by the cost of each step, the same on every machine.

`SimulatedModel` has the two phases of Week 2, `SimulatedPackedModel` the packed batches of Week 3. Both choose token 0,
so give each request its length as `max_tokens`.
"""

from collections.abc import Callable, Sequence

from tiny_llm_engine.solutions.solution_types import BatchCache, KvCache, PackedBatch, Sampled, SamplingParams

from .step_cost import INCIDENTS, UNITS, StepCost, StepWork


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


class SimulatedSteps:
    """The clock of a simulated model.

    Args:
        cost: what a step takes.
        max_model_len: tokens of a prompt and its answer, at most.
    """

    num_hidden_layers = vocab_size = 1

    def __init__(self, cost: StepCost, max_model_len: int):
        self.cost, self.max_model_len, self.clock = cost, max_model_len, SimulatedClock()

    def end_of(self, work: StepWork) -> float:
        """When a step that begins now has ended."""
        return self.clock.now + self.cost.seconds(work)


class SimulatedModel(SimulatedSteps):
    """A `ServingModel` whose steps take time."""

    def __init__(self, cost: StepCost = UNITS, max_model_len: int = 2**20):
        super().__init__(cost, max_model_len)

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
        self.clock.now = self.end_of(StepWork.of([(len(tokens), offset)]))
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
        seen = [offset + 1 for token, offset in zip(tokens, offsets, strict=True) if token is not None]
        self.clock.now = self.end_of(StepWork.of([], seen))
        return [None if token is None else 0 for token in tokens]


class SimulatedPackedModel(SimulatedSteps):
    """A `PackedModel` whose steps take time; `sampled` is `Sampled` of a solution, which makes one of a token."""

    def __init__(
        self, sampled: Callable[[int], Sampled], cost: StepCost = INCIDENTS, max_model_len: int = 2**20
    ):
        super().__init__(cost, max_model_len)
        self.calls = 0
        self._chosen = sampled(0)  # it is never changed, so one is enough for all

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        self.calls += 1
        self.clock.now = self.end_of(StepWork.of_batch(batch))
        return [self._chosen] * len(batch.sample_rows)
