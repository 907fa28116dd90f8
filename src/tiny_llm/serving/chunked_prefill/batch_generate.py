"""Continuous batching: requests share the steps of one batch, and a free slot is filled at the next step."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from tiny_llm_engine.chunked_prefill.serving_model import ServingModel
from tiny_llm_engine.events import Listener
from tiny_llm_engine.request_life import Completion
from tiny_llm_engine.tokenizer import Tokenizer

from .batch import Batch
from .request import Request, as_request


def batch_generate(
    model: ServingModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Request],
    max_seq_len: int = 512,
    batch_size: int = 5,
    *,
    clock: Callable[[], float] = time.perf_counter,
    on_event: Listener = lambda event: None,
) -> list[Completion]:
    """Answers all prompts, at most `batch_size` of them at a time (Yu et al., 2022, iteration-level scheduling).

    Every whole prompt is computed in a step of its own.

    Args:
        model: runs the steps.
        tokenizer: see `Request`.
        prompts: texts, or requests with limits of their own.
        max_seq_len: maximum number of tokens of prompt and answer together; a longer prompt fails alone.
        batch_size, clock, on_event: see `Batch`.

    Returns:
        One completion per prompt, in the order of the prompts.

    Raises:
        Whatever the model or `on_event` raises, after every request has ended and every cache was released.
    """
    batch = Batch(model, batch_size, max_seq_len, clock=clock, on_event=on_event)
    requests = [
        as_request(model, tokenizer, prompt, index, max_seq_len) for index, prompt in enumerate(prompts)
    ]
    # TASK 2.6.9: until nothing waits or runs: prefill a waiting request into a free slot, then run a step for all.
    # On every exit, release the caches and abort the requests that have not ended.
    raise NotImplementedError("week 2 day 6 task 9: batch_generate")
