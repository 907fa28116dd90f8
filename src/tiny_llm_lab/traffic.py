"""Realistic requests: lengths from published quantiles, and arrivals in seconds, singly or in bursts.

The traces themselves are not in the repository. Between two published quantiles, lengths are spread evenly; a prompt
and its answer are drawn independently, since their correlation is 0.04 in the trace where it is known.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tiny_llm_course.trace.workload import SHORT, RequestSpec

from .arrivals import arrival_gaps

PERCENTS = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
GROUP = 1024  # requests that are drawn at a time


@dataclass(frozen=True)
class Lengths:
    """The lengths of a trace, in tokens."""

    prompts: tuple[int, ...]  # their quantiles, at `percents`
    answers: tuple[int, ...]  # their quantiles, at `percents`
    most: int  # of a prompt and its answer together; longer ones are drawn again
    source: str  # where the quantiles come from
    percents: tuple[int, ...] = PERCENTS  # where the quantiles are known

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """(count, 2) prompts and answers."""
        found = np.empty((0, 2), dtype=int)
        while len(found) < count:
            shares = 100 * rng.random((count, 2))
            drawn = [
                np.interp(share, self.percents, values)
                for share, values in zip(shares.T, (self.prompts, self.answers), strict=True)
            ]
            pairs = np.maximum(1, np.rint(np.stack(drawn, axis=1))).astype(int)
            found = np.concatenate([found, pairs[pairs.sum(axis=1) <= self.most]])
        return found[:count]


AZURE = "Azure's LLM inference trace of 2023, whose quantiles were computed from the released files"
TRACES = {
    "openchat": Lengths(
        (1, 12, 29, 74, 580, 1730, 3734, 5696, 6563, 7434, 8141),
        (2, 6, 44, 84, 228, 415, 628, 834, 920, 998, 1024),
        8192,
        "openchat_sharegpt4 of Sarathi-Serve, from the file that its artefact names",
    ),
    # Of this one the median, the 90th percentile and the deviation alone are published. The straight line between the
    # first two goes on to the maximum; the minimum is the one that gives the deviation (3,638, and 101: the paper's
    # table has the deviations of the two traces' answers in each other's place).
    "arxiv": Lengths(
        (1915, 7059, 12985, 14466),
        (63, 208, 371, 412),
        16384,
        "arxiv_summarization of Sarathi-Serve, from three figures of its Table 2",
        (0, 50, 90, 100),
    ),
    "azure-conversation": Lengths(
        (2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4142, 14050),
        (7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 1000),
        15050,
        AZURE,
    ),
    "azure-code": Lengths(
        (3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7437),
        (6, 6, 6, 7, 9, 13, 24, 55, 90, 251, 1899),
        9336,
        AZURE,
    ),
}


def traffic(
    trace: str | Lengths, rate: float, count: int, seed: int = 0, variation: float = 1.0
) -> Iterator[RequestSpec]:
    """Requests in the order of their arrival.

    With the same seed, a higher rate sends the same requests in less time.

    Args:
        trace: one of `TRACES`, or other lengths.
        rate: requests per second, on average.
        count: how many.
        seed: determines lengths and arrivals.
        variation: the gaps' deviation in units of their mean. 1 is a Poisson process; Azure's conversations have 1.09,
            and its code completions come in bursts, with 13.

    Raises:
        ValueError: a number is not positive.
    """
    rng, burstiness, time = np.random.default_rng(seed), 1 / variation**2 if variation > 0 else 0.0, 0.0
    known = TRACES[trace] if isinstance(trace, str) else trace
    for start in range(0, count, GROUP):
        lengths = known.draw(rng, GROUP)
        gaps = arrival_gaps(GROUP, rate, burstiness, rng=rng)
        for (tokens, answer), gap in zip(lengths[: count - start].tolist(), gaps.tolist(), strict=False):
            time += gap
            yield RequestSpec(SHORT, tokens, answer, time=time)
