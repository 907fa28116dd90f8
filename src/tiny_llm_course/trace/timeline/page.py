"""Two runs as one page that needs no network: both timelines, their figures, and a slider for the chunk size.

What it shows is computed here; its looks are in `page.html.j2`, `page.css` and `page.js`.
"""

from collections.abc import Sequence
from pathlib import Path

from tiny_llm_engine.models.files import Json

from ..simulation.cost_fit import measured_cost
from ..simulation.step_cost import AdditiveCost, Line
from ..template import render
from ..text import counted
from ..trace import WHOLE, Lane, Trace
from . import bars
from .words import MEANINGS, Row, duration


def html(
    about: str,
    before: Trace,
    after: Trace,
    rows: Sequence[Row],
    runs: Sequence[Trace],
    costs: AdditiveCost | None,
) -> str:
    """The page: two runs with their figures, and the same requests in virtual time, in chunks of every size.

    `costs` are those of the virtual steps if they were fitted to the two runs, None for the measured ones.
    """
    chosen = next((i for i, run in enumerate(runs) if run.chunk == after.chunk), len(runs) - 1)
    kinds = {span.kind for run in (before, after, *runs) for span in run.spans}
    return render(
        Path(__file__).with_name("page.html.j2"),
        chart=bars,
        about=about,
        before=before,
        after=after,
        rows=rows,
        runs=runs,
        chosen=chosen,
        legend=[(kind, meaning) for kind, meaning in MEANINGS.items() if kind in kinds],
        sizes=[_size(run) for run in runs],
        costs=_costs([(before, runs[-1]), (after, runs[chosen])], costs),
        source=_source(after.provenance),
    )


def _size(run: Trace) -> list[str]:
    """A row of the table of all sizes."""
    longest_prompt: Lane = max(run.lanes, key=lambda lane: lane.prompt_tokens)
    size = "whole" if run.chunk >= WHOLE else str(run.chunk)
    times = map(duration, (run.longest_gap, run.tbt_p99, longest_prompt.ttft, run.end))
    return [size, str(run.stall_steps), *times]


def _source(found: Json) -> str:
    """The provenance of two runs."""
    if found.get("virtual_time"):
        return f"{found['model']} model, virtual time"
    machine = found["machine"]
    commit = f"commit {found['commit']}{', changed since' if found['changed_since_commit'] else ''}"
    load = "" if machine["load_before"] is None else f", load {machine['load_before']} before"
    return (
        f"{found['model']}, {found['solution']}, {found['port']} port, {found['device']}; {machine['processor']}, "
        f"{counted(machine['cores'], 'core')}{load}; {found['date']}, {commit}"
    )


def _costs(pairs: Sequence[tuple[Trace, Trace]], costs: AdditiveCost | None) -> str:
    """The costs of the steps in the virtual runs, and how near these come to the measured ones in each pair."""
    used = costs or measured_cost()
    text = f"A chunk takes {_line(used.prefill)}; a decode step {_line(used.decode)}."
    if costs is None:
        return f"{text} These are the simulated model's own figures."
    near = "; ".join(
        f"{virtual.title}: {duration(virtual.end)}, measured {duration(measured.end)}"
        for measured, virtual in pairs
    )
    return f"{text} This was fitted to the steps of both runs above. What it gives for them: {near}."


def _line(line: Line) -> str:
    """A cost line as text, each term in a unit that fits it."""
    return f"{_small(line.a)} + {_small(line.b)} a token + {_small(line.c)} for each token that one sees"


def _small(seconds: float) -> str:
    """Seconds as text: "12.0 ms", "140 µs", "0.16 µs"."""
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
