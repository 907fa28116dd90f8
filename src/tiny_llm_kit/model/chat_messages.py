"""Messages as OpenAI's API has them, for chat templates, whose contents are texts."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .files import Json

OTHER_PARTS = ("image_url", "input_audio", "audio_url", "video_url", "file", "refusal", "image_embeds")


def why_not_read(message: Json) -> str | None:
    """Why a message of OpenAI's API is not supported here, in one line; None for others."""
    role, content = message.get("role"), message.get("content")
    if role == "function":
        return 'the role function is not supported: use its newer form, "tool" with tool_call_id'
    if "content" not in message and not message.get("tool_calls"):
        return "content is missing: give a text"
    parts = (
        [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    other = next((kind for kind in parts if kind in OTHER_PARTS), None)
    return other and f"a part of type {other} is not supported: give texts"


def plain_message(message: Json) -> Json:
    """A message for chat templates, with one text. "developer" is OpenAI's newer name for the role "system".

    Args:
        message: its content is a text, a list of `{"type": "text", "text": …}`, or None, which is an empty text. With
            `tool_calls` there may be none.

    Raises:
        ValueError: it, its content or a call is something else.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"messages: {repr(message)[:80]} is no message: give role and content")
    if why := why_not_read(message):
        raise ValueError(f"messages: {why}")
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    content = "" if content is None else content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not parts or not all(map(is_text, parts)):
        raise ValueError(f"messages: content is {repr(content)[:80]}: give a text, or a list of text parts")
    text = "".join(part["text"] for part in parts)
    own = {"tool_calls": [*map(plain_call, calls)]} if calls else {}
    return {**message, "role": "system" if role == "developer" else role, "content": text, **own}


def plain_call(call: Any) -> Json:
    """A call of a tool for chat templates, which write its arguments themselves: an object instead of JSON.

    Raises:
        ValueError: it is no call.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"messages: tool_calls has {repr(call)[:80]}: give function with name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # a model wrote it; the template may show it as it is
            arguments = json.loads(arguments) if arguments.strip() else None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def is_text(part: object) -> bool:
    """Whether a part of a content is a text."""
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
