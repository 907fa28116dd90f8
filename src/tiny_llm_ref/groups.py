"""The ranks that compute one model together, as one of them sees the others. Given, for both ports."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .layer_weights import Checkpoint
from .serving.parallel.shards import ROW_PARALLEL


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
class Place:
    """A process's place among the ranks with which it was started.

    Args:
        rank, size: see `Group`.
        host: name or address of the machine of rank 0.
    """

    rank: int
    size: int
    host: str


@dataclass(frozen=True)
class RowParallelWeights:
    """A rank's columns of a matrix (O, I). Its products are partial sums, which `project` adds up over the ranks.

    Args:
        weight: (O, I / size), of any kind that `project` takes.
        group: the ranks that hold the other columns.
    """

    weight: Any
    group: Group


@dataclass(frozen=True)
class ExpertParallelWeights:
    """The matrices of the experts that a rank holds.

    Args:
        weight: of X / size experts, of any kind that `grouped_product` takes.
        group: the ranks that hold the other experts.
    """

    weight: Any
    group: Group


class PartialSums:
    """A rank's checkpoint whose row-parallel matrices are `RowParallelWeights`, and whose experts may be parallel.

    Args:
        checkpoint: this rank's part of the weights.
        group: all ranks.
    """

    def __init__(self, checkpoint: Checkpoint, group: Group):
        self.checkpoint, self.group = checkpoint, group
        self.config = checkpoint.config

    def weight(self, name: str, *shape: int) -> Any:
        """See `Checkpoint.weight`."""
        found = self.checkpoint.weight(name, *shape)
        if ".mlp.experts." in name:
            return self._of_experts(name, found)
        layer, kind = name.split(".")[-2:]
        return RowParallelWeights(found, self.group) if layer in ROW_PARALLEL and kind == "weight" else found

    def _of_experts(self, name: str, found: Any) -> Any:
        """With expert parallelism a rank has whole experts, else a part of each one."""
        if self.config.mixture is not None and self.config.mixture.ranks > 1:
            return ExpertParallelWeights(found, self.group)
        return RowParallelWeights(found, self.group) if name.endswith("down_proj") else found
