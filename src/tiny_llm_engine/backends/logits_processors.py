"""Changes of logits that requests ask for, before a token is chosen: grammar, bias, bans and penalties.

A row has few columns: the tokens that its request names or has used. So no loop goes over the vocabulary, and nothing
of its size is computed on the host but the mask of a grammar.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from ..solutions.backend import Backend
from ..solutions.solution_types import AnswerSequence, Array


class LogitsProcessors:
    """Changes rows of logits as vLLM does, in its order: grammar, `min_tokens` and `logit_bias`, penalties.

    All of it follows from the tokens of a request, so chunks, preemption, prefix hits and other rows change nothing.
    Shapes depend on the rows of the bucket and on the number of columns, which is padded to a power of two.

    Args:
        backend_module: `backend_mlx` or `backend_torch`.
        device: where the logits are.
    """

    def __init__(self, backend_module: Backend, device: str = "cpu"):
        self.backend_module, self.device = backend_module, device
        self._prompts: WeakKeyDictionary[AnswerSequence, np.ndarray] = WeakKeyDictionary()  # sorted ids

    def __call__(self, logits: Array, requests: Sequence[AnswerSequence], positions: Sequence[int]) -> Array:
        """The changed logits.

        Args:
            logits: (R, V) float32.
            requests: of the first rows; rows after those are padding, and stay as they are.
            positions: of each new token. They count the tokens of an answer also where the last is not known yet.
        """
        logits = self._masked(logits, requests)
        changes = [self._changes(*row) for row in zip(requests, positions, strict=False)]
        most = max(len(ids) for ids, _ in changes)
        if most == 0:
            return logits
        columns, rows = 1 << (most - 1).bit_length(), logits.shape[0]
        ids, numbers = np.zeros((rows, columns), np.int64), np.zeros((3, rows, columns), np.float32)
        numbers[1] = 1
        for row, (mine, values) in enumerate(changes):
            if len(mine):  # the first change fills the row: the same number written twice changes nothing
                ids[row], numbers[:, row] = mine[0], values[:, :1]
                ids[row, : len(mine)], numbers[:, row, : len(mine)] = mine, values
        return self._applied(logits, ids, numbers)

    def _applied(self, logits: Array, ids: np.ndarray, numbers: np.ndarray) -> Array:
        where, to_array = self.backend_module.where, self.backend_module.to_array
        columns, added = to_array(ids, device=self.device), to_array(numbers, device=self.device)
        bias, factor, penalty = added[0], added[1], added[2]
        values = self.backend_module.take(logits, columns) + bias
        values = where(values > 0, values / factor, values * factor) - penalty
        return self.backend_module.put(logits, columns, values)

    def _changes(self, request: AnswerSequence, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Sorted ids (C,), and for each its bias, its factor and its penalty, (3, C)."""
        params, nothing = request.sampling, np.empty(0, np.int64)
        biases = dict(params.logit_bias or {})
        if position - len(request.prompt_tokens) < params.min_tokens:
            biases.update(dict.fromkeys(request.eos_token_ids, -np.inf))
        repeats = params.repetition_penalty != 1
        counts_matter = repeats or params.presence_penalty or params.frequency_penalty
        used, counts = np.unique(request.tokens if counts_matter else nothing, return_counts=True)
        seen = np.union1d(self._prompt_ids(request), used) if repeats else nothing
        biased = np.fromiter(biases, np.int64, len(biases))
        ids = np.unique(np.concatenate([biased, used, seen]).astype(np.int64))
        values = np.zeros((3, len(ids)), np.float32)
        values[0, np.searchsorted(ids, biased)] = list(biases.values())
        values[1] = 1
        values[1, np.searchsorted(ids, seen)] = params.repetition_penalty
        values[2, np.searchsorted(ids, used)] = params.presence_penalty + params.frequency_penalty * counts
        return ids, values

    def _prompt_ids(self, request: AnswerSequence) -> np.ndarray:
        """The ids of a prompt, each once: it does not change, so they are sorted once."""
        sequence = getattr(request, "sequence", request)  # a row after drafts has a stand-in for its request
        if sequence not in self._prompts:
            self._prompts[sequence] = np.unique(request.prompt_tokens)
        return self._prompts[sequence]

    def _masked(self, logits: Array, requests: Sequence[AnswerSequence]) -> Array:
        """-inf for each token with which the text would leave the grammar of its request."""
        if all(request.grammar is None for request in requests):
            return logits
        allowed = np.ones(tuple(logits.shape), bool)
        for row, request in enumerate(requests):
            if request.grammar is not None:
                allowed[row] = request.grammar.allowed(request.tokens)
        mask = self.backend_module.to_array(allowed, device=self.device)
        return self.backend_module.where(mask, logits, -np.inf)
