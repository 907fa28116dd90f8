"""`benchmark_results/TABLES.md`: the fastest baseline of each case, and every result as its command printed it."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from benchmarks.report import OURS, fastest_baseline, medians
from benchmarks.reports import speeds_of_cases
from tiny_llm_engine.machine.repo import BOOK, ROOT

FILE = ROOT / "benchmark_results" / "TABLES.md"
TITLE = "# Tables of the results\n\nDrawn by `pdm run book capture` from the files in this folder.\n"
TABLE = "benchmark-"  # before the name of a result; a drawing of one has the name alone
FASTEST = (
    "\n## fastest-baselines\n\nThe fastest baseline is faster than tiny-llm (bold) in {} of {} cases.\n\n"
    "| Result | Case | tiny-llm | Fastest baseline | Its tokens/s | tiny-llm is | |\n|---|---|---|---|---|---|---|\n"
)
INCLUDED = re.compile(r"\{\{#include (?:\.\./)?screens/([\w.-]+)\.html\}\}")


def on_pages(screens: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Those of the screens that a page includes."""
    pages = "".join(page.read_text(encoding="utf-8") for page in (BOOK / "src").rglob("*.md"))
    included = set(INCLUDED.findall(pages))
    return ((name, fragment) for name, fragment in screens if name in included)


def fastest_baselines(results: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """A row for each case that was measured beside other programs, newest first; where they are faster it is bold."""
    rows = ""
    for name, result in sorted(results, key=lambda each: each[1]["provenance"]["date"], reverse=True):
        for case, speeds in speeds_of_cases(result):
            if baseline := fastest_baseline(speeds):
                ratio = f"{speeds[OURS] / speeds[baseline]:.2f} ×"
                bold = "**" if ratio < "1" else ""
                figures = f"{speeds[OURS]:.1f} | {baseline} | {speeds[baseline]:.1f} | {bold}{ratio}{bold}"
                rows += f"| {name} | {case} | {figures} | {medians(result['plan']['rounds'])} |\n"
    return FASTEST.format(rows.count("**") // 2, rows.count("\n")) + rows


def tables(screens: Iterable[tuple[str, str]], results: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The table of the fastest baselines, then the text of every table among the screens, below its result's name."""
    parts = [
        f"\n## {name.removeprefix(TABLE)}\n\n```text\n{html.unescape(re.sub(r'<[^>]*>', '', fragment)).strip()}\n```\n"
        for name, fragment in screens
        if name.startswith(TABLE)
    ]
    return TITLE + fastest_baselines(results) + "".join(parts)
