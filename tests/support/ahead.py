"""An asynchronous loop over a fake that fills placeholders itself, for the tests of Day 4.4."""

from typing import Any

from tiny_llm_engine.solutions.solution_types import AnswerSequence, PackedBatch, Sampled

from .pipeline import FakeDevice, Pipeline
from .served import Served


class FakeAhead(FakeDevice):
    """A `FakeDevice` that checks the sources of a batch, and keeps batches as they came, with their placeholders."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.packed: list[PackedBatch] = []

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        self.packed.append(batch)
        rows, drawn = len(batch.token_ids), len(self.last)
        assert len(batch.sources) in (0, rows), f"{len(batch.sources)} sources for {rows} rows: one per row"
        wrong = [source for source in batch.sources if not -1 <= source < drawn]
        assert not wrong, f"source {wrong[0]} of a batch after one that drew {drawn} tokens"
        return super().run(batch)


class Ahead(Pipeline):
    """A `Pipeline` with asynchronous scheduling, whose requests are texts.

    Args:
        s: the module `serving`.
        num_blocks, block_size, options: see `Pipeline`.
    """

    model: FakeAhead

    def __init__(self, s: Any, num_blocks: int = 64, block_size: int = 4, **options: Any):
        options = {"max_num_batched_tokens": 16, "async_scheduling": True, **options}
        super().__init__(s, 2, num_blocks, block_size, device=FakeAhead, **options)

    def send(self, prompt: str, **sampling: Any) -> AnswerSequence:
        """A request for a text."""
        return Served.add(self, prompt, **sampling)

    def answer_of(self, made: AnswerSequence) -> list[int]:
        """The tokens that a request gets when it runs alone, up to its abort."""
        alone = super().answer_of(made)
        return alone[: len(made.tokens)] if made.finish_reason == "abort" else alone

    def finish(self) -> None:
        """Steps until no work remains; every answer is right then."""
        super().finish()
        self.check_answers()
