"""The requests of the timeline: some that decode, and a long prompt that arrives among them with a short one behind.

The same requests are served by any scheduler, in any chunks, by a real model or by the simulated one.
"""

import string
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .recorder import Recorder
from .trace import WHOLE, Trace

SHORT_PROMPT, SHORT_ANSWER = 20, 8
ARRIVAL = 4  # the long prompt arrives when each running request has so many tokens
AFTERWARDS = 12  # tokens that they still have when its last chunk is done


@dataclass(frozen=True)
class Workload:
    """What arrives.

    Args:
        prompt_tokens: of the long prompt.
        decodes: requests that run when it arrives.
        prefill_step: tokens of a chunk, as agreed; the running requests outlive so many chunks of the long prompt.
    """

    prompt_tokens: int = 2048
    decodes: int = 4
    prefill_step: int = 128

    @property
    def long(self) -> int:
        """The number of the long prompt."""
        return self.decodes

    @property
    def late(self) -> int:
        """The number of the short prompt behind it."""
        return self.decodes + 1

    @property
    def names(self) -> dict[int, str]:
        letters = dict(enumerate(string.ascii_uppercase[: self.decodes]))
        return {**letters, self.long: "long", self.late: "late"}

    @property
    def answer_tokens(self) -> int:
        """Of a running request: one a step, also in the steps that wait for a chunk."""
        chunks = -(-self.prompt_tokens // self.prefill_step)
        return ARRIVAL + self.decodes + chunks + AFTERWARDS

    @property
    def max_seq_len(self) -> int:
        """Tokens of the longest request."""
        return max(self.prompt_tokens, SHORT_PROMPT + self.answer_tokens) + SHORT_ANSWER

    def requests(self, serving: ModuleType, model: Any, tokenizer: Any) -> list[Any]:
        """The running ones, the long one, the late one."""
        prompts = [SHORT_PROMPT] * self.decodes + [self.prompt_tokens, SHORT_PROMPT]
        answers = [self.answer_tokens] * self.decodes + [SHORT_ANSWER] * 2
        return [
            serving.Request(
                model,
                tokenizer,
                [(31 * index + 7 * place) % model.vocab_size for place in range(tokens)],
                prompt_idx=index,
                sampling=serving.SamplingParams(max_tokens=answer),
            )
            for index, (tokens, answer) in enumerate(zip(prompts, answers, strict=True))
        ]


class Endless:
    """A tokenizer of which no token ends a text: every answer has the length that was asked for.

    Args:
        tokenizer: the model's.
    """

    eos_token_ids = frozenset()

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


class NoEnd(Exception):
    """A scheduler that does not serve everybody to the end."""


def serve(
    workload: Workload,
    serving: ModuleType,
    model: Any,
    tokenizer: Any,
    chunk: int,
    clock: Callable[[], float] = time.perf_counter,
    provenance: dict[str, Any] | None = None,
) -> Trace:
    """Serves the requests by a solution's `ChunkedPrefillScheduler`, in chunks of this size.

    Raises:
        NoEnd: a request did not come to its end.
    """
    recorder = Recorder(workload.prefill_step, workload.names)
    scheduler = serving.ChunkedPrefillScheduler(
        model, workload.decodes + 2, chunk, workload.max_seq_len, clock=clock, on_event=recorder
    )
    requests = workload.requests(serving, model, Endless(tokenizer))
    steps, most = 0, sum(len(request.prompt_tokens) + request.max_new_tokens for request in requests)
    try:
        for _ in _arrivals(workload, scheduler, requests):
            scheduler.step()
            steps += 1
            if steps > most:
                raise NoEnd(f"the scheduler has work after {steps:,} steps, more than there are tokens")
    finally:
        scheduler.close()
    for request in requests:
        if request.finish_reason != "length":
            reason = request.error or request.finish_reason or "it never ended"
            tokens = f"{len(request.tokens)} of {request.max_new_tokens} tokens"
            raise NoEnd(f"request {workload.names[request.prompt_idx]} has {tokens}: {reason}")
    return recorder.trace(title(chunk), chunk, provenance)


def _arrivals(workload: Workload, scheduler: Any, requests: list[Any]) -> Iterator[None]:
    """Adds the requests when they arrive; yields before each step, until no work is left."""
    running, later = requests[: workload.decodes], requests[workload.decodes :]
    for request in running:
        scheduler.add(request)
    while later or scheduler.has_work_remaining():
        if later and all(len(request.tokens) >= ARRIVAL for request in running):
            for request in later:
                scheduler.add(request)
            later = []
        yield


def title(chunk: int) -> str:
    """How the prompts are computed."""
    return "whole prompts" if chunk >= WHOLE else f"chunks of {chunk}"
