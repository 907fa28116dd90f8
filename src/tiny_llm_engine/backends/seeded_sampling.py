"""Random draws that depend only on the request: its seed, the number of its answer, and the token's position.

The filters are those of Day 1.7. The draw is the Gumbel-max trick (Gumbel, 1954): adding Gumbel noise to the logits and
taking the largest draws a token with exactly its softmax probability. The noise comes from a counter-based generator,
Philox (Salmon et al., 2011), on the host. So it does not depend on the other rows of the batch, their order or the
device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..solutions.backend import Backend
from ..solutions.solution_types import AnswerSequence, Array, SamplingParams
from .candidate_filter import CandidateFilter
from .logits_processors import LogitsProcessors

Choice = tuple[
    int, float | None, dict[int, float] | None
]  # token, its log-probability, the most probable tokens


def gumbel_noise(seed: int, sample_index: int, position: int, count: int) -> np.ndarray:
    """`count` numbers of the standard Gumbel distribution, the same on every machine with the same NumPy.

    Args:
        sample_index: which of the request's answers.
        position: of the new token in its sequence, prompt included.
    """
    # The position is the counter's highest word: streams of two positions cannot meet.
    philox = np.random.Philox(key=[seed, sample_index], counter=[0, 0, 0, position])
    bits = np.random.Generator(philox).integers(0, 2**32, count, dtype=np.uint32)
    return -np.log(-np.log((bits + 0.5) / 2**32))  # the half keeps both ends finite


@dataclass(frozen=True)
class PendingDraws:
    """Tokens that the device draws, or has drawn.

    Args:
        ids: (R,) on the device.
        counts: for each row that is wanted, how many of the most probable tokens; None if no log-probability is.
        read: waits for the device; returns the ids (R,), or rows of `score_tokens` if any count is given.
    """

    ids: Array
    counts: Sequence[int | None]
    read: Callable[[], np.ndarray]

    def choices(self) -> list[Choice]:
        """One choice per entry of `counts`. The one place where the host waits."""
        rows = self.read()
        if rows.ndim == 1:
            return [(token, None, None) for token in rows.tolist()[: len(self.counts)]]
        # All rows at once: those of a prompt are many, and a thread of Python stops the others.
        values, best = np.split(rows[:, 1:], [rows.shape[1] // 2], axis=1)
        columns = rows[:, 0].astype(int).tolist(), values.tolist(), best.astype(int).tolist()
        return [*map(_choice, *columns, self.counts)]


class SeededSampler:
    """Chooses one token per row of logits, each row by its own parameters.

    Args:
        filters: has the solution's `keep_top_k` and `keep_top_p`: its module `sampler`.
        backend_module: `backend_mlx` or `backend_torch`.
        device: where the logits are.
        candidates: filters only the rows that ask for it, and sorts few of their tokens, on a CPU; None filters all
            rows, so that neither shapes nor the host depend on the numbers.
    """

    def __init__(
        self,
        filters: Any,
        backend_module: Backend,
        device: str = "cpu",
        candidates: CandidateFilter | None = None,
    ):
        self.filters, self.backend_module, self.device, self.candidates = (
            filters,
            backend_module,
            device,
            candidates,
        )
        self.processors = LogitsProcessors(backend_module, device)

    def __call__(self, *arguments: Any, **options: Any) -> list[Choice]:
        """The choices of `launch`, when the device has made them."""
        return self.launch(*arguments, **options).choices()

    def launch(
        self,
        logits: Array,
        sampling: Sequence[SamplingParams],
        positions: Sequence[int],
        requests: Sequence[AnswerSequence] = (),
    ) -> PendingDraws:
        """Begins one choice per entry of `sampling`; rows of logits after those are padding.

        At most one copy to the device, and one copy back, if no request changes its logits.

        Args:
            logits: (R, V), of any floating-point type.
            sampling: `SamplingParams` of each row; None is greedy, and a seed of None is 0.
            positions: the position of each new token in its text.
            requests: of each row, see `LogitsProcessors`; empty changes no logits. Log-probabilities stay the model's.
        """
        logits = self.backend_module.as_float32(logits)
        changed = self.processors(logits, requests, positions) if requests else logits
        ids = self.backend_module.argmax(self._perturbed(changed, sampling, positions))
        counts = [None if params is None else params.logprobs for params in sampling]
        if all(count is None for count in counts):
            return PendingDraws(ids, counts, self.backend_module.start_read(ids))
        return self._scored(logits, ids, counts)

    def score(self, logits: Array, tokens: Sequence[int], counts: Sequence[int]) -> PendingDraws:
        """Begins one choice per row of logits (R, V): a given token, with `counts` of the most probable ones."""
        ids = self.backend_module.to_array(tokens, device=self.device)
        return self._scored(self.backend_module.as_float32(logits), ids, counts)

    def _scored(self, logits: Array, ids: Array, counts: Sequence[int | None]) -> PendingDraws:
        most = min(max(count or 0 for count in counts), logits.shape[1])
        scored = self.backend_module.score_tokens(logits, ids, most)
        return PendingDraws(ids, counts, self.backend_module.start_read(scored))

    def _perturbed(
        self, logits: Array, sampling: Sequence[SamplingParams], positions: Sequence[int]
    ) -> Array:
        """The logits whose largest is drawn: temperature, min-p, top-k, top-p, noise.

        Greedy rows are unchanged.
        """
        drawn = {row: p for row, p in enumerate(sampling) if p is not None and p.temperature != 0}
        if not drawn:
            return logits
        V = logits.shape[1]
        keys = [key for key in dict.fromkeys(map(filter_key, drawn.values())) if key != (None, None)]
        # Noise, temperatures and each row's filters travel as columns of one array.
        host = np.zeros((logits.shape[0], V + 1 + len(keys)), np.float32)
        host[:, V] = 1
        for row, params in drawn.items():
            host[row, :V] = gumbel_noise(params.seed or 0, params.sample_index, positions[row], V)
            host[row, V] = params.temperature
            host[row, V + 1 :] = [filter_key(params) == key for key in keys]
        columns = self.backend_module.to_array(host, device=self.device)
        logits = logits / columns[:, V : V + 1]
        if any(params.min_p for params in drawn.values()):
            logits = self._keep_min_p(logits, drawn)
        for number, key in enumerate(keys, V + 1):
            if self.candidates is not None:
                rows = [row for row, params in drawn.items() if filter_key(params) == key]
                mine = self.backend_module.to_array(rows, device=self.device)
                logits[mine] = self.candidates(logits[mine], *key)
            else:
                mine = columns[:, number : number + 1] > 0
                logits = self.backend_module.where(mine, self._filtered(logits, *key), logits)
        return logits + columns[:, :V]

    def _keep_min_p(self, logits: Array, drawn: Mapping[int, SamplingParams]) -> Array:
        """-inf for tokens with less than `min_p` of the most probable one's probability."""
        shares = np.zeros((logits.shape[0], 1), np.float32)
        shares[list(drawn), 0] = [params.min_p for params in drawn.values()]
        with np.errstate(divide="ignore"):  # the logarithm of 0 keeps all
            logs = self.backend_module.to_array(np.log(shares), device=self.device)
        least = self.backend_module.largest(logits) + logs
        return self.backend_module.where(logits < least, -np.inf, logits)

    def _filtered(self, logits: Array, top_k: int | None, top_p: float | None) -> Array:
        """The logits after all filters, each run over all rows, so that its shape stays the same."""
        if top_k is not None:
            logits = self.filters.keep_top_k(logits, top_k)
        return logits if top_p is None else self.filters.keep_top_p(logits, top_p)


def filter_key(params: SamplingParams) -> tuple[int | None, float | None]:
    """top_k and top_p, each None where it is off."""
    return params.top_k or None, None if params.top_p == 1 else params.top_p


def _choice(token: int, values: Sequence[float], ids: Sequence[int], count: int | None) -> Choice:
    """From a row of `score_tokens`: the token; its log-probability and those of the most probable; the ids of these."""
    if count is None:
        return token, None, None
    own, *best = values
    return token, own, dict(zip(ids[:count], best[:count], strict=True))
