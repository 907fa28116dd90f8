"""Makes the requests of one engine: numbers, seeds, and a sequence for each answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .engine_request import EngineRequest


class RequestFactory:
    """Numbers requests and their sequences as they come.

    Args:
        names: the module `serving` of a solution.
        tokenizer: of the model.
        max_model_len: tokens of a prompt and its answer.
        seed: of the requests that have none.
    """

    def __init__(self, names: Any, tokenizer: Any, max_model_len: int, seed: int):
        self.names, self.tokenizer, self.max_model_len, self.seed = names, tokenizer, max_model_len, seed
        self._num_requests = self._num_sequences = 0

    def request(
        self, prompt: str | None, ids: Sequence[int], sampling: Any, error: str | None, priority: str
    ) -> EngineRequest:
        """See `LLMEngine.request`."""
        number, self._num_requests = self._num_requests, self._num_requests + 1
        if sampling.seed is None:
            sampling = replace(sampling, seed=request_seed(self.seed, number))
        made = EngineRequest(str(number), prompt, list(ids), sampling, self.tokenizer, error)
        for index in range(sampling.n if error is None else 0):
            own = replace(sampling, n=1, sample_index=sampling.sample_index + index)
            leader = made.sequences[0] if made.sequences else None
            made.sequences.append(self._sequence(made.prompt_token_ids, own, priority, leader))
        return made

    def _sequence(self, ids: list[int], sampling: Any, priority: str, leader: Any) -> Any:
        number, self._num_sequences = self._num_sequences, self._num_sequences + 1
        limit = {"sampling": sampling, "max_seq_len": self.max_model_len, "priority": priority}
        return self.names.Sequence(ids, self.tokenizer, request_id=number, **limit, leader=leader)


def request_seed(seed: int, number: int) -> int:
    """The seed of a request that does not have one."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
