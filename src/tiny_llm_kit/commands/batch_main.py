"""`pdm run batch-main`: a solution answers many prompts, several in each step, by continuous batching."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..lab.batch.report import print_report
from ..lab.batch.view import Board, Lines, LiveTable
from ..lab.bench.provenance import provenance
from ..lab.latency import Trace
from ..lab.prompts import QUESTIONS, read_prompts
from ..lab.timeline import chrome
from ..lab.timeline.recorder import Recorder
from ..lab.timeline.trace import WHOLE
from ..lab.timeline.trace import Trace as TimelineTrace
from ..model.files import CheckpointError
from ..model.tokenizer import Tokenizer
from ..runtime.arguments import (
    add_model_arguments,
    add_sampling_arguments,
    stop_argument,
    text_argument,
    whole_number,
)
from ..runtime.model_runner import ModelRunner
from ..runtime.port import resolve_serving
from ..terminal import (
    INTERRUPTED,
    ends_quietly,
    fail,
    interrupts_kept,
    replace_unknown_characters,
    write_file,
)

BATCHING = Day(2, 6)
PREFILL_STEP = 128  # tokens of a prompt for which running requests may wait; more is shown as a stall


class CountedSteps:
    """A `ServingModel` that counts its calls.

    Args:
        model: what runs them.
    """

    def __init__(self, model: ModelRunner):
        self._model, self.steps = model, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, *arguments: Any, **options: Any) -> int | None:
        self.steps += 1
        return self._model.prefill(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> list[int | None]:
        self.steps += 1
        return self._model.decode(*arguments, **options)


@dataclass
class Job:
    """What one run of the command has to do: the options, what was asked, and the requests that came of it."""

    options: argparse.Namespace
    prompts: list[str]
    model: CountedSteps
    tokenizer: Tokenizer
    requests: list[Any]
    trace: Trace
    recorder: Recorder

    @property
    def slots(self) -> int:
        """More slots than prompts would only be memory."""
        return min(self.options.slots, len(self.prompts))

    @property
    def failed(self) -> list[Any]:
        return [request for request in self.requests if request.error is not None]


View = LiveTable | Lines


def all_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts of the options, else the questions that come with the course."""
    try:
        lines = [] if options.prompts_file is None else read_prompts(options.prompts_file)
    except ValueError as error:
        fail(error)
    return [*options.prompt, *lines] or list(QUESTIONS)


def load_model(options: argparse.Namespace) -> tuple[ModelRunner, Tokenizer]:
    """Everything that can be wrong with the options or with the model's files ends here, in one line."""
    names = ("model", "solution", "backend", "device", "dtype", "quantize", "seed")
    try:
        runner, tokenizer = load(**{name: getattr(options, name) for name in names})
        sampling_params(options)  # it checks its numbers
    except ValueError as error:  # no such device here, files that are unusable, a number out of range
        fail(error)
    return runner, tokenizer


def sampling_params(options: argparse.Namespace) -> Any:
    """How every prompt is answered."""
    params = resolve_serving(options.solution).SamplingParams
    return params(options.temperature, options.top_p, options.top_k, options.max_tokens)


def rendered(tokenizer: Tokenizer, prompt: str, template: bool) -> str:
    """The prompt as the model was trained to read it; a model without a template continues the plain text."""
    if not (template and tokenizer.has_chat_template):
        return prompt
    try:
        return tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
    except CheckpointError as error:
        fail(error)


def make_job(options: argparse.Namespace, prompts: list[str], clock: Callable[[], float]) -> Job:
    """A request for every prompt. All of them arrive now, when the model is loaded."""
    runner, tokenizer = load_model(options)
    model, serving = CountedSteps(runner), resolve_serving(options.solution)
    limits = {
        "max_seq_len": options.max_seq_len,
        "sampling": sampling_params(options),
        "stop": options.stop,
    }
    trace = Trace(start=clock())
    requests = [
        serving.Request(
            model, tokenizer, rendered(tokenizer, prompt, options.template), prompt_idx=i, **limits
        )
        for i, prompt in enumerate(prompts)
    ]
    names = {i: str(i + 1) for i in range(len(prompts))}
    return Job(options, prompts, model, tokenizer, requests, trace, Recorder(PREFILL_STEP, names))


