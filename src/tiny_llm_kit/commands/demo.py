"""`pdm run demo`: long and short requests under three policies; all at once, or as they arrive."""

import argparse
import asyncio
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..lab.demo import knobs, report, stream, sync
from ..lab.demo.job import Job, Knobs
from ..lab.demo.outcome import Outcome
from ..lab.demo.policies import POLICIES, Policy
from ..lab.demo.prompts import requests
from ..lab.demo.view import Pieces, choose_view
from ..runtime.arguments import add_model_arguments, whole_number
from ..runtime.port import resolve_serving
from ..terminal import INTERRUPTED, ends_quietly, fail, interrupts_kept, replace_unknown_characters

CHOICES = {"1": "sync", "2": "async"}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run demo", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    add("--demo", choices=list(CHOICES.values()), help="no menu; without a terminal it is sync")
    add("--gap", type=float, default=0.1, metavar="S", help="async: seconds between two requests")
    add("--prefill-step", type=whole_number(1), default=Knobs.prefill_step, metavar="N")
    add("--batch-size", type=whole_number(1), default=Knobs.batch_size, metavar="N")
    add("--max-seq-len", type=whole_number(2), metavar="N", help="default: what the longest request needs")
    add("--reserved-decode-slots", type=whole_number(0), default=0, metavar="N")
    add("--patience", type=whole_number(1), default=Knobs.patience, metavar="N")
    add("--max-tokens", type=whole_number(1), default=Knobs.max_tokens, metavar="N", help="of an answer")
    add("--plain", action="store_true", help="lines alone, on a terminal too")
    add_model_arguments(top, solution="ref")
    return top


def choose_demo(wanted: str | None, is_terminal: bool, ask: Callable[[str], str] = input) -> str:
    """The menu, where somebody can answer it."""
    if wanted is not None or not is_terminal:
        return wanted or "sync"
    print("1  sync   all requests are there at the start; a loop steps the scheduler")
    print("2  async  requests arrive over time; their texts are streamed")
    while (answer := ask("1 or 2? ").strip()) not in CHOICES:
        print("type 1 or 2")
    return CHOICES[answer]


def make_job(options: argparse.Namespace) -> Job:
    """Everything that can be wrong with the options or with the model's files ends here, in one line."""
    names = ("model", "solution", "backend", "device", "dtype", "quantize")
    try:
        model, tokenizer = load(**{name: getattr(options, name) for name in names})
        if not 0 <= options.reserved_decode_slots < options.batch_size:
            raise ValueError(f"--reserved-decode-slots: give 0 to {options.batch_size - 1}, fewer than slots")
        if not 0 <= options.gap < 60:
            raise ValueError(f"--gap {options.gap}: give seconds from 0 to 60")
    except ValueError as error:
        fail(error)
    turned = {name: getattr(options, name) for name in Knobs.__dataclass_fields__}
    return Job(resolve_serving(options.solution), model, tokenizer, requests(tokenizer), Knobs(**turned))


def serve(
    job: Job, policy: Policy, options: argparse.Namespace, console: Console, check: Callable
) -> Outcome:
    with choose_view(console, job.asked, moves=console.is_terminal and not options.plain) as view:
        if options.demo == "async":
            pieces = Pieces(console, job.asked)
            served = stream.serve(job, policy, view, check, options.gap, pieces, pieces.flush)
            return asyncio.run(served)
        return sync.serve(job, policy, view, check)


def run(job: Job, options: argparse.Namespace, console: Console) -> tuple[list[Outcome], bool]:
    """The outcomes of the policies that came to their end, and whether somebody pressed Ctrl-C."""
    outcomes = []
    try:
        with interrupts_kept() as check:
            console.print("warming up: the longest prompt once")
            job.warm_up()
            check()
            for number, policy in enumerate(POLICIES, 1):
                console.print(f"\n{number} of {len(POLICIES)}, {policy.name}: {policy.says}", style="bold")
                outcomes.append(serve(job, policy, options, console, check))
    except KeyboardInterrupt:
        return outcomes, True
    return outcomes, False


def introduce(job: Job, options: argparse.Namespace, console: Console) -> None:
    when = "all at the start" if options.demo == "sync" else f"one every {options.gap:g} s"
    console.print(
        f"{options.model}, {options.backend} on {job.model.device}; {len(job.asked)} requests, {when}:"
    )
    for asked in job.asked:
        size = "long text" if asked.is_long else "question"
        console.print(f"  {asked.name}  {asked.tokens:>5,} tokens, {size}")


def knob_values(job: Job) -> dict[str, Any]:
    pausing = ", ".join(policy.name for policy in POLICIES if policy.pauses)
    return {**job.knobs.__dict__, "max_seq_len": job.max_seq_len, "pause_prefill": pausing}


def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    replace_unknown_characters()
    console = Console(highlight=False)
    with ends_quietly(), ends_at_a_blank(needs=Day(2, 7), unused=unused_days()):
        try:
            options.demo = choose_demo(options.demo, sys.stdin.isatty() and sys.stdout.isatty())
        except EOFError:
            sys.exit(1)
        job = make_job(options)
        introduce(job, options, console)
        outcomes, is_interrupted = run(job, options, console)
        report.show(console, outcomes)
        if is_interrupted:
            console.print("\ninterrupted")
            sys.exit(INTERRUPTED)
        knobs.show(console, knob_values(job))


if __name__ == "__main__":
    main()
