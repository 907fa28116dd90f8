"""Parts of every report: the header, the tables of figures, speeds beside each other, and targets."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tiny_llm_course.trace.tables import figures_table
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.backends.samples import spread

OURS = "tiny-llm"  # what tables call our engine
BASELINES_AND_PORTS = ("torch", "mlx", "transformers", "llama-cpp-python", "xllamacpp", "mlx-lm")

SEVERAL_TOKENS = "TPOT: the time per token; TBT: between steps, which give several tokens"

Report = Iterator[
    RenderableType
]  # the parts of a result as its command prints them, a blank line between two


class Speed(NamedTuple):
    """The speed of one engine in one case."""

    tokens_per_second: float  # the median
    seconds: Sequence[float]  # the samples
    others: tuple[str, ...] = ()  # further cells of its row


Speeds = Mapping[str, Mapping[str, Speed]]  # by case and engine; the first engine is compared with the others


def header(result: Mapping[str, Any], what: str | None = None, others: str = "") -> str:
    """The model and its type, the machine and the versions, then the date and how it was measured.

    Args:
        what: instead of the model and its type.
        others: further facts on how it was measured.
    """
    plan, found = result["plan"], result["provenance"]
    machine, versions = found["machine"], found["versions"]
    known = [f"{name} {versions[name]}" for name in BASELINES_AND_PORTS if name in versions]
    place = machine["system"] if found["device"] == "cpu" else f"{found['device']}, {machine['system']}"
    rounds = counted(plan["rounds"], "round") if "rounds" in plan else ""
    load = f"load before {machine['load_before']}"
    what = what or ", ".join(filter(None, (model_name(plan), plan["dtype"])))
    return (
        f"{what}, {result['backend']} on {place}\n"
        f"{machine['processor']}, {machine['cores']} cores; {', '.join(known)}\n"
        f"{', '.join(filter(None, (found['date'], rounds, threads(plan), load, others)))}"
    )


def threads(plan: Mapping[str, Any]) -> str:
    """As "threads: 2", or "threads: 1 or 2" where the better one counts; empty where a plan has none."""
    found = plan.get("threads", ())
    numbers = [found] if isinstance(found, int) else found
    return f"threads: {' or '.join(map(str, numbers))}" if numbers else ""


def model_name(plan: Mapping[str, Any]) -> str:
    """The model, or the shape of its random weights; plans of older results lack some fields."""
    name = plan.get("config") or plan.get("model") or "tiny-qwen3"
    layers = f", {counted(plan['layers'], 'layer')}" if plan.get("layers") else ""
    is_random = plan.get("config") or plan.get("random_weights")
    return f"{name}{layers}{', random weights' if is_random else ''}"


def medians(rounds: int) -> str:
    """What the figures of a table are: of one round there is no median."""
    return "one round" if rounds == 1 else f"medians of {rounds} rounds"


def median(runs: Iterable[Mapping[str, Any]], key: str, digits: int, scale: float = 1) -> str:
    """The median of one figure, times `scale`; a dash where no run has it."""
    values = [run[key] for run in runs if run[key] is not None]
    return f"{scale * statistics.median(values):,.{digits}f}" if values else "–"


def noise(samples: Sequence[float]) -> str:
    """Half the distance between the quartiles, as a share of the median; a dash for one round."""
    return f"±{50 * spread([*samples]):.0f} %" if len(samples) > 1 else "–"


def results_table(headings: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> Table:
    """A table of a name and its figures in each row; the rows of our engine are bold."""
    table = figures_table(*headings, no_wrap=True)
    for name, *cells in rows:
        table.add_row(name, *cells, style="bold" if name == OURS else "")
    return table


def speeds_table(speeds: Speeds, what: str = "engine", *others: str) -> Table:
    """A table with a row for each engine in each case; `others` are the headings of further cells."""
    first = next(iter(next(iter(speeds.values()))))
    rows = (
        (
            name,
            case,
            f"{each.tokens_per_second:.1f}",
            noise(each.seconds),
            "" if name == first else f"{engines[first].tokens_per_second / each.tokens_per_second:.2f} ×",
            *each.others,
        )
        for case, engines in speeds.items()
        for name, each in engines.items()
    )
    return results_table((what, "case", "tokens/s", "spread", f"{first} is", *others), rows)


def fastest_baseline(speeds: Mapping[str, float]) -> str | None:
    """The fastest engine that is not ours in another way; None without one."""
    return max((name for name in speeds if not name.startswith(OURS)), key=speeds.__getitem__, default=None)


def targets(found: Iterable[tuple[str, bool]]) -> Text:
    """A line for each target: whether it was met, and what it says."""
    lines = (
        Text.assemble(("met   ", "green") if is_met else ("missed", "red"), f"  {text}")
        for text, is_met in found
    )
    return Text("\n").join(lines)
