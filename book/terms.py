"""Links the first use of a glossary's term on a page to its entry.

Not in code, headings, links or what is folded, and not on the page that the entry names: it explains the term itself.
"""

import re

GLOSSARY = "appendix-glossary.md"
ENTRY = re.compile(r"^(\S.*)\n:   ((?:.+\n?)+)", re.MULTILINE)
# Words that mean something else in most sentences, or that every page has.
COMMON = {
    *(
        "attention",
        "backend",
        "batch",
        "block",
        "capacity",
        "capture",
        "computed",
        "gate",
        "graph",
        "group",
        "head",
    ),
    *(
        "interactive",
        "known",
        "line",
        "offset",
        "page",
        "patience",
        "port",
        "rank",
        "replay",
        "router",
        "statistics",
    ),
    *("token", "twin", "word"),
}
ELEMENTS = (
    "a|button|code|details|fieldset|figure|h[1-6]|label|math|option|pre|script|style|summary|svg|template"
)
SKIPPED = rf"""
      ^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(?P<fence>`{{3,}}|~{{3,}}) .*? (?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)
    | ^\#{{1,6}}[ ].*?$
    | (?<!`)(?P<ticks>`+)(?!`) .+? (?<!`)(?P=ticks)(?!`)
    | <!--.*?-->
    | <p\ class="(?:day|task)-facts">.*?</p>
    | <(?P<element>{ELEMENTS})\b.*?</(?P=element)>
    | <[^>]+>
    | !?\[[^]]*\][(\[][^])]*[])]
"""


def entries(glossary):
    """`(words, anchor, pages)` of every entry; `Block, page` has two words and one anchor."""
    for head, text in ENTRY.findall(glossary):
        words = [word for word in re.split(r", | \(.*", head) if word and word.lower() not in COMMON]
        yield words, anchor_of(head), set(re.findall(r"\]\(([\w-]+\.md)", text))


def anchor_of(head):
    """The id that mdBook gives to the head of an entry."""
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def link(text, page, glossary):
    """`text` of a page with the first use of each term as a link."""
    if page == GLOSSARY:
        return text
    anchors = {
        spelling(word): (anchor, pages) for words, anchor, pages in entries(glossary) for word in words
    }
    patterns = sorted(anchors, key=len, reverse=True)  # the longest first: it may contain another
    term = "|".join(f"(?P<t{number}>{pattern})" for number, pattern in enumerate(patterns))
    parts = re.compile(rf"{SKIPPED}|(?<![\w./-])(?:{term})(?![\w-])", re.VERBOSE | re.DOTALL | re.MULTILINE)
    used = set()

    def linked(match):
        if not re.fullmatch(r"t\d+", match.lastgroup or ""):
            return match[0]
        anchor, pages = anchors[patterns[int(match.lastgroup[1:])]]
        if page in pages or anchor in used:
            return match[0]
        used.add(anchor)
        return f'<a class="term" href="{GLOSSARY}#{anchor}">{match[0]}</a>'

    return parts.sub(linked, text) if anchors else text


def spelling(word):
    """A pattern for a word: also at the start of a sentence, in the plural, and over the end of a line."""
    first, rest = word[0], word[1:]
    start = f"[{first.lower()}{first.upper()}]" if rest == rest.lower() else re.escape(first)
    return start + r"\s+".join(map(re.escape, rest.split(" "))) + "s?"
