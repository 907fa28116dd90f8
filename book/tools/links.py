"""The link check of the built book: every link inside it leads somewhere, and no page fetches anything from outside.

Reads the HTML that mdBook wrote, so it sees what a browser sees. A link *to* another site is fine and is not followed.
"""
# Own code: linkchecker 10.6 from PyPI checks links and anchors too, but parses a page again for each anchor (33 s of
# processor time for this book, against 0.6 s). It accepts what is fetched from outside, and misses `<use href>`.

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser fetches by itself, and elements whose `href` it fetches.
# The `href` of an `a` is followed by the reader alone.
FETCHED = ("src", "poster", "data")
FETCHED_BY_HREF = ("link", "use", "image")
CSS_URL = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")
# Left in a page by a preprocessor that could not do its work.
LEFTOVER = re.compile(r"\{\{\s*#\w+[^}]*\}\}")


@dataclass
class Page:
    """The ids, links and resources of one page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self, page: Page):
        super().__init__()
        self.page = page
        self.inside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.inside.append(tag)
        self.page.ids.update(value for name, value in values.items() if name in ("id", "name") and value)
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        fetched = FETCHED + ("href", "xlink:href") * (tag in FETCHED_BY_HREF)
        self.page.resources += [values[name] for name in fetched if values.get(name)]
        self.page.resources += css_urls(values.get("style", ""))
        self.page.resources += [
            part.split()[0] for part in values.get("srcset", "").split(",") if part.split()
        ]
        if "book-error" in values.get("class", ""):
            self.inside.append("book-error")

    def handle_endtag(self, tag):
        while tag in self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data):
        if "style" in self.inside[-1:]:
            self.page.resources += css_urls(data)
        elif "book-error" in self.inside[-1:]:
            self.page.problems.append(data.strip())
        elif not {"code", "pre", "script"} & set(self.inside):
            self.page.problems += [f"not rendered: {leftover}" for leftover in LEFTOVER.findall(data)]


def css_urls(css: str) -> list[str]:
    """Everything that a style sheet fetches, without `data:` (which is inside it)."""
    found = (match[1] or match[2] for match in CSS_URL.finditer(css))
    return [url.strip() for url in found if not url.startswith(("data:", "#"))]


def read_page(html: str) -> Page:
    page = Page()
    reader = _Reader(page)
    reader.feed(html)
    reader.close()
    return page


def check_site(folder: Path) -> list[str]:
    """One line per problem of the built book in `folder`, each beginning with the page."""
    # mdBook writes 404.html for a web server's root, with a <base>; its links are those of the index.
    files = [file for file in sorted(folder.rglob("*.html")) if file.name != "404.html"]
    if not files:
        return [f"{folder}: no page here; `pdm run book build` makes them"]
    pages = {file.resolve(): read_page(file.read_text(encoding="utf-8")) for file in files}
    found = []
    for file, page in pages.items():
        problems = page.problems + [
            problem for link in page.links if (problem := check_link(link, file, pages))
        ]
        problems += [problem for url in page.resources if (problem := check_resource(url, file))]
        found += [f"{file.relative_to(folder.resolve())}: {problem}" for problem in dict.fromkeys(problems)]
    for sheet in sorted(folder.rglob("*.css")):
        problems = [check_resource(url, sheet) for url in css_urls(sheet.read_text(encoding="utf-8"))]
        found += [f"{sheet.relative_to(folder)}: {problem}" for problem in problems if problem]
    return found


def check_link(link: str, file: Path, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link on the page `file`, or None."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
    if not target.exists():
        return f"link to nothing: {link}"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return f"link to a missing anchor: {link}"
    return None


def check_resource(url: str, file: Path) -> str | None:
    """What is wrong with something that the page or style sheet `file` fetches, or None."""
    parts = urlsplit(url)
    if parts.scheme == "data":
        return None
    if parts.scheme or parts.netloc:
        return f"fetched from outside: {url}"
    if parts.path and not (file.parent / unquote(parts.path)).exists():
        return f"missing file: {url}"
    return None
