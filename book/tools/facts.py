"""The files that a page's first lines and its tasks name: each is a file of the course."""

import re
from pathlib import Path

from tiny_llm_course.tree import reference_files

FACTS = re.compile(r'<p class="(?:day|task)-facts">(.*?)</p>', re.DOTALL)
FILE = re.compile(r"<code>([\w/]+\.(?:py|cpp|h))</code>")


def check_files(folder: Path) -> list[str]:
    """One line for each file that the facts of a page in a folder of Markdown name and that the reference lacks."""
    known = [f"/{file.as_posix()}" for file in reference_files()]
    return [
        f"{page.name}: {name} is no file of the course"
        for page in sorted(folder.glob("*.md"))
        for facts in FACTS.findall(page.read_text(encoding="utf-8"))
        for name in FILE.findall(facts)
        if not any(file.endswith(f"/{name}") for file in known)
    ]
