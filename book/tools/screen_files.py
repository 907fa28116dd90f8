"""The screens in the book's folder: writes those that have changed, or says how they differ."""

import difflib
import html
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tiny_llm_engine.machine.repo import BOOK

from .console import unmeasured

FOLDER = BOOK / "src" / "screens"


def capture(screens: Iterable[tuple[str, str]], folder: Path = FOLDER) -> Iterator[Path]:
    """Write every `(name, fragment)` into `folder`; yields the files that changed."""
    for name, fragment in screens:
        file = folder / f"{name}.html"
        if not file.exists() or unmeasured(file.read_text(encoding="utf-8")) != unmeasured(fragment):
            file.write_text(fragment, encoding="utf-8")
            yield file


def differences(screens: Iterable[tuple[str, str]], folder: Path = FOLDER) -> Iterator[str]:
    """For each screen that is not what the book shows, a diff of its text."""
    for name, fragment in screens:
        file = folder / f"{name}.html"
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        kept, fresh = unmeasured(kept), unmeasured(fragment)
        if kept != fresh:
            yield "\n".join(diff(kept, fresh, file.name)) or f"{file.name}: the colours differ"


def diff(kept: str, fresh: str, name: str) -> Iterator[str]:
    def lines(fragment: str) -> list[str]:
        return html.unescape(re.sub(r"<[^>]*>", "", fragment)).splitlines()

    return difflib.unified_diff(
        lines(kept), lines(fresh), f"{name}, in the book", f"{name}, now", lineterm="", n=1
    )
