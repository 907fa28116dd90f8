"""What a row costs in steps of a few rows, measured on this machine: a line for each number of requests."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...solution_types import PackedBatch, ServingPackage
from ..packed_runner import PackedRunner
from ..profiling.step_timer import StepLine, fit_line

ROUNDS = 3  # measured runs, after one that warms up
MOST_ROWS = 64  # of a measured step


@dataclass(frozen=True)
class RowCosts:
    """Seconds of steps that check drafts.

    The products of one more row cost less beside one request than beside sixteen, so each number of requests has a line
    of its own.

    Args:
        lines: by the number of requests that decode, ascending.
    """

    lines: dict[int, StepLine]

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with this many rows.

        Args:
            tokens: rows, drafts included.
            decodes: requests that decode; the line of the next larger number that was measured counts.
        """
        count = next((count for count in self.lines if count >= decodes), max(self.lines))
        return self.lines[count].a + self.lines[count].b * tokens


def measured_row_costs(
    names: ServingPackage, runner: PackedRunner, max_num_seqs: int, most_drafts: int, context: int
) -> RowCosts:
    """Measures steps of 1, 4, 16 … requests, each with several numbers of rows per request.

    Args:
        names: the module `serving` of the solution.
        runner: runs the steps, which read and write only the pad block.
        max_num_seqs: requests of a step, at most.
        most_drafts: drafts of a request, at most.
        context: tokens that each request reads.
    """
    room = MOST_ROWS if runner.buckets is None else runner.buckets.max_num_seqs
    shapes = []
    for count in request_counts(max_num_seqs):
        most = max(1, min(most_drafts + 1, room // count))
        shapes += [(count, rows) for rows in sorted({1, -(-(most + 1) // 2), most})]
    batches = [verifying_batch(names, runner, count, rows, context) for count, rows in shapes]
    seconds = dict(zip(shapes, _seconds(runner, batches), strict=True))
    return RowCosts(
        {
            count: line_through(
                [(count * rows, 0.0, seconds[each, rows]) for each, rows in shapes if each == count]
            )
            for count, _ in shapes
        }
    )


def request_counts(most: int) -> list[int]:
    """1, 4, 16 … and `most`."""
    counts, count = [], 1
    while count < most:
        counts.append(count)
        count *= 4
    return [*counts, most]


def line_through(samples: Sequence[tuple[int, float, float]]) -> StepLine:
    """The line nearest to samples; from one sample, every row costs the same."""
    if len(samples) > 1:
        return fit_line(samples)
    [(rows, _, seconds)] = samples
    return StepLine(0.0, seconds / rows)


def verifying_batch(
    names: ServingPackage, runner: PackedRunner, count: int, rows: int, context: int
) -> PackedBatch:
    """A batch of `count` requests, each with `rows` sampled rows after `context` tokens, all in the pad block."""
    batch: Any = names.PackedBatch()
    block, total = runner.num_blocks, count * rows
    batch.token_ids.extend([0] * total)
    batch.positions.extend([*range(context, context + rows)] * count)
    batch.slots.extend([block * runner.block_size] * total)
    batch.query_start.extend(range(rows, total + 1, rows))
    batch.context_lens.extend([context] * count)
    batch.block_tables.extend([[block] * -(-(context + rows) // runner.block_size)] * count)
    batch.sample_rows.extend(range(total))
    batch.sampling.extend(
        [names.SamplingParams(1.0, seed=0)] * total
    )  # a draw is a large part of a small model's row
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
