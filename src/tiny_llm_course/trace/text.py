"""Texts of users and models for a terminal: on one line, short, and without control characters."""

import re

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SHOWN_OF_A_PROMPT = 60


def harmless(text: str) -> str:
    """The text without characters that a terminal acts on; lines and tabs stay."""
    return CONTROLS.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text on one line."""
    return harmless(" ".join(text.split()))


def shortened(text: str, length: int = SHOWN_OF_A_PROMPT) -> str:
    """The beginning of a long text, on one line of at most this many characters."""
    line = one_line(text[: 4 * length])
    return line if len(line) <= length else line[: length - 1] + "…"


def counted(number: int, thing: str) -> str:
    """ "1 token", "2 tokens", "1,024 tokens"."""
    return f"1 {thing}" if number == 1 else f"{number:,} {thing}s"
