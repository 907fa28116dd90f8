"""The screen of `pdm run batch-main`: its table at one moment of the run, then all that it prints at the end."""

from typing import Any

from rich.console import Console
from rich.text import Text

from ...commands import batch_main
from ...lab.batch.board import Board

COMMAND = "pdm run batch-main"
# What a run measures, and where it runs.
MEASURED = (r"\d+\.\d(?= (?:ms|tokens/s))", r"(?:mlx|torch) · cpu")
# The table of a terminal comes and goes. The book shows it when this prompt's prefill begins: the run is half done.
MOMENT = 8


class Still:
    """A view that shows the table once.

    Args:
        board: what is drawn.
        console: where to.
    """

    def __init__(self, board: Board, console: Console):
        self._board, self._console = board, console

    def __enter__(self) -> "Still":
        return self

    def __call__(self, event: Any) -> None:
        self._board(event)
        if event.kind == "prefill" and event.request.prompt_idx + 1 == MOMENT:
            self._console.print(self._board, Text("⋮", "dim"), sep="\n")

    def __exit__(self, *exception: object) -> None:
        pass


def show(backend: str, console: Console) -> None:
    """The command on one port's CPU; what a terminal shows and forgets is kept at one moment."""
    options = batch_main.parse(["--backend", backend, "--device", "cpu"])
    batch_main.run(options, console, lambda job, console: Still(Board(job.requests, job.slots), console))
