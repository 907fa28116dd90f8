"""What a batch leaves on the terminal: every answer, in the order of the prompts, and the figures of all."""

from typing import Any

from rich.console import Console
from rich.text import Text

from ..latency import figures
from ..text import counted, harmless, shortened


def print_report(job: Any, console: Console, interrupted: bool) -> None:
    """The answers and the summary of a batch; of one that was interrupted, those prompts that came to their end."""
    ended = [request for request in job.requests if request.finish_reason not in (None, "abort")]
    digits = len(str(len(job.requests)))
    for request in ended:
        number = f"{request.prompt_idx + 1:{digits}}. "
        prompt = shortened(job.prompts[request.prompt_idx])
        console.print(Text.assemble((number, "green"), (prompt, "bold")), soft_wrap=True)
        print_wrapped(console, answer_of(request), indent=" " * len(number))
    if ended:
        console.print()
    for parts in (counts(job, len(ended), interrupted), figures(job.trace)):
        if parts:
            console.print(Text(" · ".join(parts)), soft_wrap=True)


def answer_of(request: Any) -> str:
    """The text; behind it why it ended, unless the model ended it itself. An error is its line."""
    if request.error is not None:
        return f"error: {harmless(request.error)}"
    reason = "" if request.finish_reason == "stop" else f" [{request.finish_reason}]"
    return harmless(request.text) + reason


def print_wrapped(console: Console, text: str, indent: str) -> None:
    """Indented, and on a terminal wrapped between words; a file keeps the lines of the text."""
    for line in text.split("\n"):
        width = max(1, console.width - len(indent))
        pieces = Text(line).wrap(console, width) if console.is_terminal else [Text(line)]
        for piece in pieces:
            piece.rstrip()
            console.print(Text(indent) + piece, soft_wrap=True)


def counts(job: Any, ended: int, interrupted: bool) -> list[str]:
    """How much was done, and where."""
    total = len(job.requests)
    texts = [f"{ended} of {counted(total, 'prompt')}" if interrupted else counted(total, "prompt")]
    if job.failed:
        texts.append(f"{len(job.failed)} failed")
    texts += [
        counted(job.slots, "slot"),
        counted(job.model.steps, "step"),
        counted(job.trace.tokens, "token"),
    ]
    return [*texts, job.options.backend, job.model.device, *["interrupted"] * interrupted]
