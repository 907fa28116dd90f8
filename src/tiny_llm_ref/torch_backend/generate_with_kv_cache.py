"""Text generation with a KV cache: the prompt is computed once, then each new token alone (Week 2)."""

from collections.abc import Callable, Sequence

import torch

from tiny_llm_engine.tokenizer import Tokenizer

from .generate import Sampler, prompt_ids, simple_generate
from .qwen3_week2 import Qwen3ModelWeek2


def simple_generate_with_kv_cache(
    model: Qwen3ModelWeek2,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 256,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """Continues a prompt until the model ends the text, computing every token once.

    Args:
        model: with `create_kv_cache` and a call that takes an offset and the caches.
        tokenizer, prompt, sampler, max_tokens, on_text: see `simple_generate`.

    Returns:
        The new text, as `simple_generate` returns it.

    Raises:
        ValueError: the prompt has no token, or `max_tokens` is not positive.
    """
    tokens = prompt_ids(tokenizer, prompt)
    # TASK 2.1.7: Day 1.6's loop passes all tokens each time; give the model only those that are not in the caches yet.
    # Release the caches on every exit: an end token, the limit, an exception, Ctrl-C.
    cache = model.create_kv_cache(max_seq_len=len(tokens) + max_tokens)

    def new_tokens_only(inputs: torch.Tensor) -> torch.Tensor:
        offset = cache[0].offset
        return model(inputs[:, offset:], offset, cache, logits_to_keep=1)

    try:
        return simple_generate(
            new_tokens_only, tokenizer, tokens, sampler, max_tokens=max_tokens, on_text=on_text
        )
    finally:
        for layer_cache in cache:
            layer_cache.release()
