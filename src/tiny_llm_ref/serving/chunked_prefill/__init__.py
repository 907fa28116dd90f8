"""The scheduler of Week 2: a prompt in chunks, a place among the slots, one token for each slot.

Day 2.6 fills the request and the batch, Day 2.7 the rest: chunks and their sizes, the scheduler,
its metrics, and whose turn it is.
"""

from collections.abc import Sequence
from typing import Any

from tiny_llm_engine.chunked_prefill.serving_model import ServingModel
from tiny_llm_engine.request_life import Completion
from tiny_llm_engine.tokenizer import Tokenizer

from .batch_generate import batch_generate as _batch_generate
from .chunked_prefill import batch_generate_with_chunked_prefill
from .request import Request


def batch_generate(
    model: ServingModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | Request],
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int | None = None,
    **options: Any,
) -> list[Completion]:
    """Answers all prompts: with whole prompts (Day 2.6), or with chunks of `prefill_step` tokens (Day 2.7). Given.

    Args:
        model, tokenizer, prompts, max_seq_len, batch_size: see `batch_generate.batch_generate`.
        prefill_step: maximum number of tokens of a chunk; None computes whole prompts.
        options: clock and on_event, see `Batch`.
    """
    sizes = {"batch_size": batch_size, "max_seq_len": max_seq_len}
    if prefill_step is None:
        return _batch_generate(model, tokenizer, prompts, **sizes, **options)
    sizes["prefill_step"] = prefill_step
    return batch_generate_with_chunked_prefill(model, tokenizer, prompts, **sizes, **options)
