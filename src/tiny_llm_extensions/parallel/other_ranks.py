"""The runner's view of the other ranks of a model; the processes themselves are in `ranks.py`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import Array, Bucket, PackedBatch


class RankError(FatalError):
    """A rank is gone or cannot start, so the engine is gone: only together do its ranks hold the model."""


class OtherRanks:
    """No other ranks: this process has the model to itself.

    Attributes:
        group: all ranks, see `Group`.
        has_stages: whether the ranks share the layers, and not every matrix.
        failure: why a rank is gone, in one line; None while all are there.
        on_failure: called with that line, on a thread of its own.
    """

    group: Any = None
    has_stages = False
    failure: str | None = None
    on_failure: Callable[[str], object]

    @property
    def size(self) -> int:
        """Number of ranks, this one included."""
        return 1

    def make_pools(self, num_blocks: int, is_profiled: bool = False) -> None:
        """Every other rank makes KV pools of this many blocks, and a runner for them.

        Args:
            is_profiled: whether only memory is measured: then nothing is compiled.
        """

    def announce(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        """Every other rank begins to compute a batch, or will when it has computed those before.

        Raises:
            RankError: one is gone.
        """

    def computing(self) -> AbstractContextManager:
        """The body computes a batch that was announced.

        Raises:
            RankError: another rank is gone, or the body has raised.
        """
        return nullcontext()

    def close(self) -> None:
        """Ends the other ranks, and returns when they have ended."""


def put_ranks_on(runner: PackedRunner, ranks: OtherRanks) -> None:
    """Lets a runner announce its batches to the other ranks, which compute them too."""
    plain = runner.logits

    def logits(batch: PackedBatch, bucket: Bucket | None) -> Array | None:
        """The logits, which all ranks compute together.

        Raises:
            RankError: a rank is gone, or this one has raised something while others wait for it.
        """
        ranks.announce(batch, bucket)
        with ranks.computing():
            return finish_together(runner, plain(batch, bucket))

    runner.logits = logits


def compute_beside(runner: PackedRunner, batch: PackedBatch, bucket: Bucket | None) -> None:
    """Computes a batch that rank 0 has announced; rank 0 draws the tokens."""
    with runner.backend_module.inference():
        finish_together(runner, runner.logits(batch, bucket))


def finish_together(runner: PackedRunner, logits: Array | None) -> Array | None:
    """Makes all collective calls now, in the order in which the other ranks make them."""
    if logits is not None:
        runner.backend_module.evaluate(logits)
    runner.backend_module.materialize(runner.pools)
    return logits
