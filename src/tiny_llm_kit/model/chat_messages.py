"""Messages as OpenAI's API has them, for chat templates, whose contents are texts."""

from collections.abc import Mapping, Sequence
from typing import Any

OTHER_PARTS = ("image_url", "input_audio", "audio_url", "video_url", "file", "refusal", "image_embeds")


def why_not_read(message: Mapping[str, Any]) -> str | None:
    """Why a message of OpenAI's API is not supported here, in one line; None for others."""
    role, content = message.get("role"), message.get("content")
    if role in ("tool", "function"):
        return f"the role {role} is not supported: no tools are called here"
    if content is None:
        return f"content is {'null' if 'content' in message else 'missing'}: give a text"
    parts = (
        [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    other = next((kind for kind in parts if kind in OTHER_PARTS), None)
    return other and f"a part of type {other} is not supported: give texts"


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for chat templates, with one text. "developer" is OpenAI's newer name for the role "system".

    Args:
        message: its content is a text, or a list of `{"type": "text", "text": …}`.

    Raises:
        ValueError: its content is something else.
    """
    if why := why_not_read(message):
        raise ValueError(f"messages: {why}")
    role, content = message.get("role"), message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not parts or not all(map(is_text, parts)):
        raise ValueError(f"messages: content is {repr(content)[:80]}: give a text, or a list of text parts")
    text = "".join(part["text"] for part in parts)
    return {**message, "role": "system" if role == "developer" else role, "content": text}


def is_text(part: object) -> bool:
    """Whether a part of a content is a text."""
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)
