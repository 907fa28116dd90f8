"""Prompts and results of `LLM`, with vLLM's names."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from .events import RequestMetrics


class TextPrompt(TypedDict):
    """A text, encoded as it is."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, which the model reads as they are."""

    prompt_token_ids: Sequence[int]


@dataclass(frozen=True)
class Logprob:
    """The log-probability of one token, of the model's own softmax: no temperature, no filter.

    Args:
        logprob: natural logarithm.
        decoded_token: its text, also that of a special token; "�" if it isn't a whole character.
    """

    logprob: float
    decoded_token: str


@dataclass(frozen=True)
class CompletionOutput:
    """One answer to a prompt.

    Args:
        index: which of the `n` answers.
        text: without the prompt and without a stop string.
        token_ids: without the end token that stopped the answer.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        logprobs: for each token, by id: `SamplingParams.logprobs` of the most probable tokens and the one drawn; None
            if they were not asked for.
        error: with "error", one line that says why.
        stop_reason: the stop string, or the id of `stop_token_ids`, that ended it; None otherwise.
    """

    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str
    logprobs: list[dict[int, Logprob]] | None = None
    error: str | None = None
    stop_reason: int | str | None = None

    @property
    def cumulative_logprob(self) -> float | None:
        """The log-probability of the whole answer; None without `logprobs`."""
        if self.logprobs is None:
            return None
        return sum(best[token].logprob for token, best in zip(self.token_ids, self.logprobs, strict=True))


@dataclass(frozen=True)
class RequestOutput:
    """The result of one prompt.

    Args:
        request_id: its number in the engine's life, as text.
        prompt: the text; None for a prompt of token ids.
        prompt_token_ids: what the model read.
        outputs: the answers, `n` of them.
        metrics: when they came.
        num_cached_tokens: of the prompt, taken from the prefix cache by the first answer.
        prompt_logprobs: for each token of the prompt, by id: `SamplingParams.prompt_logprobs` of the most probable
            tokens and its own; None for the first token, and for all if they were not asked for.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    finished: bool = field(default=True, init=False)  # there is no streaming here

    @property
    def error(self) -> str | None:
        """Why an answer failed, in one line; None if all came to their end."""
        return next((answer.error for answer in self.outputs if answer.error is not None), None)
