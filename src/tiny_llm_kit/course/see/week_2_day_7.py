"""The screens of Day 2.7, one for each sitting: stalls drawn and counted, chunk sizes, and who goes first.

A screen runs the learner's own scheduler, and nothing of a later sitting.
"""

from rich.console import Console

from ...engine.port import resolve_serving
from . import chunk_sizes, stalls_drawn, who_goes_first
from .chunk_costs import MEASURED as OF_MEMORY
from .chunk_costs import show_activation_memory, show_lazy_chunks

SHOWN_ON = "torch"
MEASURED = (*OF_MEMORY, *chunk_sizes.MEASURED)


def cut_and_schedule(b, console: Console) -> None:
    """Two timelines of the same requests, the stalls predicted and counted, and the mask of a chunk."""
    stalls_drawn.show_timelines(_names(b), console)
    stalls_drawn.show_stalls(_names(b), console)
    console.print()
    stalls_drawn.show_mask(b, console)


def how_large(b, console: Console) -> None:
    """What each chunk size costs and wins on the shipped model, what the two policies choose, and peak memory."""
    chunk_sizes.show_measured(b, _names(b), console)
    console.print()
    chunk_sizes.show_choices(_names(b), console)
    console.print()
    show_activation_memory(b, console)


def who_goes_first_drawn(b, console: Console) -> None:
    """A short prompt that arrives after a long one, under three policies, and how patience bounds the wait."""
    who_goes_first.show_timelines(_names(b), console)
    who_goes_first.show_two_promises(_names(b), console)
    console.print()
    who_goes_first.show_patience(_names(b), console)


SITTINGS = (cut_and_schedule, how_large, who_goes_first_drawn)


def show(b, console: Console) -> None:
    """All sittings."""
    for number, sitting in enumerate(SITTINGS, 1):
        console.rule(f"sitting {number}")
        sitting(b, console)


def show_mlx(b, console: Console) -> None:
    """What it costs to forget the evaluation between two chunks."""
    show_lazy_chunks(b, console)


def _names(b):
    return resolve_serving(b.solution.__name__.partition(".")[0])
