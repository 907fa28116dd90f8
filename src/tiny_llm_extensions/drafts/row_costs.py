"""What a row costs in steps of a few rows, measured on this machine for each number of requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tiny_llm_engine.backends.samples import interleave
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import PackedBatch, ServingPackage

from ..graphs.pad_batch import pad_batch

ROUNDS = 3  # measured runs, after one that warms up
MOST_ROWS = 64  # of a measured step


@dataclass(frozen=True)
class DecodeCost:
    """What steps with one number of requests take.

    Args:
        plain: seconds without drafts.
        row: seconds of each draft.
    """

    plain: float
    row: float


@dataclass(frozen=True)
class RowCosts:
    """Seconds of steps that check drafts, before any was made.

    One more row costs less beside one request than beside sixteen, so each number of requests has costs of its own.

    Args:
        costs: by the number of requests that decode, ascending.
    """

    costs: dict[int, DecodeCost]

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with this many rows.

        Args:
            tokens: rows, drafts included.
            decodes: requests that decode; the next larger number that was measured counts.
        """
        count = next((count for count in self.costs if count >= decodes), max(self.costs))
        return self.costs[count].plain + self.costs[count].row * (tokens - count)


def measured_row_costs(
    names: ServingPackage, runner: PackedRunner, max_num_seqs: int, most_drafts: int, context: int
) -> RowCosts:
    """Measures steps of 1, 4, 16 … requests, without drafts and with some for each.

    Args:
        names: the module `serving` of the solution.
        runner: runs the steps, which read and write only the pad block.
        max_num_seqs: requests of a step, at most.
        most_drafts: drafts of a request, at most.
        context: tokens that each request reads.
    """
    room = MOST_ROWS if runner.buckets is None else runner.buckets.max_num_seqs
    counts = request_counts(max_num_seqs)
    drafts = [drafts_to_measure(count, most_drafts, room) for count in counts]
    steps = [(count, 1 + more) for count, each in zip(counts, drafts, strict=True) for more in (0, each)]
    place = names, runner.num_blocks, runner.block_size
    batches = [pad_batch(*place, [(rows, context)] * count, sampled=rows) for count, rows in steps]
    seconds = _seconds(runner, batches)
    return RowCosts(
        {
            count: step_cost(count, each, plain, drafted)
            for count, each, plain, drafted in zip(counts, drafts, seconds[::2], seconds[1::2], strict=True)
        }
    )


def drafts_to_measure(count: int, most_drafts: int, room: int) -> int:
    """Drafts of each of `count` requests; one request has several, because a single row is lost in the noise."""
    several = -(-most_drafts // 2) if count == 1 else min(1, most_drafts)
    return max(0, min(several, room // count - 1))


def step_cost(count: int, drafts: int, plain: float, drafted: float) -> DecodeCost:
    """The costs from two measurements; if there was no room for drafts, a row costs a request's share of the step."""
    if drafts < 1:
        return DecodeCost(plain, plain / count)
    return DecodeCost(plain, max(0.0, drafted - plain) / (count * drafts))


def request_counts(most: int) -> list[int]:
    """1, 4, 16 … and `most`."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 4
    return [*counts, most]


def _seconds(runner: PackedRunner, batches: Sequence[PackedBatch]) -> list[float]:
    """The shortest time of each batch. They take turns, so that whatever else runs for a while slows all of them."""
    runs = {number: partial(runner.run, batch) for number, batch in enumerate(batches)}
    return [min(seconds) for seconds in interleave(runs, ROUNDS).values()]
