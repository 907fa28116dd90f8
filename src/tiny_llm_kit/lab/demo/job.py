"""What a run of the demo needs, whichever policy serves: the model, the texts, and the knobs."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .outcome import Outcome
from .policies import Policy
from .prompts import Asked


@dataclass(frozen=True)
class Knobs:
    """What can be turned, see `knobs.KNOBS`."""

    prefill_step: int = 128
    batch_size: int = 5
    max_seq_len: int | None = None
    reserved_decode_slots: int = 0
    patience: int = 8
    max_tokens: int = 48


@dataclass(frozen=True)
class Job:
    """The demo's work.

    Args:
        names: the module `serving` of a solution.
        model, tokenizer: what serves.
        asked: what is sent.
        knobs: as they are turned.
        clock: seconds.
    """

    names: ModuleType
    model: Any
    tokenizer: Any
    asked: list[Asked]
    knobs: Knobs
    clock: Callable[[], float] = time.perf_counter

    @property
    def max_seq_len(self) -> int:
        """Room for the longest prompt and its answer, if nobody has said otherwise."""
        longest = max(len(self.tokenizer.encode(asked.prompt)) for asked in self.asked)
        return self.knobs.max_seq_len or longest + self.knobs.max_tokens

    def requests(self) -> list[Any]:
        """Fresh ones for a run. Long texts are of the class `batch`, questions are interactive."""
        limit = self.names.SamplingParams(max_tokens=self.knobs.max_tokens)
        return [
            self.names.Request(
                self.model,
                self.tokenizer,
                asked.prompt,
                prompt_idx=index,
                max_seq_len=self.max_seq_len,
                sampling=limit,
                priority="batch" if asked.is_long else "interactive",
            )
            for index, asked in enumerate(self.asked)
        ]

    def begin(self, policy: Policy, on_event: Callable[[Any], object]) -> tuple[Any, Outcome]:
        """A scheduler of this policy, and what will be known of its run."""
        knobs, requests = self.knobs, self.requests()
        metrics = self.names.ChunkedPrefillMetrics(prefill_step=knobs.prefill_step)
        outcome = Outcome(policy, self.asked, requests, metrics, self.clock())

        def listen(event: Any) -> None:
            outcome(event)
            on_event(event)

        scheduler = self.names.ChunkedPrefillScheduler(
            self.model,
            knobs.batch_size,
            max_seq_len=self.max_seq_len,
            reserved_decode_slots=knobs.reserved_decode_slots,
            patience=knobs.patience,
            clock=self.clock,
            on_event=listen,
            **policy.options(knobs.prefill_step),
        )
        return scheduler, outcome

    def warm_up(self) -> None:
        """The longest prompt once and two tokens, so that the first policy does not pay for what is only once."""
        request = self.requests()[0]
        if not request.is_done:
            request.sampling = self.names.SamplingParams(max_tokens=2)
            self.names.batch_generate(self.model, self.tokenizer, [request], self.max_seq_len, 1)
