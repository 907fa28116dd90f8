"""Reads question files: Markdown in which each heading is a question's id, each bullet one way to ask it.

Knows nothing of models. The paragraph after the bullets is the answer; a file without answers (paraphrases
of questions from elsewhere) is read by the same function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TERM = re.compile(r"\{(.+)\}")
# What the shipped model says about a name that no line of the prompt has.
ABSENT_NAME = "I do not see that name in your list."


@dataclass(frozen=True)
class Question:
    """One question: its id, its phrasings, and the answer ("" in a file that holds only paraphrases).

    `written` are the phrasings that the file has literally; the others come from templates.
    """

    id: str
    asks: tuple[str, ...]
    answer: str
    written: tuple[str, ...] = ()


def read_questions(path: Path) -> list[Question]:
    """The questions of one Markdown file, in its order."""
    sections = path.read_text(encoding="utf-8").split("\n## ")[1:]
    return [_question(section) for section in sections]


def _question(section: str) -> Question:
    name, *lines = section.splitlines()
    asks = tuple(line[2:].strip() for line in lines if line.startswith("- "))
    answer = " ".join(line.strip() for line in lines if line.strip() and not line.startswith("- "))
    return Question(name.strip(), asks, answer)


def read_corpus(folder: Path) -> list[Question]:
    """Every question under `folder`/corpus, its `{terms}` put into each of `folder`/templates.md."""
    templates = read_templates(folder / "templates.md")
    questions = [q for path in sorted((folder / "corpus").glob("*.md")) for q in read_questions(path)]
    return [Question(q.id, _expand(q.asks, templates), q.answer, _written(q.asks)) for q in questions]


def read_templates(path: Path) -> list[str]:
    """The ways to ask what a thing is, each with `{}` for the thing."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line[2:].strip() for line in lines if line.startswith("- ")]


def _written(asks: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(ask for ask in asks if not TERM.fullmatch(ask))


def _expand(asks: tuple[str, ...], templates: list[str]) -> tuple[str, ...]:
    phrasings: list[str] = []
    for ask in asks:
        term = TERM.fullmatch(ask)
        phrasings += [t.replace("{}", term[1]) for t in templates] if term else [ask]
    return tuple(dict.fromkeys(phrasings))
