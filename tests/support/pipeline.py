"""A pipelined loop over a fake of several stages, for the tests of Day 3.7."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any, cast

from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_engine.solutions.solution_types import AnswerSequence, PackedBatch, Sampled
from tiny_llm_extensions.parallel import pipeline as given
from tiny_llm_extensions.parallel.in_flight import InFlight

from .served import Served


class FakeStages(FakePackedModel):
    """Computes a batch when it is submitted, and keeps the tokens until they are collected.

    So whatever the scheduler does in between, it does while the batch is on its way.

    Args:
        num_stages: how many stages the pipeline has.
        places: micro-batches that may be in flight; one for each stage when None.
        refuses: errors that `submit` raises, by call number.
        arguments, options: see `FakePackedModel`.
    """

    def __init__(
        self,
        *arguments: Any,
        num_stages: int = 2,
        places: int | None = None,
        refuses: dict[int, Exception] | None = None,
        **options: Any,
    ):
        super().__init__(*arguments, **options)
        self.num_stages, self.places = num_stages, places or num_stages
        self.refuses, self.most = refuses or {}, 0
        self.before_collect: Callable[[], None] = lambda: None
        self.on_the_way: deque[list[Sampled] | RuntimeError] = deque()

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`."""
        if len(self.batches) in self.refuses:
            raise self.refuses[len(self.batches)]
        try:
            found = self.run(batch)
        except RuntimeError as error:
            found = error
        self.on_the_way.append(found)
        self.most = max(self.most, len(self.on_the_way))
        assert self.most <= self.places, (
            f"{self.most} micro-batches are in flight, and there are {self.num_stages} stages"
        )

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`."""
        self.before_collect()
        assert self.on_the_way, "`collect` would wait for ever: nothing was submitted"
        found = self.on_the_way.popleft()
        if isinstance(found, RuntimeError):
            raise found
        return found

    def abandon(self) -> None:
        """See `PipelinedModel.abandon`."""
        self.on_the_way.clear()


class FakeDevice(FakeStages):
    """Two steps in flight; placeholders become what the step before has drawn (Day 4.4)."""

    last: Sequence[Sampled] = ()  # what the step submitted last has drawn
    make_moves: Callable[[PackedBatch], None] = staticmethod(lambda batch: None)

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`. What follows a step that fails reads what that step has not written."""
        if self.on_the_way and isinstance(self.on_the_way[-1], RuntimeError):
            self.make_moves(batch)
            self.on_the_way.append(self.on_the_way[-1])
        else:
            super().submit(batch)

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        filled = [
            token if source < 0 else self.last[source].token
            for token, source in zip(batch.token_ids, batch.sources or repeat(-1), strict=False)
        ]
        self.last = super().run(replace(batch, token_ids=filled))
        return list(self.last)


class Pipeline(Served):
    """A `Served` with a pipeline.

    Args:
        s: the module `serving`.
        num_stages: how many stages the model has.
        device: the class of the fake model.
        arguments, model, options: see `Served`.
    """

    def __init__(
        self,
        s: Any,
        num_stages: int = 2,
        *arguments: Any,
        model: dict[str, Any] | None = None,
        device: type[FakeStages] = FakeStages,
        **options: Any,
    ):
        how = {"fake": device, "model": {"num_stages": num_stages, **(model or {})}}
        super().__init__(s, *arguments, **how, **{"max_num_seqs": 8, **options})
        if num_stages == 1:  # which `make_loop` computes without a pipeline
            self.loop.calls = given.Pipeline(self.loop, s.fill_stages)
        self.model.before_collect = self.check_in_flight

    @property
    def in_flight(self) -> Sequence[InFlight]:
        """The micro-batches that were submitted and not collected."""
        return cast(given.Pipeline, self.loop.calls).in_flight

    def fill(self) -> None:
        """Submits micro-batches while a stage has none."""
        self.s.fill_stages(self.loop.calls)

    def check_in_flight(self) -> None:
        """Every token is on its way once, unless it is computed again after a preemption."""
        places = Counter(
            (entry.sequence.request_id, count, place)
            for each in self.in_flight
            for entry, count in zip(each.plan, each.preemptions, strict=True)
            for place in range(entry.start, entry.stop)
        )
        twice = [(request, place) for (request, _, place), count in places.items() if count > 1]
        assert not twice, f"tokens (request, place) that are on their way twice: {twice}"

    def add(
        self, size: int, max_tokens: int = 4, priority: str = "interactive", **params: Any
    ) -> AnswerSequence:
        """A request with a prompt of `size` tokens, and other sampling parameters by name."""
        prompt = [(7 * len(self.sequences) + token) % 250 for token in range(size)]
        return super().add(
            prompt, priority=priority, **{"max_tokens": max_tokens, "ignore_eos": True, **params}
        )

    def sizes(self) -> list[list[int]]:
        """The chunks of each micro-batch, in the order of submission."""
        return [
            [stop - start for start, stop in zip(b.query_start, b.query_start[1:], strict=False)]
            for b in self.model.batches
        ]
