"""The options of a hybrid scheduler in three groups, and rules for the prompts of a step besides the budget. Given."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from .events import Event, Listener
from .request_life import WaitingLine
from .scheduled import Scheduled, SequenceState

if TYPE_CHECKING:  # of Day 2.7
    from .chunk_sizes import Chunker


@dataclass(frozen=True)
class Limits:
    """How large a step may be, and what it consists of.

    Args:
        max_num_batched_tokens: the budget, in tokens per step.
        max_num_seqs: how many requests run at the same time.
        enable_chunked_prefill: False computes whole prompts, in steps of their own, before anything decodes.
        mixed_steps: whether chunks and decodes are one call of the model. False computes the same plan in two calls,
            chunks and then decodes.
        long_prefill_token_threshold: maximum tokens of one chunk, so that several long prompts share a step; 0 is the
            budget.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 16
    enable_chunked_prefill: bool = True
    mixed_steps: bool = True
    long_prefill_token_threshold: int = 0

    def check(self, max_model_len: int) -> None:
        """Raises a ValueError that names the fix when a number is out of range."""
        budget = f"max_num_batched_tokens is {self.max_num_batched_tokens}"
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}: give at least 1, or nothing runs")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}: give tokens of a chunk, or 0"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"{budget} and max_num_seqs {self.max_num_seqs}: each running request needs a token of the budget, so"
                f" give at least {self.max_num_seqs} tokens"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ValueError(
                f"{budget} and max_model_len {max_model_len}: without chunks the longest prompt is one step, so give"
                f" at least {max_model_len} tokens, or turn enable_chunked_prefill on"
            )


class PromptRule(Protocol):
    """Part of a plan's making that a scheduler may have any number of."""

    def limit(self, left: int, decodes: int) -> int:
        """Of `left` tokens of prompts, how many the step may have beside its decodes."""
        ...

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Shortens the chunks of a whole plan, which is computed in these calls."""


class PadsSteps(Protocol):
    """What the calls of a step are padded to: the `Buckets` of Day 3.4."""

    def check_limits(self, budget: int, max_num_seqs: int, mixed_steps: bool) -> None:
        """Raises a ValueError when the sizes do not fit these limits."""

    def prompt_rule(self, mixed_steps: bool, has_chunks: bool) -> PromptRule:
        """Counts padded tokens: what the model computes.

        Args:
            mixed_steps: whether a step is one call.
            has_chunks: whether a prompt may be cut.
        """
        ...


class ChunkerRule:
    """Lets a chunker choose, from what steps with chunks have cost. A listener of the scheduler.

    Args:
        chunker: for example an `AdaptiveChunker`.
        max_num_seqs: requests that run at the same time.
    """

    def __init__(self, chunker: Chunker, max_num_seqs: int):
        self.chunker, self.max_num_seqs = chunker, max_num_seqs

    def limit(self, left: int, decodes: int) -> int:
        """See `PromptRule`. Without decodes nobody waits for the chunks."""
        return (
            min(left, self.chunker.select_chunk_size(left, decodes / self.max_num_seqs)) if decodes else left
        )

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Nothing to shorten."""

    def __call__(self, event: Event) -> None:
        """Tells the chunker what a step with chunks has cost."""
        tokens = sum(part.tokens for part in event.parts if part.kind == "chunk")
        if tokens:
            self.chunker.observe(tokens, event.seconds)


@dataclass(frozen=True)
class Hooks:
    """What decides besides the scheduler.

    Args:
        queue: the requests that wait; a `FifoQueue` when None.
        can_join: can_join(one, other) says whether two requests may run at the same time, for example because they need
            the same adapter; None lets any two.
        chunker: chooses how many tokens of prompts a step with decodes may have, from what such steps have cost.
        buckets: what the model pads its calls to; then the budget counts padded tokens. None when nothing is padded.
        cold: blocks outside the pool, a `ColdParts`; None where there are none.
    """

    queue: WaitingLine[SequenceState] | None = None
    can_join: Callable[[SequenceState, SequenceState], bool] | None = None
    chunker: Chunker | None = None
    buckets: PadsSteps | None = None
    cold: Any = None

    def check(self, limits: Limits) -> None:
        """Raises a ValueError that names the fix when a hook does not fit the limits."""
        budget, seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        if self.chunker is not None and budget < (least := self.chunker.sizes[-1] + seqs):
            raise ValueError(
                f"max_num_batched_tokens is {budget}: the chunker's largest size {self.chunker.sizes[-1]} and {seqs}"
                f" decodes have to fit, so give at least {least} tokens"
            )
        if self.buckets is not None:
            self.buckets.check_limits(budget, seqs, limits.mixed_steps)

    def prompt_rules(self, limits: Limits) -> list[PromptRule]:
        """What limits the prompts of a step besides the budget."""
        rules: list[PromptRule] = []
        if self.buckets is not None:
            rules.append(self.buckets.prompt_rule(limits.mixed_steps, limits.enable_chunked_prefill))
        if self.chunker is not None:
            rules.append(ChunkerRule(self.chunker, limits.max_num_seqs))
        return rules


@dataclass(frozen=True)
class Observers:
    """Who hears what happens, and when.

    Args:
        clock: seconds.
        metrics: its `on_event` is called with each event, as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.
    """

    clock: Callable[[], float] = time.perf_counter
    metrics: Any = None
    on_event: Listener | None = None

    def listeners(self, rules: list[PromptRule]) -> list[Listener]:
        """All of them, in the order in which they are called."""
        found = [rule for rule in rules if callable(rule)]
        found += [] if self.metrics is None else [self.metrics.on_event]
        return found + ([] if self.on_event is None else [self.on_event])


def grouped(options: dict[str, Any], max_model_len: int) -> tuple[Limits, Hooks, Observers]:
    """The three groups, from options by their names.

    Raises:
        TypeError: there is no such option.
        ValueError: a number is out of range, or two options exclude each other.
    """
    kinds = {field.name: kind for kind in (Limits, Hooks, Observers) for field in fields(kind)}
    if unknown := options.keys() - kinds.keys():
        raise TypeError(f"{', '.join(sorted(unknown))}: the options are {', '.join(kinds)}")
    own = [
        {name: value for name, value in options.items() if kinds[name] is kind}
        for kind in (Limits, Hooks, Observers)
    ]
    limits, hooks, observers = Limits(**own[0]), Hooks(**own[1]), Observers(**own[2])
    limits.check(max_model_len)
    hooks.check(limits)
    return limits, hooks, observers
