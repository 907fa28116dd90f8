"""What a row costs in steps of a few rows, measured on this machine for each number of requests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...solution_types import PackedBatch, ServingPackage
from ..packed_runner import PackedRunner
from ..profiling.step_timer import fit_line

ROUNDS = 3  # measured runs, after one that warms up
MOST_ROWS = 64  # of a measured step


@dataclass(frozen=True)
class StepCost:
    """What steps with one number of requests take.

    Args:
        plain: seconds without drafts.
        first: seconds more with any drafts: attention is two computations then, of decodes and of chunks.
        row: seconds of each draft.
    """

    plain: float
    first: float
    row: float


@dataclass(frozen=True)
class RowCosts:
    """Seconds of steps that check drafts.

    One more row costs less beside one request than beside sixteen, so each number of requests has costs of its own.

    Args:
        costs: by the number of requests that decode, ascending.
    """

    costs: dict[int, StepCost]

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with this many rows, without what the first draft costs besides.

        Args:
            tokens: rows, drafts included.
            decodes: requests that decode; the next larger number that was measured counts.
        """
        count, cost = self._of(decodes)
        return cost.plain + cost.row * (tokens - count)

    def first_draft_seconds(self, decodes: int) -> float:
        """See `StepCost.first`."""
        return self._of(decodes)[1].first

    def _of(self, decodes: int) -> tuple[int, StepCost]:
        count = next((count for count in self.costs if count >= decodes), max(self.costs))
        return count, self.costs[count]


def measured_row_costs(
    names: ServingPackage, runner: PackedRunner, max_num_seqs: int, most_drafts: int, context: int
) -> RowCosts:
    """Measures steps of 1, 4, 16 … requests, without drafts and with several numbers of them.

    Args:
        names: the module `serving` of the solution.
        runner: runs the steps, which read and write only the pad block.
        max_num_seqs: requests of a step, at most.
        most_drafts: drafts of a request, at most.
        context: tokens that each request reads.
    """
    room = MOST_ROWS if runner.buckets is None else runner.buckets.max_num_seqs
    steps = {
        count: steps_to_measure(count, most_drafts, room - count) for count in request_counts(max_num_seqs)
    }
    batches = [verifying_batch(names, runner, rows, context) for each in steps.values() for rows in each]
    seconds = iter(_seconds(runner, batches))
    return RowCosts(
        {count: step_cost([(sum(rows), next(seconds)) for rows in each]) for count, each in steps.items()}
    )


def steps_to_measure(count: int, most_drafts: int, room: int) -> list[list[int]]:
    """Rows of each request in the steps that are measured for one number of requests; the first has no drafts.

    In one of them every fourth request has a draft, and the others decode. One request alone is measured with many
    drafts: the time of a single row would be lost in the noise.

    Args:
        count: requests of the step.
        most_drafts: drafts of a request, at most.
        room: drafts of all requests, at most.
    """
    few = [[2] * (count // 4) + [1] * (count - count // 4)] if count > 1 else []
    most = min(most_drafts, room // count)
    same = [[1 + drafts] * count for drafts in sorted({-(-most // 2), most} - {0}) if drafts > 0]
    return [[1] * count, *(rows for rows in few if sum(rows) - count <= room), *same]


def step_cost(samples: Sequence[tuple[int, float]]) -> StepCost:
    """The costs by a sample (rows, seconds) without drafts and others with drafts, on whose line a draft costs its row.

    Without others every row costs the same; with one, the first draft costs nothing besides its row.
    """
    (rows, plain), *others = samples
    if not others:
        return StepCost(plain, 0.0, plain / rows)
    if len(others) == 1:
        [(more, seconds)] = others
        return StepCost(plain, 0.0, max(0.0, seconds - plain) / (more - rows))
    line = fit_line([(more, 0.0, seconds) for more, seconds in others])
    return StepCost(plain, max(0.0, line.a + line.b * rows - plain), line.b)


def request_counts(most: int) -> list[int]:
    """1, 4, 16 … and `most`."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 4
    return [*counts, most]


def verifying_batch(
    names: ServingPackage, runner: PackedRunner, rows: Sequence[int], context: int
) -> PackedBatch:
    """A batch of requests with these numbers of sampled rows after `context` tokens, all in the pad block."""
    batch: Any = names.PackedBatch()
    block, total = runner.num_blocks, sum(rows)
    batch.token_ids.extend([0] * total)
    batch.slots.extend([block * runner.block_size] * total)
    batch.sample_rows.extend(range(total))
    batch.sampling.extend([names.SamplingParams()] * total)
    for own in rows:
        batch.positions.extend(range(context, context + own))
        batch.query_start.append(len(batch.positions))
        batch.context_lens.append(context)
        batch.block_tables.append([block] * -(-(context + own) // runner.block_size))
    return batch


def _seconds(runner: PackedRunner, batches: Sequence[PackedBatch]) -> list[float]:
    """The shortest time of each batch. They take turns, so that whatever else runs for a while slows all of them."""
    taken: list[list[float]] = [[] for _ in batches]
    for _ in range(1 + ROUNDS):
        for batch, mine in zip(batches, taken, strict=True):
            start = time.perf_counter()
            runner.run(batch)
            mine.append(time.perf_counter() - start)
    return [min(mine[1:]) for mine in taken]
