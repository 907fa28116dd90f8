"""The maximum numbers of words of the book, and the pages that exceed them."""

import re
from collections.abc import Iterator
from pathlib import Path

CEILING = 2_800  # words of one page: about what people finish in one sitting
# Words of all pages as `wc -w` counts them, and of the appendices among them.
ALL, APPENDICES = 84_500, 13_000
VISIBLE, FOLDED = 83_000, 32_250  # words of all built pages: `words.py`
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
    """One line for each ceiling that a page in a folder of Markdown, or all of them together, exceed."""
    pages = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    source = {name: len(text.split()) for name, text in pages.items()}
    appendices = sum(count for name, count in source.items() if name.startswith("appendix-"))
    return [
        *(problem for name, text in pages.items() for problem in above(name, words(text), CEILING)),
        *above("all pages", sum(source.values()), ALL),
        *above("the appendices", appendices, APPENDICES),
    ]


def above(name: str, count: int, ceiling: int) -> Iterator[str]:
    """A line if there are more words than a ceiling allows."""
    if count > ceiling:
        too_many = count - ceiling
        yield f"{name}: {count:,} words, {too_many:,} too many: shorten or split it, or move parts to an appendix"
