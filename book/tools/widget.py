"""The live widgets of Week 2 Day 7 in Python: their scripts, step costs and static pictures.

The widgets are plain JavaScript in `book/src/widgets`, loaded by the pages that include them. Here its pure files run
in an engine, so that the schedule can be tested, and the picture in the page is what the page would draw.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.trace.provenance import load, save
from tiny_llm_course.trace.simulation.cost_fit import MEASURED, sealed
from tiny_llm_engine.solutions.port import Port

from . import step_cost

FOLDER = MEASURED.parent
SCRIPTS = (
    "svg-parts",
    "chunked-prefill-schedule",
    "chunked-prefill-drawing",
    "policies-drawing",
    "roofline",
    "step-player",
)
# Settings of the static pictures: the initial positions of the sliders.
SCENE = {"promptTokens": 2048, "chunk": 128, "promise": 128, "decodes": 4, "answerTokens": 32, "context": 256}
LATE = {"tokens": 8, "arrives": 0.1}
WIDTH = 620
QUIET = 0.1  # the load above which a machine is too busy for figures that stay


@contextmanager
def scripts(changed: Mapping[str, str] | None = None) -> Iterator[Callable[[str], Any]]:
    """A JavaScript engine that has loaded the widgets' pure files; calling it evaluates an expression.

    Args:
        changed: replacement text by file name, for tests.

    Raises:
        RuntimeError: mini-racer, the JavaScript engine, is not installed.
    """
    try:
        from py_mini_racer import MiniRacer
    except ImportError:
        raise RuntimeError(
            f"mini-racer is missing, which runs the widget's scripts: `{authors_tools.INSTALL}`"
        ) from None
    texts = {name: (FOLDER / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS}
    with MiniRacer() as engine:
        for text in {**texts, **(changed or {})}.values():
            engine.eval(text)
        yield lambda expression: json.loads(str(engine.eval(f"JSON.stringify({expression})")))


def picture() -> str:
    """The SVG of whole prompts and chunks, for readers without JavaScript."""
    return _picture("chunks-widget", ["whole", "chunked"])


def late_picture() -> str:
    """The SVG of a late, short prompt under three policies, for readers without JavaScript."""
    return _picture("late-widget", ["whole", "chunked", "pausing"], late=LATE)


def _picture(name: str, policies: list[str], **more: Any) -> str:
    scene = json.dumps({**SCENE, **more, "cost": sealed()})
    with scripts() as run:
        runs = f"chunkedPrefillSchedule.compare({scene})"
        return run(f"chunkedPrefillDrawing.draw({runs}, {WIDTH}, '{name}', {policies})")


def settled_load(seconds: int = 300) -> float:
    """Wait until the machine is quiet, for so many seconds at most, and return its load then.

    Raises:
        ValueError: it stays busy.
    """
    now = load() or 0.0
    for _ in range(seconds // 5):
        if now < QUIET:
            return now
        time.sleep(5)
        now = load() or 0.0
    raise ValueError(f"the load is {now}: end what else runs here until it is below {QUIET}, and try again")


def measure(
    backend: str, rounds: int, progress: Callable = iter, settle: Callable[[], float] = settled_load
) -> None:
    """Measure the cost of a step on this machine, and save it for the page.

    The previous measurement is kept if the machine is busy.

    Raises:
        ValueError: the machine is busy before or after, or was too busy for a line.
    """
    before = settle()
    result = step_cost.measure(Port("tiny_llm_ref", backend, device="cpu"), rounds, progress=progress)
    result["provenance"]["machine"].update(load_before=before, load_after=settle())
    save(result, MEASURED.stem, FOLDER)
