"""Wrong solutions, each of which the tests of its own task must kill. `tests_refsol/mutants/` lists them."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from os.path import normpath
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tiny_llm_course.address import Day, Task, parse_task
from tiny_llm_course.cut import language_of
from tiny_llm_course.grading.plugin import tools
from tiny_llm_course.tree import PARTS, REFERENCE, days, parts_of
from tiny_llm_engine.machine.repo import BACKENDS, ROOT

from .in_process import DayTests, with_day_tests

FOLDER = ROOT / "tests_refsol" / "mutants"
KILLS = FOLDER / "kills" / "after.json"  # what `--matrix` wrote
AT_LEAST = 5  # mutants per day
AT_MOST = 8  # mutants per task; one for both ports counts once
LIBRARIES = {"mlx": "mx", "torch": "torch"}  # what `xp` stands for in an edit of both ports
Edit = tuple[str, str]


@dataclass(frozen=True)
class Mutant:
    """One wrong idea, as a replacement of text in the reference.

    Args:
        task: the task whose tests must kill it, for example "1.1.3".
        idea: the wrong idea in a few words.
        file: the file that holds it, in the folder of its part: "attention.py", or "../x.py" for one that both ports
            share.
        both: (old, new) when the same edit serves both ports, where `xp.` is the library of each; `old` occurs exactly
            once.
        mlx, torch: (old, new) for one port.
        serving, native: (old, new) in the policy or in the kernels, which both ports share: judged once.
        inside: the function to look in, for example "RoPE.__call__"; the whole file when None.
    """

    task: str
    idea: str
    file: str
    both: Edit | None = None
    mlx: Edit | None = None
    torch: Edit | None = None
    serving: Edit | None = None
    native: Edit | None = None
    inside: str | None = None

    @property
    def address(self) -> Task:
        return parse_task(self.task)

    def edits(self) -> dict[str, Edit]:
        """The edit per part."""
        edits = {"mlx": self.mlx, "torch": self.torch, "serving": self.serving, "native": self.native}
        if self.both:
            edits |= {port: _in_words_of(port, self.both) for port in LIBRARIES}
        return {part: edit for part, edit in edits.items() if edit}

    def mutate(self, part: str) -> dict:
        """The texts to overlay. Raises ValueError when the reference no longer has the text once."""
        old, new = self.edits()[part]
        path = Path(normpath(REFERENCE / PARTS[part] / self.file))
        before, text, after = _around(path, self.inside)
        if text.count(old) != 1:
            where = f"{self.inside or 'it'} has {old!r} {text.count(old)} times"
            raise ValueError(f"{path.parent.name}/{self.file}: {where}; a mutant needs it once")
        return {path: before + text.replace(old, new) + after}


def _in_words_of(port: str, edit: Edit) -> Edit:
    """An edit of both ports with the name of this one's library."""
    old, new = (re.sub(r"\bxp\.", f"{LIBRARIES[port]}.", text) for text in edit)
    return old, new


def wrong(
    task: str, file: str, *edits: tuple[str, ...], part: str = "both", inside: str | None = None
) -> list[Mutant]:
    """Wrong solutions of one task in one file, a row for each.

    Args:
        edits: (idea, old, new), and where rows differ in it, the function to look in.
        part: "both", "serving" or "native".
        inside: the function to look in, for the rows that name none.
    """
    rows = ((idea, (old, new), place[0] if place else inside) for idea, old, new, *place in edits)
    return [Mutant(task, idea, file, inside=place, **{part: edit}) for idea, edit, place in rows]


def _around(path: Path, qualname: str | None) -> tuple[str, str, str]:
    """A file's text before, in and after a function. Raises ValueError when it has no such function."""
    source = path.read_text(encoding="utf-8")
    if qualname is None:
        return "", source, ""
    span = language_of(path).span_of(source, qualname)
    if span is None:
        raise ValueError(f"{path.name} has no function {qualname}")
    lines = source.splitlines(keepends=True)
    return "".join(lines[: span[0]]), "".join(lines[slice(*span)]), "".join(lines[span[1] :])


@dataclass
class Verdict:
    """The verdict of a task's tests on a mutant of one part: "killed", "survived", "crashed" or "stale"."""

    mutant: Mutant
    part: str
    status: str
    by: str


