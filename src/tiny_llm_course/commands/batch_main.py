"""`pdm run batch-main`: answer many prompts with continuous batching, several in each step."""

import argparse
import sys
from dataclasses import dataclass
from typing import Annotated

from rich.console import Console

from tiny_llm_engine.machine.terminal import INTERRUPTED, command, ends_at, write_file
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.arguments import (
    Count,
    OutputFile,
    Texts,
    add_field_arguments,
    add_model_arguments,
    add_sampling_arguments,
    add_week3_arguments,
    check_engine_arguments,
    open_llm,
    stop_argument,
    week3_options,
    whole_number,
)

from ..address import Day
from ..capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..trace.batch.job import BatchJob, make_engine_job, make_job
from ..trace.batch.view import BatchLines, SlotBoard
from ..trace.live import LiveTable
from ..trace.prompts import QUESTIONS, read_prompts
from ..trace.provenance import provenance
from ..trace.serve import Serving
from ..trace.timeline import chrome
from ..trace.trace import WHOLE

LOADED = ("model", "solution", "backend", "device", "dtype", "quantize", "seed")


@dataclass
class BatchOptions:
    """What is answered, and how.

    Args:
        prompt: a prompt; repeatable.
        prompts_file: a prompt a line, UTF-8; - is standard input.
        slots: prompts at a time, at most.
        prefill_step: week 2: prompts in chunks of at most this many tokens (Day 2.7); without it whole prompts.
        max_seq_len: tokens of a prompt and its answer.
        stop: ends an answer and is not part of it; repeatable.
        template: whether prompts are messages of a chat, or else continued as they are.
        trace: also write what happened when, for ui.perfetto.dev.
        plain: lines instead of a table, on a terminal too.
        loader: which week's engine; auto: that of week 2.
    """

    prompt: Texts = None
    prompts_file: Annotated[str | None, {"metavar": "FILE"}] = None
    slots: Count = 4
    prefill_step: Annotated[int | None, {"type": whole_number(1, WHOLE), "metavar": "N"}] = None
    max_seq_len: Annotated[int, {"type": whole_number(2), "metavar": "N"}] = 512
    stop: Annotated[list[str] | None, {"type": stop_argument, "action": "append", "metavar": "TEXT"}] = None
    template: bool = True
    trace: OutputFile = None
    plain: bool = False
    loader: Annotated[str, {"choices": ["auto", "week2", "week3"]}] = "auto"


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the options and resolve `auto`."""
    top = argparse.ArgumentParser(prog="pdm run batch-main", description=__doc__)
    add_field_arguments(top, BatchOptions)
    add_model_arguments(top, solution="ref")
    add_week3_arguments(top)
    add_sampling_arguments(top)
    options = top.parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    return options


@ends_at(ValueError)  # no such device here, files that are unusable, a number out of range
def job_of(options: argparse.Namespace) -> BatchJob:
    """Load the model; bad options or files end the command with one line."""
    check_engine_arguments(options)
    lines = [] if options.prompts_file is None else read_prompts(options.prompts_file)
    prompts = [*(options.prompt or ()), *lines] or list(QUESTIONS)
    names = resolve_serving(options.solution)
    drawn = options.temperature, options.top_p, options.top_k
    sampling = names.SamplingParams(*drawn, options.max_tokens, options.stop)
    limits = {"sampling": sampling, "template": options.template}
    if options.loader == "week3":
        if options.prefill_step:
            raise ValueError("--prefill-step: week 3's engine has a token budget instead: leave it out")
        seqs = min(options.slots, len(prompts))
        limited = {"max_num_seqs": seqs, "max_model_len": options.max_seq_len}
        llm = open_llm(options, **limited, **week3_options(options))
        return make_engine_job(llm.engine, prompts, **limits)
    named = {name: getattr(options, name) for name in LOADED}
    model, tokenizer = load(max_model_len=options.max_seq_len, **named)
    serving = Serving(names, model, tokenizer)
    limits["prefill_step"] = options.prefill_step
    return make_job(serving, options.backend, prompts, options.slots, options.max_seq_len, **limits)


def choose_view(options: argparse.Namespace, job: BatchJob, console: Console) -> LiveTable | BatchLines:
    """Choose the view: a table on a terminal, lines for a file or a pipe."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty() and not console.is_dumb_terminal
    if is_terminal and not options.plain:
        return LiveTable(SlotBoard(job.requests, job.slots), console)
    return BatchLines(console, job.prompts)


def run(options: argparse.Namespace, console: Console) -> int:
    """Run the command on one console and return the exit code."""
    job = job_of(options)
    interrupted = job.report(lambda *shown: choose_view(options, *shown), console)
    if options.trace:
        source = {"model": str(options.model), "solution": options.solution, "port": options.backend}
        source |= provenance(job.serving.model.device)
        write_file(options.trace, chrome.text([job.recorder.trace("batch-main", WHOLE, source)]))
    return INTERRUPTED if interrupted else int(bool(job.failed))


@command
def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    used = ["sampling"] * bool(options.temperature) + ["quantization"] * bool(options.quantize)
    needs = Day(2, 7) if options.prefill_step else Day(2, 6)
    needs = Day(3, 3) if options.loader == "week3" else needs
    with ends_at_a_blank(needs=needs, unused=unused_days(*used)):
        code = run(options, Console(highlight=False))
    sys.exit(code)


if __name__ == "__main__":
    main()
