"""The screen of `pdm run batch-main`: its table at one moment of the run, then all that it prints at the end."""

from rich.console import Console
from rich.text import Text

from tiny_llm_course.capabilities import load
from tiny_llm_course.trace.batch.job import BatchJob, make_job
from tiny_llm_course.trace.batch.view import SlotBoard
from tiny_llm_course.trace.live import LineView
from tiny_llm_course.trace.prompts import QUESTIONS
from tiny_llm_course.trace.recorder import number_of
from tiny_llm_course.trace.serve import Serving
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import Event

COMMAND = "pdm run batch-main"
# Text that differs between runs: measurements, and the device.
MEASURED = (r"\d+\.\d(?= (?:ms|tokens/s))", r"(?:mlx|torch) · cpu")
# The live table is transient. The book shows it when this prompt's prefill begins, halfway through the run.
MOMENT = 8


class Still(LineView):
    """A view that shows the table once."""

    def __init__(self, job: BatchJob, console: Console):
        super().__init__(console)
        self._board = SlotBoard(job.requests, job.slots)

    def __call__(self, event: Event) -> None:
        self._board(event)
        if event.kind == "prefill" and number_of(event.request) + 1 == MOMENT:
            self._console.print(self._board, Text("⋮", "dim"), sep="\n")


def show(backend: str, console: Console) -> None:
    """Run the command on one port's CPU, and keep one moment of the live table."""
    serving = Serving(resolve_serving("ref"), *load(backend=backend, device="cpu"))
    make_job(serving, backend, QUESTIONS).report(Still, console)
