"""Texts of the drawings: spans, requests and figures."""

from collections import Counter

from ..trace import Lane, Span, Trace

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
    counted: Counter[int] = Counter()
    found = []
    for span in trace.spans:
        name, total = span.kind, totals[span.request]
        if span.kind == "chunk":
            counted[span.request] += 1
            name = f"chunk {counted[span.request]} of {total}" if total > 1 else "whole prompt"
        found.append((span, name, _details(trace, span)))
    return found


def _details(trace: Trace, span: Span) -> str:
    texts = {
        "chunk": f"{span.tokens:,} tokens after {span.context:,}",
        "decode": f"1 token, {span.context:,} in the cache; {span.tokens} running",
        "waiting": f"{span.tokens:,} tokens of a prompt",
        "stall": f"{span.tokens:,} tokens of prompts, {trace.prefill_step:,} were agreed",
    }
    return ", ".join([*filter(None, [texts.get(span.kind)]), duration(span.seconds)])


def duration(seconds: float | None) -> str:
    """Seconds as text: "12.3 ms", "1.23 s"; a dash for None."""
    if seconds is None:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def lane_title(lane: Lane) -> str:
    """The title of a request's lane."""
    return f"request {lane.name}: {lane.prompt_tokens:,} tokens of prompt, {len(lane.token_times)} of answer"