def serve(job: Job, view: View, clock: Callable[[], float]) -> None:
    """Answers all prompts. Ctrl-C ends it between two steps, with every cache released."""
    serving = resolve_serving(job.options.solution)
    for request in job.requests:  # all of them are there at the start
        job.recorder(serving.Event("arrive", clock(), request))
    with view, interrupts_kept() as check_interrupt:

        def listen(event: Any) -> None:
            job.trace(event)
            if job.options.trace:
                job.recorder(event)
            view(event)
            check_interrupt()

        serving.batch_generate(
            job.model,
            job.tokenizer,
            job.requests,
            job.options.max_seq_len,
            job.slots,
            clock=clock,
            on_event=listen,
        )
        check_interrupt()  # it may have come after the last event


def run(
    options: argparse.Namespace,
    console: Console,
    make_view: Callable[[Job, Console], View],
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """The whole command on one console; returns the exit code."""
    job = make_job(options, all_prompts(options), clock)
    interrupted = False
    try:
        serve(job, make_view(job, console), clock)
    except KeyboardInterrupt:
        interrupted = True
    print_report(job, console, interrupted)
    if options.trace:
        write_file(options.trace, chrome.text([recorded(job)]))
    return INTERRUPTED if interrupted else int(bool(job.failed))


def recorded(job: Job) -> TimelineTrace:
    """All that happened, and where."""
    options = job.options
    source = {"model": str(options.model), "solution": options.solution, "port": options.backend}
    return job.recorder.trace("batch-main", WHOLE, source | provenance(job.model.device))


def choose_view(job: Job, console: Console) -> View:
    """A table for people who watch, lines for a file or a pipe."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty() and not console.is_dumb_terminal
    if is_terminal and not job.options.plain:
        return LiveTable(Board(job.requests, job.slots), console)
    return Lines(console, job.prompts)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run batch-main", description=__doc__)
    add = top.add_argument
    add(
        "--prompt", type=text_argument, action="append", default=[], metavar="TEXT", help="one of the prompts"
    )
    add("--prompts-file", metavar="FILE", help="a prompt a line, UTF-8; - is standard input")
    add(
        "--slots", type=whole_number(1), default=4, metavar="N", help="prompts at a time, at most; default: 4"
    )
    add(
        "--max-seq-len",
        type=whole_number(2),
        default=512,
        metavar="N",
        help="tokens of a prompt and its answer",
    )
    add(
        "--stop",
        type=stop_argument,
        action="append",
        metavar="TEXT",
        help="ends an answer, and is no part of it",
    )
    add("--no-template", dest="template", action="store_false", help="continue the prompts as they are")
    add("--trace", type=Path, metavar="FILE", help="also write what happened when, for ui.perfetto.dev")
    add("--plain", action="store_true", help="lines instead of a table, on a terminal too")
    add_model_arguments(top, solution="ref")
    add_sampling_arguments(top)
    return top


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options, with what `auto` stands for in place of it."""
    options = parser().parse_args(argv)
    options.backend = choose_backend(options.solution, options.backend)
    return options


def used(options: argparse.Namespace) -> list[str]:
    """The optional capabilities that the answers need."""
    return ["sampling"] * bool(options.temperature) + ["quantization"] * bool(options.quantize)


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    replace_unknown_characters()
    with ends_quietly(), ends_at_a_blank(needs=BATCHING, unused=unused_days(*used(options))):
        code = run(options, Console(highlight=False), choose_view)
    sys.exit(code)


if __name__ == "__main__":
    main()
