"""Makes the requests of one engine: numbers, seeds, and a sequence for each answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..solution_types import SamplingParams, ServingPackage, StructuredOutputsParams
from .backends.grammar import Grammars
from .engine_request import EngineRequest


class RequestFactory:
    """Numbers requests and their sequences as they come.

    Args:
        names: the module `serving` of a solution.
        tokenizer: of the model.
        vocab_size: token ids are below it.
        max_model_len: tokens of a prompt and its answer.
        pool_tokens: tokens that all KV blocks together hold.
        seed: of the requests that have none.
    """

    def __init__(
        self,
        names: ServingPackage,
        tokenizer: Any,
        *,
        vocab_size: int,
        max_model_len: int,
        pool_tokens: int,
        seed: int,
    ):
        self.names, self.tokenizer, self.seed = names, tokenizer, seed
        self.vocab_size, self.max_model_len, self.pool_tokens = vocab_size, max_model_len, pool_tokens
        self.grammars = Grammars(tokenizer, vocab_size)
        self._num_requests = self._num_sequences = 0

    def request(
        self,
        prompt: str | None,
        ids: Sequence[int],
        sampling: SamplingParams,
        error: str | None,
        priority: str,
    ) -> EngineRequest:
        """See `LLMEngine.request`."""
        number, self._num_requests = self._num_requests, self._num_requests + 1
        if sampling.seed is None:
            sampling = replace(sampling, seed=request_seed(self.seed, number))
        made = EngineRequest(str(number), prompt, list(ids), sampling, self.tokenizer, error)
        for index in range(sampling.n if error is None else 0):
            own = replace(sampling, n=1, sample_index=sampling.sample_index + index)
            if index:  # the prompt is the same for all answers
                own = replace(own, prompt_logprobs=None)
            made.sequences.append(self._sequence(made.prompt_token_ids, own, priority))
        self._check(made.sequences)
        if sampling.structured_outputs is not None:
            self._constrain(made.sequences, sampling.structured_outputs)
        return made

    def _sequence(self, ids: list[int], sampling: SamplingParams, priority: str) -> Any:
        number, self._num_sequences = self._num_sequences, self._num_sequences + 1
        limit = {"sampling": sampling, "max_seq_len": self.max_model_len, "priority": priority}
        return self.names.Sequence(ids, self.tokenizer, request_id=number, **limit)

    def _check(self, sequences: Sequence[Any]) -> None:
        """Ends answers that can never be served, with the reason. All have one prompt, so the first is checked."""
        for sequence in sequences[:1]:
            sequence.check(self.vocab_size, self.max_model_len, self.pool_tokens)
        for sequence in sequences[1:]:
            sequence.max_seq_len = sequences[0].max_seq_len
            if sequences[0].error is not None:
                sequence.fail(sequences[0].error)

    def _constrain(self, sequences: Sequence[Any], wanted: StructuredOutputsParams) -> None:
        """Gives each answer a grammar, or ends it with the reason why there is none."""
        try:
            for sequence in sequences:
                sequence.grammar = self.grammars.grammar(wanted)
        except ValueError as error:
            for sequence in sequences:
                sequence.fail(str(error))


def request_seed(seed: int, number: int) -> int:
    """The seed of a request that does not have one."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
