"""A loaded model that answers on the terminal: streamed while it is made, then one line of figures."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..model.tokenizer import Tokenizer
from .port import Port


@dataclass
class Meter:
    """Passes the pieces of an answer on and remembers when each came, in seconds since it was made."""

    write: Callable[[str], object]
    clock: Callable[[], float] = time.perf_counter
    seconds: list[float] = field(default_factory=list)

    def __post_init__(self):
        self._start = self.clock()

    def __call__(self, piece: str) -> None:
        self.seconds.append(self.clock() - self._start)
        self.write(piece)

    def figures(self, max_tokens: int) -> list[str]:
        """Tokens; time to the first one; how many came per second after it. What was not seen is left out."""
        # One call a token; one more can follow the last token, with what an unfinished character leaves.
        tokens = min(len(self.seconds), max_tokens)
        texts = ["1 token" if tokens == 1 else f"{tokens} tokens"]
        if tokens:
            texts.append(f"TTFT {1000 * self.seconds[0]:.0f} ms")
        if tokens > 1:
            texts.append(f"{(tokens - 1) / (self.seconds[tokens - 1] - self.seconds[0]):.1f} tokens/s")
        return texts


@dataclass(frozen=True)
class Engine:
    """One solution's generator with everything it needs.

    Args:
        port: where it runs.
        generate: `simple_generate` of the solution.
        model, tokenizer, sampler: what `generate` takes.
        context: how many tokens the model reads at most, prompt and answer together.
        max_tokens: how long an answer may be.
    """

    port: Port
    generate: Callable[..., str]
    model: Any
    tokenizer: Tokenizer
    sampler: Any
    context: int
    max_tokens: int

    def count(self, prompt: str) -> int:
        """Tokens of a prompt."""
        return len(self.tokenizer.encode(prompt))

    def answer(self, prompt: str) -> str:
        """Streams the answer to standard output, then the line of figures; an interrupted one has both as well.

        Raises:
            KeyboardInterrupt: Ctrl-C, after what there was has been printed.
        """
        limit = min(self.max_tokens, self.context - self.count(prompt))
        meter = Meter(_write)
        options = {"max_tokens": limit, "on_text": meter}
        try:
            text = self.generate(self.model, self.tokenizer, prompt, self.sampler, **options)
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
