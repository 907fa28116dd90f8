"""Step costs fitted to measured steps, and those of the shipped model on one machine.

The widget of Week 2 Day 7, `pdm run see 2.7` and `pdm run timeline --simulate` all read the latter from one sealed
file; `pdm run book measure` measures them again.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from tiny_llm_engine.machine.repo import BOOK
from tiny_llm_engine.models.files import Json

from ..provenance import is_sealed
from ..trace import Span, Trace
from .step_cost import AdditiveCost, Line, StepWork, pairs

if TYPE_CHECKING:
    import numpy as np

MEASURED = BOOK / "src" / "widgets" / "chunked-prefill-cost.json"
Sample = tuple[int, float, float]  # tokens, pairs, seconds


def sealed(file: Path = MEASURED) -> Json:
    """The measurement, with all its samples.

    Raises:
        RuntimeError: the file was changed after it was sealed.
    """
    measured = json.loads(file.read_text(encoding="utf-8"))
    if not is_sealed(measured):
        raise RuntimeError(f"{file.name} was changed after it was sealed: `pdm run book measure`")
    return measured


def measured_cost() -> AdditiveCost:
    """The measured lines."""
    measured = sealed()
    prefill, decode = (Line(*(measured[kind][term] for term in "abc")) for kind in ("prefill", "decode"))
    return AdditiveCost(prefill, decode)


def fit_traces(traces: Iterable[Trace]) -> AdditiveCost:
    """A line through all chunks of the traces, and one through all decode steps."""
    chunks, decodes = [], []
    for trace in traces:
        steps: dict[float, list[Span]] = {}
        for span in trace.spans:
            if span.kind == "chunk":
                chunks.append((span.tokens, pairs(span.tokens, span.context), span.seconds))
            elif span.kind == "decode":  # each of its requests has a span
                steps.setdefault(span.start, []).append(span)
        decodes += [(len(spans), sum(s.context for s in spans), spans[0].seconds) for spans in steps.values()]
    return AdditiveCost(fit_line(chunks), fit_line(decodes))


def fit_steps(samples: Sequence[tuple[StepWork, float]]) -> AdditiveCost:
    """The sum of five terms that is nearest to steps of chunks and decodes; each sample is its work and seconds."""
    terms = [(1, w.chunk_tokens, w.chunk_pairs, w.decodes, w.decode_pairs) for w, _ in samples]
    return AdditiveCost.of_terms(*_nearest_sum(terms, [seconds for _, seconds in samples], passes=3))


def fit_line(samples: Sequence[Sample], passes: int = 3) -> Line:
    """The line that is nearest to the samples in relative terms, among those without a negative cost.

    Each sample counts by its relative error: a step of a second weighs no more than one of 10 ms.

    Args:
        samples: steps.
        passes: the first one takes shares of the samples, which favours lines that lie too low where samples are
            noisy; every further one takes shares of the line before. Medians need no second one.
    """
    terms = [(1, tokens, seen) for tokens, seen, _ in samples]
    return Line(*_nearest_sum(terms, [seconds for *_, seconds in samples], passes))


def _nearest_sum(rows: Sequence[Sequence[float]], seconds: Sequence[float], passes: int) -> list[float]:
    """Non-negative coefficients of the sum of terms nearest to the seconds; each row has the terms of a sample."""
    import numpy as np

    terms, values = np.array(rows, dtype=np.float64), np.array(seconds)
    found = _least_squares(terms / values[:, None], values / values)
    for _ in range(passes - 1):
        scale = terms @ found
        found = _least_squares(terms / scale[:, None], values / scale)
    return found.tolist()


def _least_squares(terms: "np.ndarray", values: "np.ndarray") -> "np.ndarray":
    """Non-negative least squares, by trying every choice of terms."""
    import numpy as np

    size = terms.shape[1]
    best, error = np.zeros(size), np.inf
    for chosen in (list(some) for count in range(1, size + 1) for some in combinations(range(size), count)):
        found = np.linalg.lstsq(terms[:, chosen], values, rcond=None)[0]
        missed = float(np.sum((terms[:, chosen] @ found - values) ** 2))
        if (found >= 0).all() and missed < error:
            best, error = np.zeros(size), missed
            best[chosen] = found
    return best
