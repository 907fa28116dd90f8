"""The prompts of a request as token ids. They are counted and measured before anything is encoded."""

import json
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...model.chat_template import ChatTemplateError
from ...model.files import Json
from .errors import ApiError
from .schemas import Message
from .service_contract import ModelService

LOG = logging.getLogger("tiny_llm.server")
NO_NAMES: Json = {}
TURN = 16  # characters that a template adds to a message, about


def prompts_of(prompt: Any) -> list[Any]:
    """A list of prompts: one text, and one list of ids, is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    return [prompt] if isinstance(prompt[0], int) else prompt


def names_of(field: str, count: int) -> list[str]:
    """What errors call each of the prompts in a field."""
    return [field] if count == 1 else [f"{field}[{index}]" for index in range(count)]


async def prompt_ids(
    service: ModelService, prompts: list[Any], add_special_tokens: bool = True
) -> list[list[int]]:
    """Token ids of prompts that are texts; those that are ids already stay as they are.

    Args:
        add_special_tokens: whether a text may begin with the tokenizer's begin-of-text.

    Raises:
        ApiError: 400, a text cannot fit into the context.
    """
    if not isinstance(prompts[0], str):
        return prompts
    for name, text in zip(names_of("prompt", len(prompts)), prompts, strict=True):
        check_length(service, name, len(text))
    encode = service.model.tokenizer.encode
    if not add_special_tokens:
        encode = partial(encode, add_special_tokens=False)
    return await service.with_texts(sum(map(len, prompts)), lambda: [*map(encode, prompts)])


async def chat_ids(
    service: ModelService,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    names: Json = NO_NAMES,
) -> list[int]:
    """Token ids of a conversation; `names` are further variables of the chat template.

    Raises:
        ApiError: 400, it cannot fit into the context, or the model's template does not take it.
    """
    turns, tokenizer = [each.rendered() for each in messages], service.model.tokenizer
    length = sum(len(turn["content"]) for turn in turns)
    length += len(json.dumps(names)) if names and "tools" in tokenizer.chat_template else 0
    length += sum(len(json.dumps(turn["tool_calls"])) for turn in turns if "tool_calls" in turn)
    check_length(service, "messages", length)

    def encoded() -> list[int]:
        return tokenizer.encode(tokenizer.apply_chat_template(turns, add_generation_prompt, **names))

    try:
        return await service.with_texts(length + TURN * len(turns), encoded)
    except ChatTemplateError as error:
        LOG.warning("400: %s", error)
        raise ApiError(400, f"messages: {error.reason}", param="messages") from None


async def text_of(service: ModelService, tokens: Sequence[int]) -> str:
    """The text of token ids, with their special tokens.

    Raises:
        ApiError: 400, the tokenizer does not have one of them.
    """
    tokenizer = service.model.tokenizer
    if (largest := max(tokens, default=0)) >= service.model.vocab_size:
        raise ApiError(400, f"tokens: {largest} is not of this model", param="tokens")
    return await service.with_texts(len(tokens), lambda: tokenizer.decode(tokens, skip_special_tokens=False))


def check_length(service: ModelService, name: str, characters: int) -> None:
    """Refuse a text that cannot fit into the context, whatever its tokens are.

    Raises:
        ApiError: 400.
    """
    limit, longest = service.model.max_model_len, service.model.tokenizer.longest_token
    if characters > limit * longest:
        message = (
            f"{name} has {characters} characters: max_model_len is {limit} tokens of at most {longest} each"
        )
        raise ApiError(400, message, param=name.partition("[")[0])
