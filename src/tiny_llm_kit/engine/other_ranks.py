"""The other ranks of a model as an engine sees them. `parallel` has those that are processes."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..solution_types import Bucket, PackedBatch
from ..terminal import FatalError


class RankError(FatalError):
    """A rank is gone or cannot start, so the engine is gone: only together do its ranks hold the model."""


class OtherRanks:
    """There are none: this process has the model to itself.

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
