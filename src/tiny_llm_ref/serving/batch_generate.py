"""Continuous batching: requests of any length share the steps of one batch; a free slot is filled at the next step."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .batch import Batch
from .events import Listener
from .model import ServingModel
from .request import Request


@dataclass(frozen=True)
class Completion:
    """What became of one prompt.

    Args:
        prompt_idx: its place in the list of prompts.
        text: the answer, without the prompt.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        error: with "error", one line that says why.
    """

    prompt_idx: int
    text: str
    finish_reason: str
    error: str | None = None


def batch_generate(
    model: ServingModel,
    tokenizer: Any,
    prompts: Sequence[str | Request],
    max_seq_len: int = 512,
    batch_size: int = 5,
    *,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Listener = lambda event: None,
) -> list[Completion]:
    """Answers all prompts, at most `batch_size` of them at a time (Yu et al., 2022, iteration-level scheduling).

    Args:
        model: what runs the steps.
        tokenizer: as `Request` takes it.
        prompts: texts, or requests with limits of their own.
        max_seq_len: tokens of prompt and answer together, at most; a longer prompt is an error of that prompt alone.
        batch_size, clock, on_event: see `Batch`.

    Returns:
        One completion a prompt, in their order.

    Raises:
        Whatever the model or `on_event` raises, after every request has ended and every cache was released.
    """
    batch = Batch(model, batch_size, max_seq_len, clock=clock, on_event=on_event)
    requests = [
        _request(model, tokenizer, prompt, index, max_seq_len) for index, prompt in enumerate(prompts)
    ]
    # TASK 2.6.9: until nothing waits and nothing runs: a waiting request into a free slot, then a step for all.
    # The caches are released on every way out, and requests that did not come to their end are aborted.
    waiting = deque(requests)
    try:
        while waiting or batch.running:
            if waiting and batch.free_slot is not None:
                batch.admit(waiting.popleft())
            batch.remove_ended()
            if batch.running:
                batch.decode()
            batch.remove_ended()
    finally:
        batch.close()
        for request in requests:
            request.abort()
    return [Completion(i, r.text, r.finish_reason, r.error) for i, r in enumerate(requests)]


# GIVEN: it only fills in arguments.
def _request(
    model: ServingModel, tokenizer: Any, prompt: str | Request, index: int, max_seq_len: int
) -> Request:
    """The prompt as a request; one that is a request already must fit the slots."""
    if not isinstance(prompt, Request):
        return Request(model, tokenizer, prompt, prompt_idx=index, max_seq_len=max_seq_len)
    prompt.limit(max_seq_len)
    return prompt
