"""The screens of the days, drawn by the reference.

A day's screen is `show(b, console)` of `tiny_llm_course/see/week_W_day_D.py`, on a console of fixed width; a day in
several sittings has a screen for each function in its `SITTINGS` (`week2-07a.html`). What only one port has to show is
`show_mlx` or `show_torch`, a screen of its own (`week2-01-torch.html`).
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator
from string import ascii_lowercase
from types import ModuleType

from tiny_llm_course import see
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port

from .console import fragment, recording_console

SEE_COLUMNS = 80  # the width of a standard terminal


def day_screens(backend: str, modules: Iterable[ModuleType] | None = None) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every day that has a screen, drawn by the reference on one port."""
    yield from _drawn(backend, modules, "show", "", "pdm run see {day}")


def port_screens(backend: str, modules: Iterable[ModuleType] | None = None) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of what a day shows on this port alone, below its screen."""
    yield from _drawn(
        backend, modules, f"show_{backend}", f"-{backend}", f"pdm run see {{day}} --backend {backend}"
    )


def _drawn(backend: str, modules: Iterable[ModuleType] | None, function: str, ending: str, command: str):
    port = Port("tiny_llm_ref", backend, device="cpu")
    for module in see_modules() if modules is None else modules:
        week, day = re.findall(r"\d+", module.__name__)[-2:]
        for letter, option, show in _shows(module, function):
            console = recording_console(command.format(day=f"{week}.{day}{option}"), SEE_COLUMNS)
            show(port, console)
            measured = getattr(module, "MEASURED", ())
            yield f"week{week}-{int(day):02}{letter}{ending}", fragment(console, measured)


def _shows(module: ModuleType, function: str) -> Iterator[tuple[str, str, Callable]]:
    """A day's screens with the letter of the page and the option of the command; both are empty for a small day."""
    sittings = getattr(module, "SITTINGS", ()) if function == "show" else ()
    for number, (letter, sitting) in enumerate(zip(ascii_lowercase, sittings, strict=False), 1):
        yield letter, f" --sitting {number}", sitting
    if not sittings and (show := getattr(module, function, None)):
        yield "", "", show


def shown_on(module: ModuleType) -> str:
    """The port whose measurements the book shows: `SHOWN_ON` of the day, where it is installed."""
    wanted, installed = getattr(module, "SHOWN_ON", None), installed_backends()
    return wanted if wanted in installed else installed[0]


def see_modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(see.__path__):
        if re.fullmatch(r"week_\d+_day_\d+", info.name):
            yield importlib.import_module(f"{see.__name__}.{info.name}")
