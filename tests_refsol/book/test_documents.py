"""The pages of the repository beside the book: what they link to and name is there."""

import re
from pathlib import Path

import pytest

from tiny_llm_kit.repo import ROOT, SOURCES

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


def test_the_table_of_features_names_files_that_are_there():
    """Paths are those of the repository, or lie below `src` or the reference."""
    table = (ROOT / "docs" / "feature-places.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+/[\w/]+\.py)`", table))
    folders = (ROOT, SOURCES, SOURCES / "tiny_llm_ref")
    assert len(named) > 5
    assert [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)] == []
