"""A docstring as HTML that folds: its first sentence is the line to open, and the rest is what opens.

A docstring of one paragraph is short enough to stay under its `def`, and does not fold.
"""

import re
import textwrap

from formulas import inert

PART = re.compile(r"(Args|Returns|Raises|Yields):\n")
ITEM = re.compile(r"(\w+(?:, \w+)*): ")  # how an argument or an error begins
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`])")
CODE = re.compile(r"`([^`]+)`")


def is_short(docstring):
    return "\n\n" not in docstring and not PART.match(docstring)


def fold(docstring, methods=()):
    """`<details>` of a docstring, and of the docstrings of a class's methods as `(name, docstring)`."""
    title, rest = split(docstring)
    body = [shown(paragraph) for paragraph in rest]
    for name, text in methods:
        first, *rest = ["", *paragraphs(text)] if PART.match(text) else paragraphs(text)
        body += [
            f"<p><code>{inert(name)}</code>: {prose(first)}</p>",
            *(shown(paragraph) for paragraph in rest),
        ]
    return "\n".join(
        ['<details class="docstring">', f"<summary>{prose(title)}</summary>", *body, "</details>"]
    )


def paragraphs(docstring):
    return docstring.strip().split("\n\n")


def split(docstring):
    """The first sentence, and the paragraphs after it; of a docstring without a sentence, what its parts are."""
    first, *rest = paragraphs(docstring)
    if PART.match(first):
        return "Arguments and result", [first, *rest]
    title, *more = SENTENCE.split(" ".join(first.split()), maxsplit=1)
    return title, [*more, *rest]


def shown(paragraph):
    """The HTML of a paragraph, or of a part such as `Args:` with its items."""
    part = PART.match(paragraph)
    if part is None:
        return f"<p>{prose(paragraph)}</p>"
    items = list(items_of(textwrap.dedent(paragraph[part.end() :]).splitlines()))
    if len(items) == 1:
        return f"<p><strong>{part[1]}</strong> {items[0]}</p>"
    return f"<p><strong>{part[1]}</strong></p>\n<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def items_of(lines):
    """The items of a part: a line that begins one, and the lines that go on further in."""
    entries = []
    for line in lines:
        if entries and not (ITEM.match(line) and not line.startswith(" ")):
            entries[-1] += " " + line.strip()
        else:
            entries.append(line)
    for entry in entries:
        name = ITEM.match(entry)
        names = ", ".join(f"<code>{inert(each)}</code>" for each in name[1].split(", ")) if name else ""
        yield f"{names}: {prose(entry[name.end() :])}" if name else prose(entry)


def prose(text):
    """Text on one line in which only code in backticks is marked."""
    pieces = CODE.split(" ".join(text.split()))
    return "".join(f"<code>{inert(each)}</code>" if at % 2 else inert(each) for at, each in enumerate(pieces))
