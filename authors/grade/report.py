"""What `course grade` prints and writes: a table of one submission; of many a CSV file and one page of HTML."""

import argparse
import csv
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_course.address import Day
from tiny_llm_course.trace.template import render
from tiny_llm_course.trace.text import counted
from tiny_llm_course.tree import days
from tiny_llm_engine.machine.terminal import FatalError, fail

from .cage import has_namespaces
from .grading import Rules, clean_copy, grade
from .submission import read_submission

SHOWN = 10  # names of files that were ignored, and tests that fail most often
PAGE = Path(__file__).with_name("page.html.j2")
Results = dict[str, Any]


def grade_one(console: Console, options: argparse.Namespace) -> int:
    """Grade one submission and print a line for each task.

    Returns:
        0, whatever its points are: the grading itself has worked.
    """
    submission = read_submission(options.submission)
    with clean_copy() as clean:
        results = grade(submission, clean, _rules(options))
    console.print(table_of(results))
    for line in summary(results):
        console.print(line, markup=False, soft_wrap=True)
    if options.json:
        _write_json(options.json, results)
    return 0


def grade_many(console: Console, options: argparse.Namespace) -> int:
    """Grade every submission in a folder, print a line for each, and write all of it.

    Returns:
        1 if a submission could not be read; it is in the files too, without points.
    """
    rules, all_results = _rules(options), []
    options.output.mkdir(parents=True, exist_ok=True)
    sources = [p for p in sorted(options.submission.iterdir()) if p.is_dir() or p.suffix == ".zip"]
    with clean_copy() as clean:
        for source in sources:
            try:
                results = grade(read_submission(source), clean, rules)
                _write_json(options.output / f"{source.stem}.json", results)
            except FatalError as error:
                results = {"points": 0, "possible": 0, "tasks": [], "submission": {"name": source.stem}}
                results["submission"]["error"] = str(error)
            all_results.append(results)
            console.print(f"{source.name}: {summary(results)[0]}", markup=False, soft_wrap=True)
    write_csv(options.output / "results.csv", all_results)
    rows = [
        {**results, "percents": [_percent(results, day) for day in rules.days]} for results in all_results
    ]
    page = render(PAGE, rows=rows, days=rules.days, worst=_worst(all_results))
    (options.output / "results.html").write_text(page, encoding="utf-8")
    console.print(f"written: {options.output}/results.csv, results.html", markup=False)
    return int(any("error" in results["submission"] for results in all_results))


def _rules(options: argparse.Namespace) -> Rules:
    chosen = [day for day in days() if not options.week or day.week in options.week]
    chosen = [day for day in chosen if not options.day or day in options.day]
    if not chosen:
        fail("the course has no such day")
    backend = None if options.backend == "all" else options.backend
    return Rules(chosen, backend, options.seconds, options.memory * 10**9)


def table_of(results: Results) -> Table:
    """A row for each task."""
    table = Table("task", "", "points", "tests", "first failure", box=None, pad_edge=False)
    for row in results["tasks"]:
        passed = len(row["tests"]) - len(row["failing"])
        points = f"{row['points']:g}/{row['possible']}"
        table.add_row(
            row["task"], row["title"], points, f"{passed}/{len(row['tests'])}", row["first_failure"]
        )
    return table


def summary(results: Results) -> list[str]:
    """The sum, and what a teacher should know of how it came about."""
    facts = results["submission"]
    if "error" in facts:
        return [f"not graded: {facts['error']}"]
    passed = sum(row["passed"] for row in results["tasks"])
    lines = [
        f"{results['points']:g} of {results['possible']} points, {passed} of "
        f"{counted(len(results['tasks']), 'task')}, port {facts['port']}, {facts['seconds']:g} s, "
        f"{facts['memory_mb']} MB"
    ]
    if names := facts["ignored"]:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        lines.append(f"ignored: {', '.join(names[:SHOWN])}{more}")
    if not has_namespaces():
        lines.append(
            "not closed off: it could use the network and write to this disk, for `unshare` does not work here"
        )
    return lines


def write_csv(file: Path, all_results: Sequence[Results]) -> None:
    """A line per submission: its sums, and the points of each task."""
    tasks = list(dict.fromkeys(row["task"] for results in all_results for row in results["tasks"]))
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["submission", "points", "possible", "seconds", "memory_mb", "ignored", *tasks])
        for results in all_results:
            facts, points = results["submission"], {row["task"]: row["points"] for row in results["tasks"]}
            run = [facts.get("seconds", ""), facts.get("memory_mb", ""), len(facts.get("ignored", ()))]
            sums = [facts["name"], results["points"], results["possible"]]
            writer.writerow([*sums, *run, *(points.get(task, "") for task in tasks)])


def _percent(results: Results, day: Day) -> int:
    """The points of a day, in per cent."""
    rows = [row for row in results["tasks"] if row["task"].startswith(f"{day}.")]
    return round(100 * sum(row["points"] for row in rows) / (sum(row["possible"] for row in rows) or 1))


def _worst(all_results: Sequence[Results]) -> list[tuple[str, int]]:
    """The tests that fail most often where somebody has begun their task."""
    failing = (
        name
        for results in all_results
        for row in results["tasks"]
        if row["first_failure"] and not row["first_failure"].startswith("blank")
        for name in row["failing"]
    )
    return Counter(failing).most_common(SHOWN)


def _write_json(file: Path, results: Results) -> None:
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
