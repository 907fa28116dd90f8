"""Prompts of `LLM.generate` as objects, with vLLM's names."""

from collections.abc import Sequence
from typing import TypedDict


class TextPrompt(TypedDict):
    """A text, encoded as it is."""

    prompt: str


class TokensPrompt(TypedDict):
    """Token ids, which the model reads as they are."""

    prompt_token_ids: Sequence[int]
