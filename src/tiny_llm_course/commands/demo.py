"""`pdm run demo`: long and short requests under three policies; or four prompts, and nothing but their answers."""

import argparse
import select
import sys
from collections.abc import Callable

from rich.console import Console

from tiny_llm_engine.machine.terminal import INTERRUPTED, command, ends_at, fail
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.arguments import add_field_arguments, add_model_arguments

from ..address import Day
from ..capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..trace.demo import prompts, report
from ..trace.demo.device_watch import used_bytes_of
from ..trace.demo.runs import POLICIES, Demo, Knobs
from ..trace.demo.session import serve_policies, serve_silently
from ..trace.prompts import read_prompts
from ..trace.provenance import warn_if_busy
from ..trace.serve import NoEnd, Serving

CHOICES = {"1": "sync", "2": "async", "3": "simple"}
NUMBERS = "1, 2 or 3"
REMEDIES = (
    "Out of memory: `--prefill-step 64` makes a step smaller, `--batch-size 2` and a smaller `--max-seq-len` the "
    "caches, `--quantize 4bit` the weights. Model not found: `--model tiny-qwen3` is shipped; another is a folder "
    "with config.json, or a hub id; `pdm run doctor` says what is missing. A slow first token of a long text: "
    "`--prefill-step 512`; of a short question: the policy `pausing`; of all: `pdm run bench-throughput --preset "
    "chunked-prefill` shows the best chunk size for this machine."
)
LOADED = ("model", "solution", "backend", "device", "dtype", "quantize")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="pdm run demo", description=__doc__, epilog=REMEDIES, allow_abbrev=False
    )
    add = top.add_argument
    add(
        "--demo",
        choices=list(CHOICES.values()),
        help=f"no menu; a pipe may say {NUMBERS}, and else it is sync",
    )
    add("--gap", type=float, default=0.1, metavar="S", help="async: seconds between two requests")
    add("--prompts-file", metavar="FILE", help="the requests, a prompt a line, UTF-8; - is standard input")
    add("--plain", action="store_true", help="only lines, on a terminal too")
    add_field_arguments(top, Knobs)
    add_model_arguments(top, solution="ref")
    return top


def choose_demo(
    wanted: str | None, is_terminal: bool, ask: Callable = input, piped: Callable[[], str] = lambda: ""
) -> str:
    """Ask which demo to run; without a terminal, take what a pipe says, or the first, and say so.

    Args:
        wanted: by the option.
        ask: at a terminal.
        piped: returns the first line of standard input, or an empty string.
    """
    if wanted is not None:
        return wanted
    if not is_terminal:
        return piped_choice(piped().strip())
    print("1  sync    all requests are there at the start; a loop steps the scheduler")
    print("2  async   requests arrive over time; their texts are streamed")
    print("3  simple  four prompts in chunks: their tokens, their answers and the total time")
    while (answer := ask(f"{NUMBERS}? ").strip()) not in CHOICES:
        print(f"type {NUMBERS}")
    return CHOICES[answer]


def piped_choice(answer: str) -> str:
    """The demo of a line on standard input: a number or a name of the menu."""
    chosen = CHOICES.get(answer, answer or "sync")
    if chosen not in CHOICES.values():
        fail(f"standard input: {answer!r}: give {NUMBERS} ({', '.join(CHOICES.values())})")
    if not answer:
        print("demo: sync, since there is no terminal and no choice on standard input", file=sys.stderr)
    return chosen


def first_line() -> str:
    """The first line of standard input, if it is there already: one that never comes must hold nobody up."""
    try:
        is_there, _, _ = select.select([sys.stdin], [], [], 0)
    except (OSError, ValueError):  # no file of the system: a notebook's
        return ""
    return sys.stdin.readline() if is_there else ""


def make_demo(options: argparse.Namespace) -> Demo:
    """Load the model; bad options or files end the command with one line."""
    with ends_at(ValueError):
        knobs = Knobs(**{name: getattr(options, name) for name in Knobs.__dataclass_fields__})
        model, tokenizer = load(**{name: getattr(options, name) for name in LOADED})
        if not 0 <= options.gap < 60:
            raise ValueError(f"--gap {options.gap}: give seconds from 0 to 60")
        if options.prompts_file is not None:
            specs = prompts.specs_of(tokenizer, read_prompts(options.prompts_file), options.prefill_step)
        elif options.demo == "simple":
            specs = prompts.specs_of(tokenizer, prompts.four_texts(tokenizer), options.prefill_step)
        else:
            specs = prompts.specs(tokenizer)
    return Demo(Serving(resolve_serving(options.solution), model, tokenizer), specs, knobs)


@command
def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    console = Console(highlight=False)
    with ends_at_a_blank(needs=Day(2, 7), unused=unused_days()):
        try:
            is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
            is_free = options.prompts_file != "-"
            options.demo = choose_demo(options.demo, is_terminal, piped=first_line if is_free else lambda: "")
        except EOFError:
            sys.exit(1)
        demo = make_demo(options)
        try:
            is_interrupted = (run_simple if options.demo == "simple" else run_policies)(
                demo, console, options
            )
        except NoEnd as problem:
            fail(f"demo: {problem}")
        if is_interrupted:
            console.print("\ninterrupted")
            sys.exit(INTERRUPTED)


def run_simple(demo: Demo, console: Console, options: argparse.Namespace) -> bool:
    """Serve the requests in chunks and show the answers. Returns whether Ctrl-C was pressed."""
    console.print(f"{options.model}, {options.backend}; {len(demo.specs)} prompts in chunks …")
    run = serve_silently(demo, POLICIES[1])
    if run is not None:
        report.show_simple(console, run)
    return run is None


def run_policies(demo: Demo, console: Console, options: argparse.Namespace) -> bool:
    """Serve the requests under each policy, and compare. Returns whether Ctrl-C was pressed."""
    when = "all at the start" if options.demo == "sync" else f"one every {options.gap:g} s"
    warn_if_busy()
    report.introduce(console, demo, f"{options.model}, {options.backend}", when)
    gap = options.gap if options.demo == "async" else None
    moves = console.is_terminal and not options.plain
    used_bytes = used_bytes_of(demo.serving.model.backend_module, demo.serving.model.device)
    runs, is_interrupted = serve_policies(demo, console, gap, moves, used_bytes)
    wants_alone = gap is None and not is_interrupted
    alone = serve_silently(demo.one_by_one(), POLICIES[0]) if wants_alone else None
    has_fused_attention = (options.backend, demo.serving.model.device) != ("mlx", "cpu")
    report.show(console, runs, has_fused_attention, alone)
    return is_interrupted


if __name__ == "__main__":
    main()
