"""Two runs as one page that needs no network: both timelines, their figures, and a slider for the chunk size."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ..simulated_model import Cost, Costs
from ..text import counted
from .bars import chart
from .figures import Figure
from .trace import WHOLE, Lane, Trace
from .words import MEANINGS, duration

HERE = Path(__file__).parent
# What the bars of the stalls are painted with: the pattern says it too, where colours do not.
STRIPES = """<svg class="stripes" width="0" height="0" aria-hidden="true"><defs>
<pattern id="stripes" width="9" height="9" patternUnits="userSpaceOnUse">
<rect class="ground" width="9" height="9"/><path class="stripe" d="M-2 2 2 -2 M0 9 9 0 M7 11 11 7"/>
</pattern></defs></svg>"""


def html(
    about: str,
    before: Trace,
    after: Trace,
    rows: Sequence[Figure],
    runs: Sequence[Trace],
    costs: Costs | None,
) -> str:
    """The page.

    Args:
        about: what is served, and by what.
        before, after: the two runs.
        rows: their figures.
        runs: the same requests in chunks of every size, in virtual time.
        costs: of the steps in these runs, where they were fitted to the two; None for those of `simulated_model`.
    """
    end = max(before.end, after.end)
    parts = [
        "<h1>Chunked prefill, before and after</h1>",
        f"<p>{escape(about)}</p>",
        _legend([before, after, *runs]),
        _run("before", before, end),
        _run("after", after, end),
        _table(["", before.title, after.title, "change"], [row.texts for row in rows]),
        _every_size(after, runs, costs),
        _footer(after),
    ]
    return _document("\n".join(parts))


def _footer(trace: Trace) -> str:
    """Where the two runs come from."""
    source = escape(json.dumps(trace.provenance, ensure_ascii=False))
    return f"<footer>The two runs at the top: <code>{source}</code></footer>"


def _document(body: str) -> str:
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Chunked prefill, before and after</title>
<style>
{style}</style>
</head>
<body>
<main>
{STRIPES}
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _legend(runs: Sequence[Trace]) -> str:
    """Of the kinds of spans that occur."""
    seen = {span.kind for run in runs for span in run.spans}
    items = "".join(
        f'<li><svg width="26" height="18" aria-hidden="true"><rect class="{kind}" width="26" height="18"/></svg>'
        f"{escape(meaning)}</li>"
        for kind, meaning in MEANINGS.items()
        if kind in seen
    )
    return f'<ul class="legend">{items}</ul>'


def _run(name: str, trace: Trace, end: float) -> str:
    stalled = "stalled" if trace.stall_steps else "smooth"
    return f"""<section>
<h2>{escape(f"{name}: {trace.title}")} <span class="{stalled}">{_stalls(trace)}</span></h2>
{_timeline(trace, end)}
</section>"""


def _stalls(trace: Trace) -> str:
    return counted(trace.stall_steps, "stall step")


def _timeline(trace: Trace, end: float) -> str:
    names = "".join(
        f"<li>{escape(lane.name)} <small>{lane.prompt_tokens:,}</small></li>" for lane in trace.lanes
    )
    times = "".join(f"<span>{duration(end * share) if share else '0'}</span>" for share in (0, 0.5, 1))
    return f"""<div class="timeline">
<ul class="names" aria-hidden="true">{names}</ul>
{chart(trace, end)}
<div class="axis">{times}</div>
<output class="say" aria-live="polite">Point at a bar, or focus a lane and use the arrow keys.</output>
</div>"""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], attributes: Sequence[str] = ()) -> str:
    """The first cell of a row is its heading."""
    titles = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
    lines = [
        f'<th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
        for row in rows
    ]
    marks = attributes or [""] * len(rows)
    body = "\n".join(f"<tr{mark}>{line}</tr>" for mark, line in zip(marks, lines, strict=True))
    return f"""<div class="scroll" tabindex="0"><table>
<thead><tr>{titles}</tr></thead>
<tbody>
{body}
</tbody></table></div>"""


def _every_size(after: Trace, runs: Sequence[Trace], costs: Costs | None) -> str:
    """The slider, one drawing for each of its places, and a table of all. Without a script the chosen size is shown."""
    chosen = next((i for i, run in enumerate(runs) if run.chunk == after.chunk), len(runs) - 1)
    end = max(run.end for run in runs)
    drawings = "\n".join(_size(run, end, i == chosen) for i, run in enumerate(runs))
    title = escape(runs[chosen].title)
    return f"""<section id="sizes">
<h2>Every chunk size, in virtual time</h2>
<p>{escape(_costs(after, runs[chosen], costs))} More than {after.prefill_step:,} tokens between two decode steps is a
stall in all of them.</p>
<p class="slider"><label for="chunk">Chunk size</label>
<input id="chunk" type="range" min="0" max="{len(runs) - 1}" step="1" value="{chosen}"
 aria-valuetext="{title}">
<output id="size" for="chunk">{title}</output></p>
{drawings}
{_sizes(runs, chosen)}
</section>"""


def _size(run: Trace, end: float, is_shown: bool) -> str:
    attributes = f'data-chunk="{run.chunk}" data-title="{escape(run.title)}"' + " hidden" * (not is_shown)
    return f'<div class="size" {attributes}>\n{_timeline(run, end)}\n</div>'


def _sizes(runs: Sequence[Trace], chosen: int) -> str:
    head = ["chunk", "stalls", "longest gap", "TBT p99", "TTFT long", "total"]
    rows = [
        [
            "whole" if run.chunk >= WHOLE else str(run.chunk),
            str(run.stall_steps),
            *map(duration, (run.longest_gap, run.tbt_p99, _longest_prompt(run).ttft, run.end)),
        ]
        for run in runs
    ]
    return _table(head, rows, [' class="chosen"' if i == chosen else "" for i in range(len(runs))])


def _longest_prompt(run: Trace) -> Lane:
    return max(run.lanes, key=lambda lane: lane.prompt_tokens)


def _costs(measured: Trace, virtual: Trace, costs: Costs | None) -> str:
    """What the steps of the virtual runs cost, and how near they come."""
    used = costs or Costs()
    text = f"A chunk takes {_cost(used.prefill)}; a decode step {_cost(used.decode)}."
    if costs is None:
        return f"{text} These are the simulated model's own figures."
    return (
        f"{text} This was fitted to the steps of the two runs above. By it, the run in {virtual.title} takes "
        f"{duration(virtual.end)}; {duration(measured.end)} were measured."
    )


def _cost(cost: Cost) -> str:
    """The line, each term in a unit that fits it."""
    return f"{_small(cost.a)} + {_small(cost.b)} a token + {_small(cost.c)} for each token that one sees"


def _small(seconds: float) -> str:
    """ "12.0 ms", "140 µs", "0.16 µs"."""
    return f"{1e3 * seconds:.1f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"
