"""Two timelines for the book, as a drawing and as terminal output.

They run in virtual time, so that every machine draws the same.
"""

from pathlib import Path

from rich.console import Console

from tiny_llm_course.trace.template import render
from tiny_llm_course.trace.timeline.comparison import Comparison
from tiny_llm_course.trace.workload import among_decodes
from tiny_llm_engine.solutions.solution import resolve_serving

COMMAND = "pdm run timeline --simulate"
TITLE = "Six requests, one of them long: computed whole it stops the others, computed in chunks it does not"


def show(console: Console) -> None:
    """Print the command's output."""
    Comparison.of(among_decodes(), resolve_serving("ref")).show(console)


def drawing() -> str:
    """An SVG without colours of its own, to be included in a `<figure class="diagram">`."""
    found = Comparison.of(among_decodes(), resolve_serving("ref"))
    runs = [found.before, found.after]
    end = max(run.end for run in runs)
    return render(Path(__file__).with_name("timeline.svg.j2"), title=TITLE, runs=runs, end=end)
