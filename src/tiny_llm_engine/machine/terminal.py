"""Terminal behaviour of commands: printable output, streamed answers, one-line errors, Ctrl-C."""

import contextlib
import functools
import io
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


class FatalError(RuntimeError):
    """An error that ends a command, and whose text is the one line to print."""


def command(main: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command's `main`: a system error ends it with one line and an exit code.

    130 after Ctrl-C; 1 when the reader of the output has gone, when the output or a file cannot be written or read,
    and when standard output is closed. A closed standard input is empty.
    """

    @functools.wraps(main)
    def run(argv: Sequence[str] | None = None) -> object:
        open_standard_streams()
        replace_unknown_characters()
        try:
            try:
                return main(argv)
            finally:
                sys.stdout.flush()  # here, where a failure is still handled
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except FatalError as error:
            fail(error, 1)
        except BrokenPipeError:
            _give_up_output()
            sys.exit(1)
        except OSError as error:
            if error.errno is None:  # not a system error: a library that does not load, or a defect
                raise
            _end_refused(error)

    return run


def open_standard_streams() -> None:
    """Open the standard streams that are closed: the next file would take the number of one.

    The input is then empty, and the output refuses what is written, as a full disk does.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            file = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(file, True)
            stream = open(file, "w" if number else "r", encoding="utf-8")  # noqa: SIM115 (open until the end)
            setattr(sys, name, stream)


def replace_unknown_characters() -> None:
    """Print "?" for characters that the terminal's encoding lacks."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # a notebook has its own
            stream.reconfigure(errors="replace")


def _give_up_output() -> None:
    """Discard buffered output, which Python would try to write again at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end_refused(error: OSError) -> NoReturn:
    """End the command with the file and the system's error.

    Only errors of the standard streams have no file name.
    """
    if error.filename is None:
        _give_up_output()
        fail(f"standard output: cannot be written ({error.strerror})", 1)
    fail(f"{error.filename}: {error.strerror}", 1)


def fail(problem: object, code: int = 2) -> NoReturn:
    """End the command with one line on standard error; exit code 2 means unusable input."""
    print(problem, file=sys.stderr)
    sys.exit(code)


@contextlib.contextmanager
def ends_at(*problems: type[Exception]) -> Iterator[None]:
    """End the command with one line if the block, or the function that this decorates, raises one of these."""
    try:
        yield
    except problems as problem:
        fail(problem)


def write_file(file: Path, text: str) -> None:
    """Write a file that an option asks for and say so; end with one line if that fails."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{file}: cannot be written ({error.strerror})")
    print(f"\nwritten: {file}")


@dataclass
class Meter:
    """Pass the pieces of an answer on, and record when each came, in seconds."""

    write: Callable[[str], object]
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self):
        self._start = self.clock()

    def __call__(self, piece: str) -> None:
        self.seconds.append(self.clock() - self._start)
        self.write(piece)

    def figures(self, max_tokens: int) -> list[str]:
        """Tokens, time to first token, and tokens per second after it; unobserved values are left out."""
        # One call a token; one more can follow the last token, with what an unfinished character leaves.
        tokens = min(len(self.seconds), max_tokens)
        texts = ["1 token" if tokens == 1 else f"{tokens} tokens"]
        if tokens:
            texts.append(f"TTFT {1000 * self.seconds[0]:.0f} ms")
        if tokens > 1:
            texts.append(f"{(tokens - 1) / (self.seconds[tokens - 1] - self.seconds[0]):.1f} tokens/s")
        return texts


@dataclass(frozen=True)
class TerminalSession:
    """A solution's generator with all that it needs to answer on the terminal.

    Args:
        port: where it runs: its name and its device.
        generate: `simple_generate` of the solution, or its twin with a cache.
        model, tokenizer, sampler: what `generate` takes.
        context: how many tokens the model reads at most, prompt and answer together.
        max_tokens: how long an answer may be.
    """

    port: Any
    generate: Callable[..., str]
    model: Any
    tokenizer: Any
    sampler: Any
    context: int
    max_tokens: int

    def answer(self, prompt: Sequence[int]) -> str:
        """Stream the answer to standard output, then a line of figures, also after Ctrl-C.

        Args:
            prompt: token ids; at least one, and fewer than `context`.

        Raises:
            KeyboardInterrupt: Ctrl-C, after the answer so far has been printed.
        """
        limit = min(self.max_tokens, self.context - len(prompt))
        meter = Meter(_write)
        try:
            text = self.generate(
                self.model, self.tokenizer, prompt, self.sampler, max_tokens=limit, on_text=meter
            )
        except KeyboardInterrupt:
            self._close(meter.figures(limit), "interrupted")
            raise
        self._close(meter.figures(limit))
        return text

    def _close(self, figures: list[str], *notes: str) -> None:
        _write("\n" + " · ".join([*figures, self.port.name, self.port.device, *notes]) + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
