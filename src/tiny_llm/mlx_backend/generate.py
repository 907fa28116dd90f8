"""Text generation without a cache: the whole text is computed again for every token (Week 1)."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_engine.tokenizer import Tokenizer

Model = Callable[[mx.array], mx.array]
Sampler = Callable[[mx.array], mx.array]


def next_token(model: Model, tokens: list[int], sampler: Sampler | None = None) -> int:
    """Chooses the id of the token that follows `tokens`.

    Args:
        model: ids (1, L) -> logits (1, L, V).
        tokens: all L tokens so far, of the prompt and of the answer.
        sampler: logits (1, V) -> ids (1,); None takes the most probable token.

    Returns:
        A Python integer.
    """
    # TASK 1.6.1: run the model on all tokens, keep the logits of the last one, choose.
    raise NotImplementedError("week 1 day 6 task 1: next_token")


def prompt_ids(tokenizer: Tokenizer, prompt: str | Sequence[int]) -> list[int]:
    """The ids of a prompt that is given as text or as ids. Given."""
    return tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)


def simple_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    *,
    max_tokens: int = 256,
    on_text: Callable[[str], None] | None = None,
) -> str:
    """Continues a prompt until the model ends the text, with a full run per token.

    Args:
        model: ids (1, L) -> logits (1, L, V).
        tokenizer: `encode(text)` -> ids, `eos_token_ids`, and `detokenizer()`, which turns a stream of ids into pieces:
            `add(id)` -> the text that this id completes, `finish()` -> what is left at the end.
        prompt: plain text, encoded as it is, or token ids. A chat template must be applied by the caller.
        sampler: see `next_token`.
        max_tokens: maximum number of new tokens.
        on_text: called with the piece of each token as soon as it is known. A piece may be empty, but never ends inside
            a character. One more call delivers what `finish` returns, if it is not empty.

    Returns:
        The new text, all pieces joined, without the prompt and without the end token.

    Raises:
        ValueError: the prompt has no token, or `max_tokens` is not positive.
    """
    tokens = prompt_ids(tokenizer, prompt)
    if not tokens:
        raise ValueError("the prompt is empty: a model needs at least one token to continue")
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}: ask for at least 1 token")
    # TASK 1.6.2: choose, stop at any end token or at the limit, append, deliver the piece at once.
    # The detokenizer holds back the bytes of an incomplete character; decoding each id alone would break it.
    raise NotImplementedError("week 1 day 6 task 2: simple_generate")
