"""The maximum number of words on a page of the book, and the pages that exceed it."""

import re
from pathlib import Path

CEILING = 3500  # words: about what people finish in one sitting
# Code fences with what is in them, comments, directives and tags: none of these is read as text.
NOT_TEXT = (
    re.compile(r"^ *(`{3,}|~{3,})[^\n]*\n.*?^ *\1[`~]* *$", re.MULTILINE | re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"\{\{.*?\}\}"),
    re.compile(r"</?[a-zA-Z][^>]*>"),
)


def words(markdown: str) -> int:
    """The number of words of a page's text, hints and answers included."""
    for pattern in NOT_TEXT:
        markdown = pattern.sub(" ", markdown)
    return len(markdown.split())


def check_length(folder: Path) -> list[str]:
    """One line for each page in a folder of Markdown that has more than `CEILING` words."""
    counts = {path.name: words(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.md"))}
    return [
        f"{name}: {count:,} words, {count - CEILING:,} too many: shorten or split it, or move parts to an appendix"
        for name, count in counts.items()
        if count > CEILING
    ]
