"""A model of packed batches that computes nothing: its clock advances by the cost of each step."""

from collections.abc import Callable

from ...solution_types import PackedBatch, Sampled
from .packed_cost import INCIDENTS, PackedCost, StepWork
from .simulated_model import SimulatedClock


class SimulatedPackedModel:
    """A `PackedModel` whose steps take time and choose token 0.

    Give each request its length as `max_tokens`.

    Args:
        sampled: `Sampled` of a solution, which makes one of a token.
        cost: what a step takes.
        max_model_len: tokens of a prompt and its answer, at most.
        clock: moved by each call.
    """

    num_hidden_layers = 1
    vocab_size = 1

    def __init__(
        self,
        sampled: Callable[[int], Sampled],
        cost: PackedCost = INCIDENTS,
        max_model_len: int = 2**20,
        clock: SimulatedClock | None = None,
    ):
        self.cost, self.max_model_len, self.clock = cost, max_model_len, clock or SimulatedClock()
        self.calls = 0
        self._chosen = sampled(0)  # it is never changed, so one is enough for all

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        self.calls += 1
        self.clock.now += self.cost.seconds(StepWork.of(batch))
        return [self._chosen] * len(batch.sample_rows)
