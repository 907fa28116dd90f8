"""The live widgets of Week 2 Day 7 in Python: their scripts, step costs and static pictures.

The widgets are plain JavaScript in `book/src/widgets`, loaded by the pages that include them. Here its pure files run
in an engine, so that the schedule can be tested, and the picture in the page is what the page would draw.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.trace.provenance import save, settled_load
from tiny_llm_kit.trace.simulation.cost_fit import MEASURED, sealed

from . import step_cost

FOLDER = MEASURED.parent
SCRIPTS = ("chunked-prefill-schedule", "chunked-prefill-drawing")
# Settings of the static pictures: the initial positions of the sliders.
SCENE = {"promptTokens": 2048, "chunk": 128, "promise": 128, "decodes": 4, "answerTokens": 32, "context": 256}
LATE = {"tokens": 8, "arrives": 0.1}
WIDTH = 620


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
        raise RuntimeError("mini-racer is missing, which runs the widget's scripts: `pdm install`") from None
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
