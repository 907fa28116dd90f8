"""Marks what the search leaves out: captured screens, the labels of drawings, and hints.

mdBook's index has all text of a page, so marks that no browser shows surround these parts. `theme/search.js` drops what
is between two marks when a reader searches first. Results name the week of a day too: as the parent of its page.
"""

import re

BEGIN, END = "\ue000", "\ue001"  # of a private area: no text has them
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


def name_weeks(items):
    """Make `Week 3` the parent of the pages below the title `Week 3: the serving system`."""
    title = None
    for item in items:
        if "PartTitle" in item:
            title = item["PartTitle"]
        elif "Chapter" in item and title and title.startswith("Week "):
            item["Chapter"]["parent_names"] = [title.partition(":")[0]]