def mutants_of(day: Day) -> list[Mutant]:
    """The wrong solutions that a day lists."""
    return [mutant for file in day.files(FOLDER) for mutant in _listed_in(file)]


def _listed_in(file: Path) -> list[Mutant]:
    spec = spec_from_file_location(f"mutants_of_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


def judge(tests: DayTests, mutant: Mutant, part: str, backend: str | None = None) -> Verdict:
    """Run the tests of the mutant's own task on it, until the first that fails.

    Args:
        tests: collected tests, those of its day among them.
        part: where its edit is.
        backend: which port runs the tests; for an edit in a port always that port.
    """
    try:
        texts = mutant.mutate(part)
    except ValueError as error:
        return Verdict(mutant, part, "stale", str(error))
    tests.solution.put(texts)
    tests.failed_for.setdefault(mutant, _killers().get((mutant.task, mutant.idea, part), ""))
    last = tests.first_failure(mutant.address, part if part in BACKENDS else backend, mutant)
    status = {"passed": "survived", "failed": "killed"}.get(last.status, "crashed")
    return Verdict(mutant, part, status, f"{last.nodeid.split('::')[-1]}: {last.message}".splitlines()[0])


@cache
def _killers() -> dict[tuple[str, str, str], str]:
    """By task, idea and part: the first test that failed when the matrix was written. It is tried first."""
    tasks = json.loads(KILLS.read_text(encoding="utf-8"))["tasks"]
    return {
        (task, mutant["idea"], part): kills["tests"][int(first[0])]
        for task, kills in tasks.items()
        for mutant in kills["mutants"]
        for part, numbers in mutant.items()
        if part != "idea" and (first := re.match(r"\d+", numbers))
    }


def edits_of(chosen: Iterable[Day], backends: Iterable[str], console: Console) -> list[tuple[Mutant, str]]:
    """Every mutant of some days with each part that it edits and that this machine can test."""
    parts = _parts_here(backends)
    if "native" not in parts:
        console.print("not tested on this machine (needs c++): wrong solutions of part native")
    return [(m, part) for day in chosen for m in mutants_of(day) for part in m.edits() if part in parts]


def _parts_here(backends: Iterable[str]) -> list[str]:
    return [part for part in parts_of(backends) if part != "native" or "c++" in tools()]


def report_mutants(console: Console, only: Day | None, backends: list[str]) -> int:
    """Run every mutant with a progress bar; print killed/total per day and part, and each survivor."""
    chosen = [only] if only else days()
    work = edits_of(chosen, backends, console)
    verdicts = with_day_tests(
        chosen,
        backends,
        "ref",
        lambda tests: [judge(tests, *one, backends[0]) for one in track(work, "mutants", console=console)],
    )
    parts = _parts_here(backends)
    table = Table("day", *parts, box=None, pad_edge=False)
    for day in chosen:
        table.add_row(str(day), *(_score(verdicts, day, part) for part in parts))
    console.print(table)
    escaped = [verdict for verdict in verdicts if verdict.status != "killed"]
    for v in escaped:
        line = f"{v.status}: {v.mutant.task} {v.part}: {v.mutant.idea} ({v.by})"
        console.print(line, style="red", markup=False)
    wrong_counts = [line for day in chosen for line in miscounted(day)]
    for line in wrong_counts:
        console.print(line, style="red")
    return 1 if escaped or wrong_counts else 0


def miscounted(day: Day) -> list[str]:
    """A line if a day lists too few mutants, and one for each of its tasks that has too many."""
    per_task = Counter(mutant.address for mutant in mutants_of(day))
    few = [f"day {day} lists fewer than {AT_LEAST} mutants"] if per_task.total() < AT_LEAST else []
    many = [task for task, count in sorted(per_task.items()) if count > AT_MOST]
    return few + [f"task {task} lists more than {AT_MOST} mutants" for task in many]


def _score(verdicts: list[Verdict], day: Day, part: str) -> str:
    results = [v.status for v in verdicts if v.mutant.address.of_day == day and v.part == part]
    return f"{results.count('killed')}/{len(results)} killed" if results else "–"
