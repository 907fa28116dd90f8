"""A prompt in the engine: one sequence per answer, and the result of each."""

from dataclasses import dataclass, field
from typing import Any

from ..solution_types import AnswerSequence, Event, SamplingParams
from .outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput


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

    def on_event(self, event: Event) -> None:
        """Records the time of an event of one of its sequences."""
        if event.kind == "token":
            self.metrics.add_token(event.time)
        elif event.kind == "finish":
            self.metrics.finished_time = event.time
        elif event.kind == "preempt":
            self.metrics.num_preemptions += 1

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
        found = {**sampled.top_logprobs, sampled.token: sampled.logprob}
        return {token: Logprob(value, self.tokenizer.text_of(token)) for token, value in found.items()}
