"""How many words each page of the book has: in its source, visible on the built page, and folded; and its minutes.

`pdm run book words` prints them, beside those of an earlier commit with `--since COMMIT`. A page shows captured
screens, signatures and drawings too, which its source only names.
"""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from tiny_llm_course.mdbook import find_mdbook
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.machine.repo import BOOK, ROOT

from .length import FOLDED, VISIBLE, above
from .minutes import TOTAL

NOT_SEEN = {"script", "style", "title"}  # the title of a drawing is for screen readers
MARKS = "\ue000\ue001\ue002"  # of `search_marks.py`, which no browser shows
WITHOUT_END = {"br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class Words:
    """Words of one page or of all, and minutes."""

    source: int = 0
    visible: int = 0
    folded: int = 0
    minutes: int = 0

    def __add__(self, other: "Words") -> "Words":
        return Words(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class _Counter(HTMLParser):
    """Counts the words of `<main>`: visible, or folded in `<details>` or under the tab of the other port."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.words = Words()

    def handle_starttag(self, tag, attrs):
        if tag in WITHOUT_END:
            return
        values = dict(attrs)
        other_port = values.get("data-port") == "PyTorch"  # the tab of the first one is open
        self.open.append("other-port" if other_port else f"{tag} open" if "open" in values else tag)

    def handle_endtag(self, tag):
        names = {tag, f"{tag} open", "other-port" if tag == "div" else tag}
        while self.open and self.open.pop() not in names:
            pass

    def handle_data(self, data):
        if "main" not in self.open or NOT_SEEN & {*self.open} or data[0] in MARKS:
            return
        depth = self.open.count("details") - ("summary" in self.open)
        if depth > 0 or "other-port" in self.open:
            self.words.folded += len(data.split())
        else:
            self.words.visible += len(data.split())


def page_words(markdown: str, html: str) -> Words:
    """The words of one page, from its source and from what mdBook made of it."""
    counter = _Counter()
    counter.feed(html)
    minutes = TOTAL.search(markdown)
    return Words(
        len(markdown.split()), counter.words.visible, counter.words.folded, int(minutes[1]) if minutes else 0
    )


def book_words(source: Path, site: Path) -> dict[str, Words]:
    """The words of every page, by its name."""
    return {
        page.stem: page_words(page.read_text("utf-8"), (site / f"{page.stem}.html").read_text("utf-8"))
        for page in sorted(source.glob("*.md"))
        if page.stem != "SUMMARY"
    }


def check_rendered(source: Path, site: Path) -> list[str]:
    """A line for each ceiling that the built pages together exceed."""
    total = sum(book_words(source, site).values(), Words())
    return [
        *above("all pages, visible", total.visible, VISIBLE),
        *above("all pages, folded", total.folded, FOLDED),
    ]


def words_at(commit: str) -> dict[str, Words]:
    """The words of the book at a commit, which is built in a temporary folder."""
    tree = subprocess.run(
        ["git", "archive", commit, "book", "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(fileobj=io.BytesIO(tree)) as files:
            files.extractall(folder, filter="data")
        command = f"{sys.executable} preprocess.py"
        subprocess.run(
            [find_mdbook() or "mdbook", "build", str(folder / "book")],
            env={**os.environ, "MDBOOK_PREPROCESSOR__COURSE__COMMAND": command, "MDBOOK_LOG": "error"},
            check=True,
            capture_output=True,
        )
        return book_words(folder / "book" / "src", folder / "book" / "book")


def show(since: str | None = None) -> None:
    """Print the words of all pages, and those of the same pages at an earlier commit."""
    now = book_words(BOOK / "src", BOOK / "book")
    before = words_at(since) if since else now
    table = Table(box=None, title=f"{since} → now" if since else None)
    table.add_column("page", no_wrap=True)
    for name in ("source", "visible", "folded", "minutes"):
        table.add_column(name, justify="right", no_wrap=True)
    for page in sorted({*now, *before}):
        table.add_row(page, *_cells(before.get(page, Words()), now.get(page, Words())))
    total = sum(now.values(), Words())
    table.add_row("all", *_cells(sum(before.values(), Words()), total), style="bold")
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table)
    console.print(f"{counted(len(now), 'page')}, days of {round(total.minutes / 60)} hours")


def _cells(before: Words, now: Words) -> Iterator[str]:
    for earlier, value in zip(astuple(before), astuple(now), strict=True):
        yield f"{value:,}" if value == earlier else f"{earlier:,} → {value:,}"
