"""One run of `eval-tiny-model`: a model on suites of cases, as a column of its table."""

from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from .evaluation import Logits, exact_answers, generates_exactly, misses_allowed
from .evaluation_cases import EvaluationCase, Suite

GENERATED = 20  # cases that are also decoded step by step


@dataclass
class EvaluationRun:
    """One column of the table: port, dtype, suites, and the number of exact answers in each."""

    name: str
    suites: list[Suite]
    exact: list[int] = field(default_factory=list)
    generated_alike: bool = True

    def failures(self) -> list[str]:
        """One line for each target that was missed."""
        lines = [
            f"{self.name}: {suite.name}: {exact} of {suite.size} exact, the target is {suite.target:.0%}"
            for suite, exact in zip(self.suites, self.exact, strict=True)
            if suite.target is not None and suite.size - exact > misses_allowed(suite)
        ]
        if not self.generated_alike:
            lines.append(f"{self.name}: decoding step by step disagrees with one forward pass")
        return lines


def evaluate(logits: Logits, run: EvaluationRun, console: Console) -> None:
    """Fill in `run.exact` and `run.generated_alike`, with a progress bar."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(run.name, total=sum(suite.size for suite in run.suites) + GENERATED)
        verdicts = []
        for suite in run.suites:
            progress.update(bar, description=f"{run.name}: {suite.name}")
            verdicts.append(exact_answers(logits, suite.cases, lambda done: progress.advance(bar, done)))
        run.exact = [sum(verdict) for verdict in verdicts]
        progress.update(bar, description=f"{run.name}: step by step")
        sample = _sample(run.suites, verdicts)
        for case, verdict in sample:
            run.generated_alike &= generates_exactly(logits, case) == verdict
            progress.advance(bar)


def _sample(suites: list[Suite], verdicts: list[list[bool]]) -> list[tuple[EvaluationCase, bool]]:
    """Half questions and half short look-ups, each with its verdict."""
    half = GENERATED // 2
    sample = []
    for suite, exact in zip(suites, verdicts, strict=True):
        if suite.name in ("questions as in training", "look-ups, 20 lines"):
            pairs = list(zip(suite.cases, exact, strict=True))
            sample += pairs[:: max(1, len(pairs) // half)][:half]
    return sample


def table(runs: list[EvaluationRun]) -> Table:
    """Rows are suites, columns are runs, cells the share of exact answers."""
    result = Table(title="Exact answers, greedy")
    result.add_column("asked")
    result.add_column("target", justify="right")
    for run in runs:
        result.add_column(run.name, justify="right")
    for row, suite in enumerate(runs[0].suites):
        target = "" if suite.target is None else f"{suite.target:.0%}"
        result.add_row(suite.name, target, *(f"{run.exact[row]}/{run.suites[row].size}" for run in runs))
    return result


def report(runs: list[EvaluationRun]) -> dict:
    """The figures of the table, for a file."""
    return {
        run.name: {
            suite.name: {"exact": exact, "cases": suite.size, "target": suite.target}
            for suite, exact in zip(run.suites, run.exact, strict=True)
        }
        for run in runs
    }
