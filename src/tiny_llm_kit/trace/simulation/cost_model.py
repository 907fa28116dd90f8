"""Cost of a model's step as two lines: one for the chunks of a prompt, one for decode steps.

seconds = a + b·tokens + c·pairs. A pair is a token of the step and one that it sees, itself included. So a whole prompt
and its chunks have the same pairs, and differ in the fixed cost per step.

The measured lines are those of the shipped model on one machine. The widget of Week 2 Day 7, `pdm run see 2.7` and
`pdm run timeline --simulate` all read them from the same sealed file; `pdm run book measure` measures them again.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...repo import BOOK
from ..provenance import is_sealed
from ..trace import Trace

if TYPE_CHECKING:
    import numpy as np

MEASURED = BOOK / "src" / "widgets" / "chunked-prefill-cost.json"
Sample = tuple[int, float, float]  # tokens, pairs, seconds


@dataclass(frozen=True)
class Cost:
    """A cost line: seconds = a + b·tokens + c·pairs.

    Args:
        a: seconds of the step itself.
        b: seconds of each token.
        c: seconds of each pair.
    """

    a: float
    b: float
    c: float

    def seconds(self, tokens: int, pairs: float = 0) -> float:
        return self.a + self.b * tokens + self.c * pairs


@dataclass(frozen=True)
class Costs:
    """The cost lines of chunks and of decode steps.

    Args:
        prefill: of a chunk.
        decode: of a step of the batch; its tokens are the running requests.
    """

    prefill: Cost
    decode: Cost


# A unit of time for each token of a prompt, and for each decode step: latencies that can be worked out by hand.
UNITS = Costs(prefill=Cost(0, 1, 0), decode=Cost(1, 0, 0))


def pairs(tokens: int, offset: int) -> int:
    """Number of pairs of `tokens` tokens after `offset` others.

    Each token sees the `offset` tokens, those before it in the step, and itself.
    """
    return tokens * offset + tokens * (tokens + 1) // 2


def sealed(file: Path = MEASURED) -> dict[str, Any]:
    """The measurement, with all its samples.

    Raises:
        RuntimeError: the file was changed after it was sealed.
    """
    measured = json.loads(file.read_text(encoding="utf-8"))
    if not is_sealed(measured):
        raise RuntimeError(f"{file.name} was changed after it was sealed: `pdm run book measure`")
    return measured


def measured_costs() -> Costs:
    """The measured lines."""
    lines = sealed()
    return Costs(**{kind: Cost(*(lines[kind][term] for term in "abc")) for kind in ("prefill", "decode")})


def fit(traces: Iterable[Trace]) -> Costs:
    """The lines through all steps of the traces."""
    chunks, decodes = [], []
    for trace in traces:
        steps: dict[float, list] = {}
        for span in trace.spans:
            if span.kind == "chunk":
                chunks.append((span.tokens, pairs(span.tokens, span.context), span.seconds))
            elif span.kind == "decode":  # each of its requests has a span
                steps.setdefault(span.start, []).append(span)
        decodes += [(len(spans), sum(s.context for s in spans), spans[0].seconds) for spans in steps.values()]
    return Costs(line(chunks), line(decodes))


def line(samples: Sequence[Sample], passes: int = 3) -> Cost:
    """The line that is nearest to the samples in relative terms, among those without a negative cost.

    Each sample counts by its relative error: a step of a second weighs no more than one of 10 ms.

    Args:
        samples: steps.
        passes: the first one takes shares of the samples, which favours lines that lie too low where samples are
            noisy; every further one takes shares of the line before. Medians need no second one.
    """
    import numpy as np

    tokens, seen, seconds = np.array(samples, dtype=np.float64).T
    terms = np.stack([np.ones_like(tokens), tokens, seen], axis=1)
    return Cost(*nearest_sum(terms, seconds, passes))


def nearest_sum(terms: "np.ndarray", seconds: "np.ndarray", passes: int) -> list[float]:
    """Non-negative coefficients of the sum of terms nearest to the seconds, in relative terms.

    Args:
        terms: (samples, terms).
        seconds: (samples,).
        passes: see `line`.
    """
    found = _least_squares(terms / seconds[:, None], seconds / seconds)
    for _ in range(passes - 1):
        scale = terms @ found
        found = _least_squares(terms / scale[:, None], seconds / scale)
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
