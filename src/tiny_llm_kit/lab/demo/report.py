"""What the demo leaves on the terminal: each request under each policy, and what chunks have won and lost."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..bench.chunked_prefill_report import NEAR, percent
from .outcome import Outcome

# What less is better of; text, and where it is known.
COMPARED = (
    ("longest gap", lambda outcome: outcome.longest_gap),
    ("short TTFT", lambda outcome: outcome.short_ttft),
    ("long TTFT", lambda outcome: outcome.long_ttft),
    ("total time", lambda outcome: outcome.total),
)


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def table(outcomes: Sequence[Outcome]) -> Table:
    """A row a request: its tokens, and of each policy the seconds to its first token and to its end."""
    shown = Table(box=None, pad_edge=False)
    shown.add_column("\nrequest", no_wrap=True)
    shown.add_column("text\ntokens", justify="right")
    shown.add_column("prompt\ntokens", justify="right")
    for outcome in outcomes:
        shown.add_column(f"{outcome.policy.name}\nTTFT", justify="right", no_wrap=True)
        shown.add_column("\nfinish", justify="right", no_wrap=True)
    for index, asked in enumerate(outcomes[0].asked):
        cells = [seconds(s) for o in outcomes for s in (o.ttft(index), o.latency(index))]
        tokens = len(outcomes[0].requests[index].prompt_tokens)
        shown.add_row(asked.name, f"{asked.tokens:,}", f"{tokens:,}", *cells)
    shown.add_row()
    for name, value in COMPARED:
        shown.add_row(name, "", "", *(c for o in outcomes for c in (seconds(value(o)), "")), style="bold")
    return shown


def summary(baseline: Outcome, outcome: Outcome) -> list[str]:
    """What was measured, and whether chunks have won or lost by it. TTFT is the median of the prompts."""
    changes = []
    for name, value in COMPARED:
        mine, other = value(outcome), value(baseline)
        if mine is not None and other:
            changes.append((name, mine / other - 1))
    if not changes:
        return [f"{outcome.policy.name}: nothing to compare"]
    figures = ", ".join(f"{name} {percent(share)}" for name, share in changes)
    won = [name for name, share in changes if share <= -NEAR]
    lost = [name for name, share in changes if share >= NEAR]
    verdict = f"won: {', '.join(won) or 'nothing'}; lost: {', '.join(lost) or 'nothing'}"
    return [f"{outcome.policy.name} against {baseline.policy.name}:", f"  {figures}", f"  {verdict}"]


def same_answers(outcomes: Sequence[Outcome]) -> str:
    """Whether the policies gave the same texts: they decide when something is computed, not what."""
    texts = {tuple(request.text for request in outcome.requests) for outcome in outcomes}
    return "the same answers under every policy" if len(texts) == 1 else "the answers differ between policies"


def show(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Table and summary of the policies that came to their end."""
    if not outcomes:
        return
    console.print(
        "\nSeconds from sending a request to its first token (TTFT) and to its end; one run each.\n"
    )
    console.print(table(outcomes))
    console.print()
    for outcome in outcomes[1:]:
        for line in summary(outcomes[0], outcome):
            console.print(line, soft_wrap=True)
    console.print(f"{same_answers(outcomes)}; with medians: `pdm run bench-chunked-prefill`")
