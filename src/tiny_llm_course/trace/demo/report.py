"""The report of the demo: each request under each policy, and the gains and losses of chunks."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from ..chunk_sweep import NEAR, WITHOUT_A_FUSED_KERNEL, percent
from ..tables import figures_table
from ..text import counted, one_line, shortened
from ..workload import LONG, SHORT
from .device_watch import TOOLS
from .runs import Demo, PolicyRun

PROMISED = "3 to 5"  # in its readme
# Figures of which less is better: name -> function of a run.
COMPARED = {
    "longest gap": lambda run: run.trace.longest_gap,
    "short TTFT": lambda run: run.median_ttft(SHORT),
    "long TTFT": lambda run: run.median_ttft(LONG),
    "total time": lambda run: run.trace.end,
}
# Shown only in the table, because they follow from the others.
ALSO_SHOWN = {
    "short mean": lambda run: run.mean_latency(SHORT),
    "long mean": lambda run: run.mean_latency(LONG),
    "requests/s": lambda run: run.per_second(run.num_finished),
    "tokens/s": lambda run: run.per_second(run.trace.num_tokens),
    "cores busy": lambda run: run.use and run.use.cores,
    "memory MB": lambda run: run.use and run.use.memory,
}


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def introduce(console: Console, demo: Demo, what: str, when: str) -> None:
    """Print the requests, the model, and when they are sent."""
    device = demo.serving.model.device
    console.print(f"{what} on {device}; {counted(len(demo.specs), 'request')}, {when}:")
    for spec in demo.specs:
        size = "long text" if spec.kind == LONG else "question"
        console.print(f"  {spec.name}  {spec.text_tokens:>5,} tokens, {size}")
    if device in TOOLS:
        console.print(f"watch the device meanwhile, in another terminal: watch -n 1 {TOOLS[device]}")


def show_simple(console: Console, run: PolicyRun) -> None:
    """Print each prompt with its tokens and its answer, and the time of all together."""
    for number, (spec, request) in enumerate(zip(run.specs, run.requests, strict=True), 1):
        size = counted(spec.text_tokens, "token")
        console.print(f"\nPrompt {number} ({size}): {shortened(spec.text)}", markup=False, soft_wrap=True)
        console.print(f"Answer: {one_line(request.error or request.text)}", markup=False, soft_wrap=True)
    console.print(f"\nTotal: {seconds(run.trace.end)} s for {len(run.requests)} prompts")


def table(runs: Sequence[PolicyRun]) -> Table:
    """A table with a row per request: tokens, and per policy the seconds to first token and to the end."""
    shown = figures_table("\nrequest", "text\ntokens", "prompt\ntokens")
    shown.columns[0].no_wrap = True
    for run in runs:
        shown.add_column(f"{run.policy.name}\nTTFT", justify="right", no_wrap=True)
        shown.add_column("\nfinish", justify="right", no_wrap=True)
    for index, spec in enumerate(runs[0].specs):
        cells = [seconds(s) for o in runs for s in (o.ttft(index), o.latency(index))]
        tokens = len(runs[0].requests[index].prompt_tokens)
        shown.add_row(spec.name, f"{spec.text_tokens:,}", f"{tokens:,}", *cells)
    shown.add_row()
    for name, value in {**COMPARED, **ALSO_SHOWN}.items():
        shown.add_row(name, "", "", *(c for o in runs for c in (seconds(value(o)), "")), style="bold")
    return shown


def summary(baseline: PolicyRun, run: PolicyRun) -> list[str]:
    """Lines with a policy's changes against the baseline, and which gain or lose.

    TTFT is the median of the prompts.
    """
    both = {name: (value(run), value(baseline)) for name, value in COMPARED.items()}
    changes = {name: mine / other - 1 for name, (mine, other) in both.items() if mine is not None and other}
    if not changes:
        return [f"{run.policy.name}: nothing to compare"]
    figures = ", ".join(f"{name} {percent(share)}" for name, share in changes.items())
    won = [name for name, share in changes.items() if share <= -NEAR]
    lost = [name for name, share in changes.items() if share >= NEAR]
    verdict = f"won: {', '.join(won) or 'nothing'}; lost: {', '.join(lost) or 'nothing'}"
    return [f"{run.policy.name} against {baseline.policy.name}:", f"  {figures}", f"  {verdict}"]


def verdict(runs: Sequence[PolicyRun], alone: PolicyRun) -> list[str]:
    """Lines with each policy's throughput, as a multiple of that of one request at a time."""
    times = (f"{run.policy.name} {alone.trace.end / run.trace.end:.1f}" for run in runs if run.trace.end)
    return [
        f"throughput (one request at a time: 1): {', '.join(times)}",
        f"  A public demo promises {PROMISED} for chunks, and compares them with nothing.",
        "  What is gained is the gain of batching: chunks are there for the gaps.",
    ]


def same_answers(runs: Sequence[PolicyRun]) -> str:
    """A line on whether the policies gave the same texts.

    They decide when something is computed, not what.
    """
    texts = {tuple(request.text for request in run.requests) for run in runs}
    return "the same answers under every policy" if len(texts) == 1 else "the answers differ between policies"


def show(
    console: Console,
    runs: Sequence[PolicyRun],
    has_fused_attention: bool = True,
    alone: PolicyRun | None = None,
) -> None:
    """Print table and summary of the finished policies, and the effect of a missing fused attention.

    Args:
        alone: the same requests one by one, if they were served so.
    """
    if not runs:
        return
    console.print(
        "\nSeconds from sending a request to its first token (TTFT) and to its end; one run each.\n"
        "Below: medians of TTFT; short mean and long mean are mean times to the end;\n"
        "cores that computed, on average; the most memory in use.\n"
    )
    console.print(table(runs))
    console.print()
    for run in runs[1:]:
        for line in summary(runs[0], run):
            console.print(line, soft_wrap=True)
    for line in verdict(runs, alone) if alone else ():
        console.print(line, soft_wrap=True)
    if not has_fused_attention:
        console.print(WITHOUT_A_FUSED_KERNEL)
    console.print(f"{same_answers(runs)}; with medians:\n`pdm run bench-throughput --preset chunked-prefill`")
