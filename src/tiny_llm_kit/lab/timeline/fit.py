"""What steps cost on this machine, from those that were measured: the lines of the simulated model."""

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from ..simulated_model import Cost, Costs
from .trace import Span, Trace

Sample = tuple[int, float, float]  # tokens, mean context, seconds


def fit(traces: Iterable[Trace]) -> Costs:
    """The costs of both kinds of steps, from all steps of the traces."""
    traces = list(traces)
    return Costs(
        prefill=line([_of_chunk(span) for trace in traces for span in trace.spans if span.kind == "chunk"]),
        decode=line([sample for trace in traces for sample in _of_decodes(trace)]),
    )


def line(samples: Sequence[Sample]) -> Cost:
    """The line that is nearest to the samples in relative terms, among those without a negative cost.

    Each sample counts by the share by which the line misses it: a step of a second has no more say than one of 10 ms.
    """
    tokens, context, seconds = np.array(samples, dtype=np.float64).T
    terms = np.stack([np.ones_like(tokens), tokens, tokens * context], axis=1)
    scale = seconds
    for _ in range(
        3
    ):  # shares of what was measured would favour lines that lie too low: shares of the line, then
        found = _least_squares(terms / scale[:, None], seconds / scale)
        scale = terms @ found
    return Cost(*map(float, found))


def _least_squares(terms: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The nearest sum of terms of which no coefficient is negative: least squares in one of the choices of terms."""
    best, error = np.zeros(3), np.inf
    for chosen in (list(some) for count in (1, 2, 3) for some in combinations(range(3), count)):
        found = np.linalg.lstsq(terms[:, chosen], values, rcond=None)[0]
        missed = float(np.sum((terms[:, chosen] @ found - values) ** 2))
        if (found >= 0).all() and missed < error:
            best, error = np.zeros(3), missed
            best[chosen] = found
    return best


def _of_chunk(span: Span) -> Sample:
    return span.tokens, span.context + (span.tokens + 1) / 2, span.seconds


def _of_decodes(trace: Trace) -> list[Sample]:
    """One sample a step: its spans are those of the requests in it."""
    steps: dict[float, list[Span]] = {}
    for span in trace.spans:
        if span.kind == "decode":
            steps.setdefault(span.start, []).append(span)
    return [
        (len(spans), sum(span.context for span in spans) / len(spans), spans[0].seconds)
        for spans in steps.values()
    ]
