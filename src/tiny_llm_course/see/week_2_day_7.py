"""The screens of Day 2.7, one per sitting: stalls, chunk sizes, and the order of requests.

A screen runs the learner's own scheduler, and no code of a later sitting.
"""

from rich.console import Console

from tiny_llm_engine.solutions.port import Port

from . import chunk_sizes, stalls_drawn, who_goes_first
from .chunk_costs import MEASURED as OF_MEMORY
from .chunk_costs import show_activation_memory, show_lazy_chunks

SHOWN_ON = "torch"
MEASURED = (*OF_MEMORY, *chunk_sizes.MEASURED)


def cut_and_schedule(b: Port, console: Console) -> None:
    """Show two timelines of the same requests, the stalls predicted and counted, and a chunk's mask."""
    stalls_drawn.show_timelines(b.serving, console)
    stalls_drawn.show_stalls(b.serving, console)
    console.print()
    stalls_drawn.show_mask(b, console)


def how_large(b: Port, console: Console) -> None:
    """Show the gain and cost of each chunk size, the choices of two policies, and peak memory."""
    chunk_sizes.show_measured(b, b.serving, console)
    console.print()
    chunk_sizes.show_choices(b.serving, console)
    console.print()
    show_activation_memory(b, console)


def who_goes_first_drawn(b: Port, console: Console) -> None:
    """Show a short prompt after a long one under three policies, and how patience bounds the wait."""
    who_goes_first.show_timelines(b.serving, console)
    who_goes_first.show_two_promises(b.serving, console)
    console.print()
    who_goes_first.show_patience(b.serving, console)


SITTINGS = (cut_and_schedule, how_large, who_goes_first_drawn)


def show(b: Port, console: Console) -> None:
    """Show the screens of all sittings."""
    for number, sitting in enumerate(SITTINGS, 1):
        console.rule(f"sitting {number}")
        sitting(b, console)


def show_mlx(b: Port, console: Console) -> None:
    """Show the memory that a missing evaluation between two chunks costs."""
    show_lazy_chunks(b, console)
