"""`pdm run timeline`: the learner's own scheduler serves the same requests twice: whole prompts, then in chunks."""

import argparse
from pathlib import Path
from types import ModuleType

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..lab.bench.provenance import provenance
from ..lab.text import counted
from ..lab.timeline import chrome, page, terminal
from ..lab.timeline.figures import figures
from ..lab.timeline.fit import fit
from ..lab.timeline.simulation import every_size, simulate
from ..lab.timeline.trace import WHOLE, Trace
from ..lab.timeline.workload import NoEnd, Workload, serve
from ..model.tokenizer import Tokenizer
from ..repo import PORTS
from ..runtime.arguments import DEVICES, whole_number
from ..runtime.model_runner import ModelRunner
from ..runtime.port import SOLUTIONS, resolve_serving
from ..terminal import ends_quietly, fail, replace_unknown_characters, write_file

CHUNKED_PREFILL = Day(2, 7)
MODEL = "tiny-qwen3"


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    replace_unknown_characters()
    with ends_quietly(), ends_at_a_blank(needs=CHUNKED_PREFILL, unused=unused_days()):
        try:
            run(options, make_console())
        except NoEnd as problem:
            fail(
                f"timeline: {problem}: `pdm run test --week 2 --day 7` says what is wrong with the scheduler"
            )


def make_console() -> Console:
    """As wide as a terminal is; a file or a pipe gets plain lines of the full width."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=terminal.COLUMNS)


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options, with what `auto` stands for in place of it."""
    parser = argparse.ArgumentParser(prog="pdm run timeline", description=__doc__)
    add = parser.add_argument
    add("--solution", default="tiny_llm", choices=sorted(SOLUTIONS), help="whose code; default: yours")
    add("--backend", default="auto", choices=["auto", *PORTS], help="auto: the port you work on")
    add("--device", default="auto", choices=DEVICES)
    add(
        "--prefill-step",
        type=whole_number(1, WHOLE - 1),
        default=128,
        metavar="N",
        help="tokens of a chunk, and what is agreed: more between two decode steps is a stall; default: 128",
    )
    add(
        "--prompt-tokens",
        type=whole_number(1, WHOLE),
        default=2048,
        metavar="N",
        help="of the long prompt; default: 2048",
    )
    add(
        "--decodes",
        type=whole_number(1, 16),
        default=4,
        metavar="N",
        help="requests that run when it arrives; default: 4",
    )
    add(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page with both runs, and a slider for the chunk size",
    )
    add(
        "--trace",
        type=Path,
        metavar="FILE",
        help="also write both runs for ui.perfetto.dev or chrome://tracing",
    )
    add("--simulate", action="store_true", help="no model: virtual time, the same in every run")
    options = parser.parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    return options


def run(options: argparse.Namespace, console: Console) -> None:
    """Both runs on one console, then the files."""
    serving = resolve_serving(options.solution)
    workload = Workload(options.prompt_tokens, options.decodes, options.prefill_step)
    before, after = both_runs(options, workload, serving)
    rows = list(figures(before, after, workload.long, workload.late))
    console.print(about(workload, before))
    console.print()
    terminal.show(console, before, after, rows)
    if options.trace:
        write_file(options.trace, chrome.text([before, after]))
    if options.html:
        costs = None if options.simulate else fit([before, after])
        text = page.html(
            about(workload, before), before, after, rows, every_size(workload, serving, costs), costs
        )
        write_file(options.html, text)


def both_runs(options: argparse.Namespace, workload: Workload, serving: ModuleType) -> tuple[Trace, Trace]:
    """Whole prompts, then chunks."""
    if options.simulate:
        return simulate(workload, serving, WHOLE), simulate(workload, serving, workload.prefill_step)
    runner, tokenizer = load_model(options)
    if workload.max_seq_len > runner.max_model_len:
        fail(
            f"--prompt-tokens {options.prompt_tokens}: prompt and answer need {workload.max_seq_len} tokens, and "
            f"{MODEL} reads {runner.max_model_len}: choose fewer, or --simulate"
        )
    warm_up(workload, serving, runner, tokenizer)
    source = {
        "model": MODEL,
        "solution": options.solution,
        "port": options.backend,
        **provenance(runner.device),
    }
    before, after = (
        serve(workload, serving, runner, tokenizer, chunk, provenance=source)
        for chunk in (WHOLE, workload.prefill_step)
    )
    return before, after


def load_model(options: argparse.Namespace) -> tuple[ModelRunner, Tokenizer]:
    try:
        return load(MODEL, solution=options.solution, backend=options.backend, device=options.device)
    except ValueError as error:  # no such device here, files that are unusable
        fail(error)


def warm_up(workload: Workload, serving: ModuleType, runner: ModelRunner, tokenizer: Tokenizer) -> None:
    """What happens once, such as the start of threads, is no part of what is compared."""
    short = Workload(min(workload.prompt_tokens, 256), workload.decodes, 128)
    serve(short, serving, runner, tokenizer, chunk=128)


def about(workload: Workload, trace: Trace) -> str:
    """What is served, and by what."""
    running = f"{counted(workload.decodes, 'request')} run{'s' * (workload.decodes == 1)}"
    requests = (
        f"{running} when a prompt of {workload.prompt_tokens:,} tokens arrives, and a short one behind it."
    )
    if trace.provenance.get("virtual_time"):
        return f"{requests}\nSimulated model, virtual time."
    source = trace.provenance
    return (
        f"{requests}\nMeasured, one run each: {source['model']}, {source['port']} port, {source['device']}. "
        "Times vary from run to run."
    )


if __name__ == "__main__":
    main()
