"""Texts of people and models on a terminal: on one line, short, and without what would steer the terminal."""

import re

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
SHOWN_OF_A_PROMPT = 60


def harmless(text: str) -> str:
    """The text without characters that a terminal acts on; lines and tabs stay."""
    return CONTROLS.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The text on one line."""
    return harmless(" ".join(text.split()))


def shortened(text: str) -> str:
    """A long text's beginning, on one line."""
    line = one_line(text[: 4 * SHOWN_OF_A_PROMPT])
    return line if len(line) <= SHOWN_OF_A_PROMPT else line[: SHOWN_OF_A_PROMPT - 1] + "…"


def counted(number: int, thing: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
