"""`pdm run book`: serve, build and check the book, capture its screens, measure the costs for its widget."""

import argparse
import os
import sys

from rich.progress import track

from tiny_llm_course.mdbook import PORT, mdbook, serve
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BOOK, ROOT
from tiny_llm_engine.machine.terminal import command
from tiny_llm_extensions.arguments import whole_number
from tiny_llm_extensions.profiling.product_choice import USUAL, VARIABLE

from . import words
from .facts import check_files
from .length import check_length
from .links import check_site
from .minutes import check_minutes

SITE = BOOK / "book"
PLACEHOLDER = "https://example.org"
ROUNDS = 5  # of a measurement, whose medians count


@command
def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.action == "capture":
        return capture(args.check)
    if args.action == "measure":
        return measure()
    if args.action == "serve":
        return serve(args.port, args.open)
    if failed := mdbook("build"):
        return failed
    if args.action == "words":
        words.show(args.since)
    return check() if args.action == "check" else 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pdm run book", description="The book: read it, build it, check it."
    )
    parser.add_argument("--open", action="store_true", help="with serve: open it in the web browser")
    parser.add_argument(
        "--port", type=whole_number(1, 65535), default=PORT, help=f"with serve: the port (default {PORT})"
    )
    parser.add_argument(
        "--check", action="store_true", help="with capture: change nothing, fail on a difference"
    )
    parser.add_argument(
        "--since", metavar="COMMIT", help="with words: show those of an earlier commit beside them"
    )
    parser.add_argument(
        "action",
        nargs="?",
        default="serve",
        choices=["serve", "build", "check", "words", "capture", "measure"],
        help="serve it at http://localhost:3000 (default) · build it into book/book · check: build it, and look at "
        "every link and image, the length and the minutes of every page · words: build it, and count the words of "
        "every page · capture the screens in it again · measure "
        "what a step costs on this machine, for the widget of Week 2 Day 7",
    )
    return parser.parse_args(argv)


def check() -> int:
    problems = check_site(SITE) + check_length(BOOK / "src") + words.check_rendered(BOOK / "src", SITE)
    problems += check_minutes(BOOK / "src") + check_files(BOOK / "src")
    for problem in problems:
        print(problem, file=sys.stderr)
    if PLACEHOLDER in (BOOK / "book.toml").read_text(encoding="utf-8"):
        print(
            f"book: edit links lead to {PLACEHOLDER}, where nothing is: set edit-url-template before you host it"
        )
    pages = len(list(SITE.rglob("*.html")))
    print(f"book: {counted(pages, 'page')}, {counted(len(problems), 'problem')}")
    return 1 if problems else 0


def capture(check_only: bool) -> int:
    """Draw the screens again, or only compare them with those in the book."""
    # Imported here: screens run the reference, which building the book does not need.
    from . import result_tables, screen_files, screens

    os.environ[VARIABLE] = USUAL  # what this machine measures is nothing for a page
    try:
        if not check_only:
            for file in screen_files.capture(screens.capture_all()):
                print(f"book: new screen {file.relative_to(ROOT)}")
            text = result_tables.tables(screens.benchmark_screens(), screens.sealed_results())
            result_tables.FILE.write_text(text, encoding="utf-8")
            return 0
        differences = list(screens.check_all())
    except RuntimeError as error:  # a command in the book no longer works
        print(f"book: {error}", file=sys.stderr)
        return 1
    for difference in differences:
        print(difference, file=sys.stderr)
    if differences:
        print("book: a screen has changed; `pdm run book capture` draws it again", file=sys.stderr)
    return 1 if differences else 0


def measure() -> int:
    """Measure the cost of a step on this machine, for the widget and its picture."""
    from . import screen_files, screens, widget  # they run the reference

    try:
        widget.measure(installed_backends()[-1], ROUNDS, lambda rounds: track(rounds, "rounds"))
        for file in screen_files.capture(screens.widget_screens()):
            print(f"book: new screen {file.relative_to(ROOT)}")
    except (RuntimeError, ValueError) as error:
        print(f"book: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
