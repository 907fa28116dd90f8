"""Tasks that have another number than in an earlier edition of the course."""

from tiny_llm_engine.machine.repo import PRIVATE

from .address import Day

RENUMBERED = {
    Day(2, 1): "Day 2.1 begins with a new task: tasks 2.1.1 to 2.1.6 of earlier editions are 2.1.2 to 2.1.7",
}


def say_renumbered(day: Day) -> None:
    """Print, the first time in this folder, which tasks of a day have new numbers."""
    note = PRIVATE / f"renumbered-{day}"
    if day in RENUMBERED and not note.exists():
        PRIVATE.mkdir(exist_ok=True)
        note.touch()
        print(RENUMBERED[day])
