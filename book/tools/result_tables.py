"""`benchmark_results/TABLES.md`: every sealed result as its command printed it."""

import html
import re
from collections.abc import Iterable, Iterator

from tiny_llm_kit.repo import BOOK, ROOT

FILE = ROOT / "benchmark_results" / "TABLES.md"
TITLE = "# Tables of the results\n\nDrawn by `pdm run book capture` from the files in this folder.\n"
TABLE = "benchmark-"  # before the name of a result; a drawing of one has the name alone
INCLUDED = re.compile(r"\{\{#include (?:\.\./)?screens/([\w.-]+)\.html\}\}")


def on_pages(screens: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Those of the screens that a page includes."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (BOOK / "src").rglob("*.md"))
    included = set(INCLUDED.findall(pages))
    return ((name, fragment) for name, fragment in screens if name in included)


def tables(screens: Iterable[tuple[str, str]]) -> str:
    """The text of every table among the screens, each below the name of its result."""
    parts = [
        f"\n## {name.removeprefix(TABLE)}\n\n```text\n{html.unescape(re.sub(r'<[^>]*>', '', fragment)).strip()}\n```\n"
        for name, fragment in screens
        if name.startswith(TABLE)
    ]
    return TITLE + "".join(parts)
