"""Top-p of Day 1.7 without sorting a whole vocabulary: on the few tokens that hold nearly all of the probability."""

from typing import Any

import numpy as np

from ..solutions.backend import Backend
from ..solutions.solution_types import Array

CANDIDATES = 1024  # tokens; most texts are drawn from far fewer


class CandidateFilter:
    """Filters rows of logits by a solution's `keep_top_k` and `keep_top_p`, with equal results. For a CPU.

    It reads numbers from the device to see which rows their candidates suffice for; an accelerator would have to wait
    for that, and sorts quickly.

    Args:
        filters: has `keep_top_k` and `keep_top_p`: the solution's module `sampler`.
        backend_module: `backend_mlx` or `backend_torch`.
    """

    def __init__(self, filters: Any, backend_module: Backend):
        self.filters, self.backend_module = filters, backend_module

    def __call__(self, logits: Array, top_k: int | None, top_p: float | None) -> Array:
        """(R, V) float32: -inf for tokens that were dropped. None turns a filter off."""
        if top_k is not None:
            logits = self.filters.keep_top_k(logits, top_k)
        return logits if top_p is None else self._keep_top_p(logits, top_p)

    def _keep_top_p(self, logits: Array, top_p: float) -> Array:
        if logits.shape[1] <= CANDIDATES:
            return self.filters.keep_top_p(logits, top_p)
        ids, values, share = self.backend_module.most_probable(logits, CANDIDATES)
        rows = []
        for row, part in enumerate(self.backend_module.to_numpy(share).tolist()):
            here = slice(row, row + 1)
            # Renormalised over the candidates, every probability is larger by 1 / part.
            kept = self.filters.keep_top_p(values[here], top_p / part) if part > top_p else None
            if kept is None or not self._is_inside(kept, values[here]):
                rows.append(self.filters.keep_top_p(logits[here], top_p))
            else:
                rows.append(self.backend_module.spread(kept, ids[here], logits.shape[1]))
        return self.backend_module.concatenate(rows, 0)

    def _is_inside(self, kept: Array, values: Array) -> bool:
        """Whether the nucleus ends before the last candidate, which other tokens may equal."""
        kept, values = self.backend_module.to_numpy(kept), self.backend_module.to_numpy(values)
        return bool(kept[np.isfinite(kept)].min() > values.min())
