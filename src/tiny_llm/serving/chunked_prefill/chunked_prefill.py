"""Answers to a list of prompts by chunked prefill."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from tiny_llm_engine.chunked_prefill.serving_model import ServingModel
from tiny_llm_engine.events import Listener
from tiny_llm_engine.request_life import Completion
from tiny_llm_engine.tokenizer import Tokenizer

from .chunked_prefill_scheduler import ChunkedPrefillScheduler
from .request import Request, as_request


def batch_generate_with_chunked_prefill(
    model: ServingModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Request],
    batch_size: int = 5,
    prefill_step: int = 128,
    max_seq_len: int = 512,
    *,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Listener | None = None,
    **options: Any,
) -> list[Completion]:
    """`batch_generate` with at most one chunk of a prompt between two tokens of a running request.

    Args:
        model: runs the steps.
        tokenizer: see `Request`.
        prompts: texts, or requests with limits of their own.
        batch_size, prefill_step, max_seq_len, clock, on_event, options: see `ChunkedPrefillScheduler`; a step longer
            than every prompt computes whole prompts.

    Returns:
        One completion per prompt, in the order of the prompts.

    Raises:
        ValueError: a number is out of range.
        Whatever the model or `on_event` raises, after every request has ended and every cache was released.
    """
    requests = [
        as_request(model, tokenizer, prompt, index, max_seq_len) for index, prompt in enumerate(prompts)
    ]
    scheduler = ChunkedPrefillScheduler(
        model, batch_size, prefill_step, max_seq_len, clock=clock, on_event=on_event, **options
    )
    # TASK 2.7.3: add all requests, then run steps while work remains.
    # On every exit, release the caches and abort the requests that have not ended.
    raise NotImplementedError("week 2 day 7 task 3: batch_generate_with_chunked_prefill")
