"""Folds what a reader looks up: messages and remedies, names in other engines, readings, the end of a long screen.

A day says what to do; these are long, and one click away. Nothing is to be written for it in a page.
"""

import re

SECTION = re.compile(r"^(## [^\n]*\n)", re.MULTILINE)
# Pages and sections of which one entry is looked up: a symptom in bold and its remedy, a day and its names elsewhere.
LOOKED_UP = re.compile(
    r"^# (?:Troubleshooting|Your names in other engines)\n.*|^## Troubleshooting\n.*?(?=^## |\Z)",
    re.MULTILINE | re.DOTALL,
)
ENTRY = re.compile(
    r"^(?:\*\*(?P<symptom>.+?)\*\*\s+|(?P<day>\[Days? [^\n]+?)\n\n)(?P<rest>.+?)(?=^\*\*|^\[Day|^#|^<p class|\Z)",
    re.MULTILINE | re.DOTALL,
)
# The list of a section "Prove" whose items quote messages, or its table of messages.
MESSAGES = re.compile(r"^(?:- +\*[“\"`].*?|\| *Message.*?)(?=^\S(?<![-|])|\Z)", re.MULTILINE | re.DOTALL)
BADGE = re.compile(r'\n<p class="not-run">|\Z')
SCREEN = re.compile(r'^(<pre class="screen"[^>]*>)(.*?)\n</pre>$', re.MULTILINE | re.DOTALL)
WINDOW, LEAST = 42, 12  # lines: of a screen that is shown whole, and of the part of a longer one that is


def fold(text):
    head, *sections = SECTION.split(text)
    for at in range(0, len(sections), 2):
        heading, body = sections[at].strip(), sections[at + 1]
        if heading == "## Prove":
            sections[at + 1] = MESSAGES.sub(messages, body, count=1)
        elif heading == "## Readings":
            sections[at + 1] = readings(body)
    text = LOOKED_UP.sub(lambda part: ENTRY.sub(entry, part[0]), "".join([head, *sections]))
    return SCREEN.sub(screen, text)


def details(kind, summary, body):
    return f'<details class="{kind}">\n<summary>{summary}</summary>\n\n{body}\n\n</details>\n\n'


def messages(match):
    return details("messages", "Messages and their causes", match[0].strip())


def entry(match):
    return details("entry", f"\n\n{match['symptom'] or match['day']}\n\n", match["rest"].strip())


def readings(body):
    end = BADGE.search(body).start()
    count = len(re.findall(r"^- ", body, re.MULTILINE))
    return (
        "\n"
        + details("readings", f"{count} texts" if count > 1 else "One text", body[:end].strip())
        + body[end:]
    )


def screen(match):
    """A long screen is cut between two of its parts, at an empty line, or in the middle of a window."""
    tag, lines = match[1], match[2].split("\n")
    if len(lines) <= WINDOW:
        return match[0]
    places = range(LEAST, min(WINDOW, len(lines) - LEAST))
    empty = [
        at for at in places if not lines[at].strip() and lines[at - 2].strip()
    ]  # after a title comes its table
    between_parts = [at for at in empty if not lines[at + 1].strip()]
    cut = max(between_parts or empty, default=WINDOW // 2)
    first, rest = "\n".join(lines[:cut]), "\n".join(lines[cut:]).strip("\n")
    count = rest.count("\n") + 1
    return f"{tag}{first}\n</pre>\n\n" + details("rest", f"{count} more lines", f"{tag}{rest}\n</pre>")
