"""The ranks that compute one model together, as one of them sees the others."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tiny_llm_engine.models.layer_weights import Checkpoint


class Group(Protocol):
    """Collective calls: every rank makes the same ones in the same order, with arrays of the same shape and type."""

    rank: int  # of this process, from 0
    size: int

    def all_reduce(self, x: Any) -> Any:
        """The sum of all ranks' arrays, the same on every rank. `x` may be overwritten."""
        ...

    def all_gather(self, x: Any) -> Any:
        """All ranks' arrays: (...) to (size, ...), in the order of the ranks."""
        ...

    def all_to_all(self, x: Any, sent: Sequence[int], received: Sequence[int]) -> Any:
        """Rows for each rank, and rows from each: here ranks may give different numbers of rows.

        Args:
            x: (N, ...), first the rows for rank 0, then those for rank 1, and so on.
            sent: how many of them each rank gets; their sum is N.
            received: how many rows come from each rank.

        Returns:
            The rows that the others have sent to this rank, in the order of the ranks.
        """
        ...

    def send(self, x: Any, rank: int) -> None:
        """Sends an array to another rank. Does not wait until it has arrived."""
        ...

    def receive(self, shape: tuple[int, ...], like: Any, rank: int) -> Any:
        """The next array from another rank: of this shape, and of the type and on the device of `like`."""
        ...


@dataclass(frozen=True)
class RankPlace:
    """A process's place among the ranks with which it was started.

    Args:
        rank, size: see `Group`.
        host: name or address of the machine of rank 0.
    """

    rank: int
    size: int
    host: str


class PartialSums:
    """A rank's checkpoint whose row-parallel matrices add up their products over the ranks.

    Args:
        checkpoint: this rank's part of the weights.
        group: all ranks.
        names: of the row-parallel layers.
        row_parallel: makes such a layer of a matrix and the group.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        group: Group,
        names: Collection[str],
        row_parallel: Callable[[Any, Group], Any],
    ):
        self.checkpoint, self.group, self.names, self.row_parallel = checkpoint, group, names, row_parallel
        self.config = checkpoint.config

    def weight(self, name: str, *shape: int) -> Any:
        """See `Checkpoint.weight`."""
        weight = self.checkpoint.weight(name, *shape)
        layer, kind = name.split(".")[-2:]
        is_part = layer in self.names and kind == "weight"
        return self.row_parallel(weight, self.group) if is_part else weight
