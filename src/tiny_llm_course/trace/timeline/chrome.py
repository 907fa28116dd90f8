"""A trace in the Trace Event Format of Chrome: `ui.perfetto.dev` and `chrome://tracing` open it.

A process is a run, a thread is a request. Times are in µs. The format: Google, "Trace Event Format", 2016.
"""

import json
from collections.abc import Iterator, Sequence

from tiny_llm_engine.models.files import Json

from ..trace import Lane, Trace
from .words import described, lane_title

# Names of colours that `chrome://tracing` knows; Perfetto chooses its own.
COLOURS = {"chunk": "thread_state_iowait", "decode": "good", "stall": "terrible", "waiting": "grey"}


def chrome_trace(traces: Sequence[Trace]) -> Json:
    """All runs in one file."""
    events = [event for number, trace in enumerate(traces, start=1) for event in _run(trace, number)]
    summaries = {trace.title: trace.summary() for trace in traces}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": summaries}


def text(traces: Sequence[Trace]) -> str:
    """The text of a trace file, an event per line."""
    whole = chrome_trace(traces)
    events = ",\n".join(map(json.dumps, whole.pop("traceEvents")))
    rest = json.dumps(whole).removeprefix("{")
    return f'{{"traceEvents": [\n{events}\n],\n{rest}\n'


def _run(trace: Trace, pid: int) -> Iterator[Json]:
    yield _name("process", pid, 0, trace.title)
    for lane in trace.lanes:
        yield _name("thread", pid, _tid(lane.request), lane_title(lane))
        yield from _moments(lane, pid)
    for span, name, details in described(trace):
        start = _us(span.start)
        yield {
            "ph": "X",
            "name": name,
            "cat": span.kind,
            "pid": pid,
            "tid": _tid(span.request),
            "ts": start,
            "dur": _us(span.end) - start,
            "args": {"tokens": span.tokens, "context": span.context, "what": details},
            **({"cname": COLOURS[span.kind]} if span.kind in COLOURS else {}),
        }


def _moments(lane: Lane, pid: int) -> Iterator[Json]:
    times = {"arrive": lane.arrival_time, "first token": lane.first_token_time}
    times[f"finish: {lane.reason}"] = lane.finished_time
    for name, time in times.items():
        if time is not None:
            yield {"ph": "i", "s": "t", "name": name, "pid": pid, "tid": _tid(lane.request), "ts": _us(time)}


def _name(kind: str, pid: int, tid: int, name: str) -> Json:
    return {"ph": "M", "name": f"{kind}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _tid(request: int) -> int:
    """The thread number of a lane, from 1: viewers take 0 for the process itself."""
    return request + 1


def _us(seconds: float) -> int:
    """Whole microseconds.

    With fractions a span may end slightly after its neighbour begins, and viewers would nest the two.
    """
    return round(1e6 * seconds)
