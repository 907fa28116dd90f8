"""The requests of one engine: a prompt with one sequence per answer, their results, and what makes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from .events import RequestMetrics
from .outputs import CompletionOutput, Logprob, RequestOutput
from .solutions.solution_types import AnswerSequence, SamplingParams, ServingPackage


@dataclass
class EngineRequest:
    """A prompt and its `n` sequences.

    Args:
        request_id: its number in the engine's life.
        prompt: the text, if it was one.
        prompt_token_ids: what the model reads.
        sampling: of all its sequences, but for their `sample_index`.
        tokenizer: decodes the tokens beside log-probabilities.
        error: why there are no sequences.
        sequences: of the solution, one for each answer.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    sampling: SamplingParams
    tokenizer: Any
    error: str | None = None
    sequences: list[Any] = field(default_factory=list)
    metrics: RequestMetrics = field(default_factory=lambda: RequestMetrics(0.0))

    @property
    def refusal(self) -> str | None:
        """Why it can never be served, before it has begun; None if it can."""
        return self.error if self.error is not None or not self.sequences else self.sequences[0].error

    @property
    def is_done(self) -> bool:
        return all(sequence.is_done for sequence in self.sequences)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all its answers so far."""
        return sum(len(sequence.tokens) for sequence in self.sequences)

    def abort(self) -> None:
        """Ends the sequences that have not ended."""
        for sequence in self.sequences:
            sequence.abort()

    def output(self) -> RequestOutput:
        """The result; every sequence has ended."""
        cached = self.sequences[0].num_cached if self.sequences else 0
        answers = [self._answer(index, sequence) for index, sequence in enumerate(self.sequences)]
        if self.error is not None:
            answers = [CompletionOutput(0, "", [], "error", error=self.error)]
        asked = self._prompt_logprobs() if self.sequences else None
        return RequestOutput(
            self.request_id, self.prompt, self.prompt_token_ids, answers, self.metrics, cached, asked
        )

    def _prompt_logprobs(self) -> list[dict[int, Logprob] | None] | None:
        """Those of the prompt's tokens; None if nobody asked, or the request ended before they were computed."""
        found = self.sequences[0].prompt_sampled
        if self.sampling.prompt_logprobs is None or len(found) < len(self.prompt_token_ids) - 1:
            return None
        rest = [self._logprobs(found[position]) for position in range(1, len(self.prompt_token_ids))]
        return [None, *rest]

    def _answer(self, index: int, sequence: AnswerSequence) -> CompletionOutput:
        wants = self.sampling.logprobs is not None
        logprobs = (
            [self._logprobs(sampled) for sampled in sequence.sampled[: len(sequence.tokens)]]
            if wants
            else None
        )
        return CompletionOutput(
            index,
            sequence.text,
            list(sequence.tokens),
            sequence.finish_reason or "unfinished",
            logprobs,
            sequence.error,
            sequence.stop_reason,
        )

    def _logprobs(self, sampled: Any) -> dict[int, Logprob]:
        """The most probable tokens first, and the one drawn if it is not among them."""
        logprobs = {**sampled.top_logprobs, sampled.token: sampled.logprob}
        return {token: Logprob(value, self.tokenizer.text_of(token)) for token, value in logprobs.items()}


class RequestFactory:
    """Numbers requests and their sequences as they come.

    Args:
        names: the module `serving` of a solution.
        vocab_size: token ids are below it.
        max_model_len: tokens of a prompt and its answer.
        pool_tokens: tokens that all KV blocks together hold.
        seed: the seed of requests that bring none of their own.
        on_request: see `LLMEngine`.
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
        on_request: Mapping[str, Callable[[Any], object]] = MappingProxyType({}),
    ):
        self.names, self.tokenizer, self.seed = names, tokenizer, seed
        self.vocab_size, self.max_model_len, self.pool_tokens = vocab_size, max_model_len, pool_tokens
        self.on_request = on_request
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
        request = EngineRequest(str(number), prompt, list(ids), sampling, self.tokenizer, error)
        for index in range(sampling.n if error is None else 0):
            of_answer = replace(sampling, n=1, sample_index=sampling.sample_index + index)
            if index:  # the prompt is the same for all answers
                of_answer = replace(of_answer, prompt_logprobs=None, extra_args=None)
            request.sequences.append(self._sequence(request.prompt_token_ids, of_answer, priority))
        self._check(request.sequences)
        for name, hook in self.on_request.items():
            if getattr(sampling, name) is not None:
                for sequence in request.sequences:
                    hook(sequence)
        return request

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


def request_seed(seed: int, number: int) -> int:
    """The seed of a request that does not have one."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
