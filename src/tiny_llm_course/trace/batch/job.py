"""A batch of prompts answered by the engine of Week 2 or 3: the work, and its output on a terminal."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.llm_engine import LLMEngine, interrupts_kept
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, Request, SamplingParams

from ..prompts import rendered
from ..recorder import Recorder, number_of
from ..serve import Serving
from ..text import counted, harmless, shortened

if TYPE_CHECKING:
    from tiny_llm_engine.models.tokenization import Tokenizer

PROMISE = 128  # tokens of a prompt for which running requests may wait; more is shown as a stall


@dataclass(frozen=True)
class BatchJob:
    """A batch to answer."""

    serving: Serving  # model and scheduler
    backend: str  # its port
    prompts: Sequence[str]  # the texts of the prompts, with a request for each
    requests: Sequence[Request | AnswerSequence]
    slots: int  # how many run at a time
    recorder: Recorder  # of what happens
    # answers all requests; it gets a listener for the events
    answer: Callable[[Callable[[Event], object]], object]

    @property
    def failed(self) -> list[Request | AnswerSequence]:
        return [request for request in self.requests if request.error is not None]

    def report(
        self,
        make_view: Callable[["BatchJob", Console], AbstractContextManager[Callable[[Event], object]]],
        console: Console,
    ) -> bool:
        """Run the batch and print its answers; return whether Ctrl-C was pressed.

        That ends it between two steps, with every cache released.
        """
        interrupted = False
        try:
            with make_view(self, console) as show, interrupts_kept() as check_interrupt:

                def on_event(event: Event) -> None:
                    self.recorder(event)
                    show(event)
                    check_interrupt()

                self.answer(on_event)
                check_interrupt()  # Ctrl-C may have come after the last event
        except KeyboardInterrupt:
            interrupted = True
        print_report(self, console, interrupted)
        return interrupted


def make_job(
    serving: Serving,
    backend: str,
    prompts: Sequence[str],
    slots: int = 4,
    max_seq_len: int = 512,
    template: bool = True,
    sampling: SamplingParams | None = None,
    prefill_step: int | None = None,
) -> BatchJob:
    """A batch on Week 2's engine: one request per prompt, all arriving now.

    There are at most as many slots as prompts, since more would only take memory.

    Args:
        template: whether prompts get the model's chat template.
        sampling: of every request; greedy when None.
        prefill_step: tokens of a chunk, at most; None computes prompts whole.

    Raises:
        CheckpointError: the template fails.
    """
    start, model, tokenizer, names = serving.clock(), serving.model, serving.tokenizer, serving.names
    slots, texts = min(slots, len(prompts)), rendered_prompts(tokenizer, prompts, template)
    requests = [
        names.Request(model, tokenizer, text, prompt_idx=number, max_seq_len=max_seq_len, sampling=sampling)
        for number, text in enumerate(texts)
    ]

    def answer(on_event: Callable[[Event], object]) -> None:
        batch = partial(names.batch_generate, clock=serving.clock, on_event=on_event)
        batch(model, tokenizer, requests, max_seq_len, slots, prefill_step)

    return BatchJob(serving, backend, prompts, requests, slots, recorder_of(requests, start, PROMISE), answer)


def make_engine_job(
    engine: LLMEngine, prompts: Sequence[str], template: bool = True, sampling: SamplingParams | None = None
) -> BatchJob:
    """A batch on Week 3's engine, whose options limit how many requests run at a time."""
    start, tokenizer = engine.clock(), engine.tokenizer
    params = sampling or engine.names.SamplingParams(max_tokens=None)
    texts = rendered_prompts(tokenizer, prompts, template)
    asked = [engine.request(text, tokenizer.encode(text), params) for text in texts]
    sequences = [sequence for request in asked for sequence in request.sequences]

    def answer(on_event: Callable[[Event], object]) -> None:
        with engine.heard_by(on_event):
            engine.run(asked)

    serving = Serving(engine.names, engine.runner, tokenizer, engine.clock)
    recorder = recorder_of(sequences, start, engine.max_num_batched_tokens)
    slots = min(engine.options.max_num_seqs, len(prompts))
    return BatchJob(serving, engine.port.name, prompts, sequences, slots, recorder, answer)


def rendered_prompts(tokenizer: "Tokenizer", prompts: Sequence[str], template: bool) -> list[str]:
    """Each prompt as the model reads it, in the chat template if there is one."""
    return [rendered(tokenizer, prompt) if template else prompt for prompt in prompts]


def recorder_of(requests: Sequence[Request | AnswerSequence], start: float, prefill_step: int) -> Recorder:
    """A recorder of the requests, which have waited since `start`."""
    recorder = Recorder(prefill_step, [str(number + 1) for number in range(len(requests))])
    for request in requests:
        recorder.arrive(request, start)
    return recorder


def print_report(job: BatchJob, console: Console, interrupted: bool) -> None:
    """Print the answers and the summary of a batch; after Ctrl-C, only the finished answers."""
    ended = [request for request in job.requests if request.finish_reason not in (None, "abort")]
    digits = len(str(len(job.requests)))
    for request in ended:
        number = f"{number_of(request) + 1:{digits}}. "
        prompt = shortened(job.prompts[number_of(request)])
        console.print(Text.assemble((number, "green"), (prompt, "bold")), soft_wrap=True)
        print_wrapped(console, answer_of(request), indent=" " * len(number))
    if ended:
        console.print()
    for parts in (counts(job, len(ended), interrupted), job.recorder.trace().latencies()):
        if parts:
            console.print(Text(" · ".join(parts)), soft_wrap=True)


def answer_of(request: Request | AnswerSequence) -> str:
    """The text, then the finish reason if it is not "stop"; the message of an error."""
    if request.error is not None:
        return f"error: {harmless(request.error)}"
    reason = "" if request.finish_reason == "stop" else f" [{request.finish_reason}]"
    return harmless(request.text) + reason


def print_wrapped(console: Console, text: str, indent: str) -> None:
    """Print a text indented, and wrapped between words on a terminal; a file keeps its lines."""
    for line in text.split("\n"):
        width = max(1, console.width - len(indent))
        pieces = Text(line).wrap(console, width) if console.is_terminal else [Text(line)]
        for piece in pieces:
            piece.rstrip()
            console.print(Text(indent) + piece, soft_wrap=True)


def counts(job: BatchJob, ended: int, interrupted: bool) -> list[str]:
    """Totals of the run, and the device."""
    prompts = counted(len(job.requests), "prompt")
    texts = [
        f"{ended} of {prompts}" if interrupted else prompts,
        f"{len(job.failed)} failed" if job.failed else "",
        counted(job.slots, "slot"),
        counted(job.recorder.steps, "step"),
        counted(job.recorder.trace().num_tokens, "token"),
        job.backend,
        job.serving.model.device,
        "interrupted" if interrupted else "",
    ]
    return list(filter(None, texts))
