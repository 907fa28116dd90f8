"""What a chunk costs: a line, and the line that fits what was measured."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

# Which of a, b and c a line may have, the simplest first: of lines that fit equally well, the first is taken.
# So a cost that was measured at one size alone grows with the size.
SHAPES = ((1,), (0,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2))


class Observation(NamedTuple):
    """A chunk of so many tokens, behind so many tokens of context, took so many seconds."""

    tokens: int
    seconds: float
    context: int = 0


@dataclass(frozen=True)
class CostLine:
    """seconds = a + b · tokens + c · tokens · context.

    Args:
        a: seconds of any chunk: reading the weights, starting the kernels.
        b: seconds of a token, in the linear layers.
        c: seconds of a token for each token before the chunk, in attention.
    """

    a: float
    b: float
    c: float = 0.0

    def seconds(self, tokens: int, context: int = 0) -> float:
        """What a chunk of so many tokens costs behind so many others."""
        # TASK 2.7.5: every token of the chunk attends to every token of the context.
        raise NotImplementedError("week 2 day 7 task 5: CostLine.seconds")


# GIVEN: linear algebra, no policy.
def fit_cost_line(observations: Iterable[Observation]) -> CostLine:
    """The line with the smallest sum of squared errors, each error as a share of the time that was measured.

    Shares, so that a small chunk says as much as a large one, and an accident that took a hundred times as long not
    more than any other. None of a, b and c is below 0. What the observations cannot tell apart is simplest: of chunks
    of one size, all of the cost grows with the size.

    Raises:
        ValueError: there is no observation, or one took no time.
    """
    seen = [Observation(*observation) for observation in observations]
    if not seen or any(o.seconds <= 0 for o in seen):
        raise ValueError(f"no line fits {len(seen)} observations: give at least one, all above 0 seconds")
    # A row (1, tokens, tokens · context) / seconds for each; a line that fits gives 1 for every row.
    # Of the shapes without a negative number the best. A less simple one must be better by more than rounding.
    rows = [(1 / o.seconds, o.tokens / o.seconds, o.tokens * o.context / o.seconds) for o in seen]
    products = [[sum(row[i] * row[k] for row in rows) for k in range(3)] for i in range(3)]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    least, line = 0.0, (0.0, 0.0, 0.0)
    for shape in SHAPES:
        solved = solve([[products[i][k] for k in shape] for i in shape], [sums[i] for i in shape])
        if solved is None or min(solved) < 0:
            continue
        # Σ (row · x − 1)², without the 1 of each row, where x solves the normal equations.
        error = -sum(x * sums[i] for x, i in zip(solved, shape, strict=True))
        if error < least - 1e-9:
            least, found = error, dict(zip(shape, solved, strict=True))
            line = tuple(found.get(i, 0.0) for i in range(3))
    return CostLine(*line)


# GIVEN: linear algebra, no policy.
def solve(products: list[list[float]], sums: list[float]) -> list[float] | None:
    """The x with products · x = sums, by elimination; None when many are equally good."""
    scale = [products[i][i] ** 0.5 for i in range(len(sums))]
    if not all(scale):
        return None
    system = [
        [p / scale[i] / scale[k] for k, p in enumerate(row)] + [sums[i] / scale[i]]
        for i, row in enumerate(products)
    ]
    for i, pivot in enumerate(system):
        if pivot[i] < 1e-9:
            return None
        for k, row in enumerate(system):
            if k != i:
                factor = row[i] / pivot[i]
                row[:] = [x - factor * y for x, y in zip(row, pivot, strict=True)]
    return [row[-1] / row[i] / scale[i] for i, row in enumerate(system)]
