"""The pages of the repository beside the book: what they link to and name is there."""

import re
from pathlib import Path

import pytest

from tiny_llm_engine.machine.repo import ROOT, SOURCES

RESULTS = ROOT / "benchmark_results"
PAGES = [*sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"]
COMPARED = "appendix-benchmarks", "week4-03-speculative-decoding"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub and mdBook make them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_document_leads_to_a_heading(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert links
    wrong = [f"{file}#{anchor}" for file, anchor in links if not leads(page, file, anchor)]
    assert wrong == []


def leads(page: Path, file: str, anchor: str) -> bool:
    target = page.parent / file if file else page
    return target.exists() and (not anchor or anchor in anchors(target))


def test_every_result_has_a_table():
    assert anchors(RESULTS / "TABLES.md") >= {file.stem.replace(".", "") for file in RESULTS.glob("*.json")}


@pytest.mark.parametrize("page", ["README.md", *(f"book/src/{page}.md" for page in COMPARED)])
def test_a_ratio_to_other_programs_is_that_to_the_fastest(page):
    """A figure with two digits after the point, as in the generated list."""
    listed = (RESULTS / "TABLES.md").read_text(encoding="utf-8").split("\n## ")[1]
    ratios = [re.findall(r"\d\.\d\d ×", text) for text in ((ROOT / page).read_text(encoding="utf-8"), listed)]
    assert "3.30 ×" in listed and set(ratios[0]) <= set(ratios[1])


@pytest.mark.parametrize("page", ["docs/feature-places.md", "ARCHITECTURE.md"])
def test_a_table_of_places_names_files_that_are_there(page):
    """Paths are those of the repository, or end a path below `src`."""
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    files = [path.as_posix() for folder in (SOURCES, ROOT / "benchmarks") for path in folder.rglob("*.py")]
    there = {name for name in named if (ROOT / name).exists() or any(f.endswith(f"/{name}") for f in files)}
    assert len(named) > 5 and named - there == set()
