"""`{{#signature native/product.cpp multiply_line}}`: the comment and the header of a C++ function, or a whole `struct`.

There is no parser of C++: what is shown begins at the start of a line, and the comment is the one above it.
"""

import re
import textwrap

COLUMNS = 84  # of a block that a page shows without scrolling
GIVEN = "// GIVEN:"


def contract(source, name):
    """The lines of `name` that say how to call it. Raises LookupError when the source has no such name."""
    lines = source.splitlines()
    start = re.compile(rf"(?!//)(?:\S.*\W)?{name}\s*[({{]")
    at = next((number for number, line in enumerate(lines) if start.match(line)), None)
    if at is None:
        raise LookupError(name)
    above = [line for line in lines[first_above(lines, at) : at] if not line.startswith(GIVEN)]
    shown = whole(lines, at) if "struct" in lines[at].split() else header(lines, at)
    return "\n".join([*comment(above), *shown])


def first_above(lines, at):
    """The index of the first line of the comment and the `template` above a definition."""
    while at > 0 and lines[at - 1].startswith(("//", "template")):
        at -= 1
    return at


def comment(lines):
    """The lines above a definition, each paragraph of a comment as wide as a page."""
    paragraphs, others = [[]], []
    for line in lines:
        if not line.startswith("//"):
            others.append(line)
        elif line == "//":
            paragraphs.append([])
        else:
            paragraphs[-1].append(line[3:])
    for words in paragraphs:
        yield from textwrap.wrap(" ".join(words), COLUMNS, initial_indent="// ", subsequent_indent="// ")
    yield from others


def header(lines, at):
    """A function up to its brace, as a declaration; if it is too long, its arguments go below it."""
    end = next(number for number in range(at, len(lines)) if "{" in lines[number])
    text = " ".join(line.strip() for line in lines[at : end + 1]).partition("{")[0].rstrip() + ";"
    if len(text) <= COLUMNS:
        return [text]
    name, arguments = text.split("(", 1)
    whole_ones = re.sub(r"(?<!,) ", "\0", arguments)
    wrapped = textwrap.wrap(whole_ones, COLUMNS, initial_indent="    ", subsequent_indent="    ")
    return [f"{name}(", *(line.replace("\0", " ") for line in wrapped)]


def whole(lines, at):
    """A struct to its end."""
    end = next(number for number in range(at, len(lines)) if lines[number].startswith("}"))
    return lines[at : end + 1]
