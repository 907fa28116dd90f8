"""Expert parallelism: how many rows each rank sends to each other one, and which experts compute what arrives."""

from collections.abc import Sequence
from dataclasses import dataclass

from .shards import even_part


@dataclass(frozen=True)
class ExchangePlan:
    """What a rank sends and receives in one exchange of rows.

    Args:
        sent: rows to each rank, this one included.
        received: rows from each rank, this one included.
        experts: the expert of each received row, counted from this rank's first one. The rows come rank by rank, those
            of one rank in the order of the experts.
    """

    sent: list[int]
    received: list[int]
    experts: list[int]


def exchange_plan(counts: Sequence[Sequence[int]], rank: int) -> ExchangePlan:
    """Which rows a rank exchanges, if rank r holds the experts of `even_part(X, r, size)`.

    Args:
        counts: (size, X): how many rows each rank has for each expert.
        rank: this one, from 0 to size - 1.

    Returns:
        The plan of this rank: row i of the received ones belongs to its expert `experts[i]`.
    """
    # TASK 4.2.5: sent are the sums of this rank's own counts, rank by rank; received are all ranks' for its experts.
    # Every rank has all counts, so the plans of two ranks agree on how many rows go from one to the other.
    raise NotImplementedError("week 4 day 2 task 5: exchange_plan")
