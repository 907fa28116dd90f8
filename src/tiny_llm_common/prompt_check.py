"""What no model can read: the reasons to refuse a prompt before anything is computed. Given."""

from collections.abc import Sequence
from typing import Any


def plain_number(value: Any) -> Any:
    """A scalar of NumPy, PyTorch or MLX as Python's number or bool; everything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def plain_ids(prompt: Any) -> list[Any]:
    """A prompt as a list. What is no token id stays in it, for `prompt_error`.

    Args:
        prompt: token ids, in a list or an array.
    """
    ids = list(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    # A long prompt of Python's numbers costs no Python code per token.
    return ids if set(map(type, ids)) == {int} else [plain_number(token) for token in ids]


def prompt_error(
    tokens: Sequence[int], vocab_size: int, max_seq_len: int, limit: str = "max_seq_len"
) -> str | None:
    """Why a prompt cannot be served, in one line; None when it can.

    Args:
        tokens: its ids.
        vocab_size: token ids are below it.
        max_seq_len: tokens of prompt and answer together, at most.
        limit: the caller's name of `max_seq_len`, for the message.
    """
    if not tokens:
        return "the prompt is empty: give the model at least one token to continue"
    strange = [] if _all_known(tokens, vocab_size) else _strange(tokens, vocab_size)
    if strange:
        return f"token id {strange[0]} is not one of 0 to {vocab_size - 1}: the prompt is not of this model"
    if len(tokens) >= max_seq_len:
        return (
            f"the prompt has {len(tokens)} tokens, but {limit} is {max_seq_len} with the answer: shorten it"
        )
    return None


def _all_known(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether all ids are in the vocabulary, for prompts of thousands of them: no Python code runs per token."""
    return set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size


def _strange(tokens: Sequence[int], vocab_size: int) -> list[int]:
    return [t for t in tokens if type(t) is not int or not 0 <= t < vocab_size]
