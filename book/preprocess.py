"""The preprocessor of the book: signatures, hints, commands, formulas, and what a search finds, on every page.

Self-contained, because plain `mdbook build book` runs it with whatever `python3` the machine has. What cannot
be rendered stays visible in the page as `<span class="book-error">`, and `pdm run book check` fails on it.
"""

import json
import sys

import folds
import formulas
import hints
import search_marks
import signatures
import task_commands
import terms


def chapters(items):
    """Every chapter of the book, at any depth. Part titles and separators are not chapters."""
    for item in items:
        if isinstance(item, dict) and "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def preprocess(book):
    """Rewrite the chapters of mdBook's JSON in place."""
    to_mathml = formulas.converter()
    pages = {chapter["path"]: chapter for chapter in chapters(book["items"])}
    glossary = pages[terms.GLOSSARY]["content"] if terms.GLOSSARY in pages else ""
    for path, chapter in pages.items():
        text = hints.number(task_commands.add(signatures.expand(folds.fold(chapter["content"]))))
        text = terms.link(formulas.render(text, to_mathml), path, glossary)
        if path == terms.GLOSSARY:
            text = search_marks.mark_terms(text)
        chapter["content"] = search_marks.mark(text)
    search_marks.name_weeks(book["items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return  # every renderer is fine
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    _context, book = json.load(sys.stdin)
    preprocess(book)
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
