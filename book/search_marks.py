"""Marks what the search leaves out: captured screens, the labels of drawings, and hints.

mdBook's index has all text of a page, so marks that no browser shows surround these parts. `theme/search.js` drops what
is between two marks when a reader searches first. Results name the week of a day too: as the parent of its page.

The glossary is the search's list of terms: marks name each entry, its anchor, and the pages that explain it.
"""

import re

from terms import ENTRY, anchor_of

BEGIN, END = "\ue000", "\ue001"  # of a private area: no text has them
TERM, END_TERM = "\ue002", "\ue003"
HIDDEN = "<span hidden>{}</span>"
INSIDE_SVG = "<metadata>{}</metadata>"
SCREEN = re.compile(r'(<pre class="screen"[^>]*>)(.*?)(</pre>)', re.DOTALL)
DRAWING = re.compile(r"(<svg\b[^>]*>)(.*?)(</svg>)", re.DOTALL)
HINT = re.compile(r'(<details class="hint">\s*<summary>)(.*?</details>)()', re.DOTALL)


def mark(text):
    """`text` with marks around what nobody searches for."""
    for pattern, element in ((SCREEN, HIDDEN), (DRAWING, INSIDE_SVG), (HINT, HIDDEN)):
        begin, end = element.format(BEGIN), element.format(END)
        text = pattern.sub(lambda part, begin=begin, end=end: part[1] + begin + part[2] + end + part[3], text)
    return text


def mark_terms(glossary):
    """The glossary with its entries marked: `TERM name TERM anchor TERM pages END_TERM`, before each definition."""

    def marked(entry):
        parts = entry[1], anchor_of(entry[1]), " ".join(re.findall(r"\]\(([\w-]+)\.md", entry[2]))
        return f"{entry[1]}\n:   {HIDDEN.format(TERM + TERM.join(parts) + END_TERM)}{entry[2]}"

    return ENTRY.sub(marked, glossary)


def name_weeks(items):
    """Make `Week 3` the parent of the pages below the title `Week 3: the serving system`."""
    title = None
    for item in items:
        if "PartTitle" in item:
            title = item["PartTitle"]
        elif "Chapter" in item and title and title.startswith("Week "):
            item["Chapter"]["parent_names"] = [title.partition(":")[0]]
