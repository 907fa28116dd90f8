"""Texts of the drawings: spans, requests and figures."""

from collections import Counter

from ..text import counted
from ..trace import Lane, Span, Trace

Row = tuple[str, str, str, str]  # of a figure: its name, both values, and their change
MEANINGS = {
    "chunk": "a chunk of its prompt",
    "decode": "a step that gives it a token",
    "waiting": "waits for one chunk, as agreed",
    "stall": "stall: waits for more than was agreed",
    "queued": "its prompt waits for its turn",
    "paused": "its prompt makes room for a shorter one",
}


def described(trace: Trace) -> list[tuple[Span, str, str]]:
    """Every span with its name and its details."""
    totals = Counter(span.request for span in trace.spans if span.kind == "chunk")
    begun: Counter[int] = Counter()
    found = []
    for span in trace.spans:
        name, total = span.kind, totals[span.request]
        if span.kind == "chunk":
            begun[span.request] += 1
            name = f"chunk {begun[span.request]} of {total}" if total > 1 else "whole prompt"
        found.append((span, name, _details(trace, span)))
    return found


def _details(trace: Trace, span: Span) -> str:
    tokens = counted(span.tokens, "token")
    texts = {
        "chunk": f"{tokens} after {span.context:,}",
        "decode": f"1 token, {span.context:,} in the cache; {span.tokens} running",
        "waiting": f"{tokens} of a prompt",
        "stall": f"{tokens} of prompts, {trace.prefill_step:,} were agreed",
    }
    return ", ".join([*filter(None, [texts.get(span.kind)]), duration(span.seconds)])


def duration(seconds: float | None) -> str:
    """Seconds as text: "12.3 ms", "1.23 s"; a dash for None."""
    if seconds is None:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def lane_title(lane: Lane) -> str:
    """The title of a request's lane."""
    return f"request {lane.name}: {counted(lane.prompt_tokens, 'token')} of prompt, {len(lane.token_times)} of answer"


def row(name: str, before: float | None, after: float | None) -> Row:
    """A figure in seconds, and its relative change, such as "−85 %" or "+12 %"."""
    change = ""
    if before and after is not None:
        percent = round(100 * (after / before - 1))
        change = f"{'−' if percent < 0 else '+'}{abs(percent)} %" if percent else "the same"
    return name, duration(before), duration(after), change


def figures(before: Trace, after: Trace) -> list[Row]:
    """The figures that are compared; for stalls the numbers suffice."""
    return [
        ("stall steps", str(before.stall_steps), str(after.stall_steps), ""),
        row("longest gap", before.longest_gap, after.longest_gap),
        row("TBT p99", before.tbt_p99, after.tbt_p99),
        row("TTFT of the long prompt", before.named("long").ttft, after.named("long").ttft),
        row("TTFT of the short one after it", before.named("late").ttft, after.named("late").ttft),
        row("total time", before.end, after.end),
    ]
