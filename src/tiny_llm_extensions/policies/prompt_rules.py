"""What limits the prompts of a step besides its budget: padding (Day 3.4), and a chunker (Day 2.7)."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.chunked_prefill.chunk_sizes import Chunker
from tiny_llm_engine.events import Event
from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.sampling import SamplingParams
from tiny_llm_engine.scheduled import Scheduled


class PaddedSteps(ABC):
    """What needs no task of `Buckets`: `decode_tokens` and `chunk_tokens` are its sizes of T, in ascending order."""

    decode_tokens: Sequence[int]
    chunk_tokens: Sequence[int]
    page_size: int
    max_num_seqs: int

    @abstractmethod
    def prompt_rule(self, mixed_steps: bool, has_chunks: bool) -> "PaddingRule":
        """Counts padded tokens.

        Args:
            mixed_steps: whether a step is one call.
            has_chunks: whether a prompt may be cut.
        """

    def put_on(self, state: ServingState) -> None:
        """Lets the steps of a loop count padded tokens.

        Raises:
            ValueError: see `check_limits`.
        """
        limits = state.limits
        self.check_limits(limits.max_num_batched_tokens, limits.max_num_seqs, limits.mixed_steps)
        state.hooks.plan.append(self.prompt_rule(limits.mixed_steps, limits.enable_chunked_prefill))

    def least_budget(self, mixed_steps: bool) -> int:
        """The fewest padded tokens per step with which a chunk fits beside the decodes, whatever their number."""
        return self.chunk_tokens[0] + (0 if mixed_steps else self.decode_tokens[-1])

    def check_limits(self, budget: int, max_num_seqs: int, mixed_steps: bool) -> None:
        """Raises a ValueError when the sizes end too early for a step, or leave no room for a chunk.

        Args:
            budget: padded tokens per step.
            max_num_seqs: requests that run at the same time.
            mixed_steps: whether a step is one call.
        """
        for name, least in (("decode_tokens", max_num_seqs), ("chunk_tokens", budget)):
            last = getattr(self, name)[-1]
            if last < least:
                raise ValueError(f"{name} of the buckets ends with {last}: let it end with {least}")
        least = self.least_budget(mixed_steps)
        if budget < least:
            raise ValueError(
                f"max_num_batched_tokens is {budget}: the smallest padded chunk and {max_num_seqs} decodes have to"
                f" fit, so give at least {least} tokens"
            )

    def padding_batch(self, pad_block: int, temperature: float) -> PackedBatch:
        """A batch for a warm-up: one token of no request, whose keys and values go to the pad block."""
        sampling = SamplingParams(temperature=temperature, seed=0)
        slots = [pad_block * self.page_size]
        return PackedBatch([0], [0], slots, [0, 1], [0], [[]], [0], [sampling])


class PaddingRule:
    """A `PlanHook` that counts padded tokens, which is what the model computes.

    Args:
        buckets: what the calls are padded to.
        room_for_prompts, tokens_to_delay: see Tasks 3.4.9 and 3.4.10.
        mixed_steps: whether a step is one call.
        has_chunks: whether a prompt may be cut.
    """

    def __init__(
        self,
        buckets: PaddedSteps,
        room_for_prompts: Callable[..., int],
        tokens_to_delay: Callable[[int, Sequence[int]], int],
        *,
        mixed_steps: bool,
        has_chunks: bool,
    ):
        self.buckets, self.mixed_steps, self.has_chunks = buckets, mixed_steps, has_chunks
        self.room_for_prompts, self.tokens_to_delay = room_for_prompts, tokens_to_delay

    def limit(self, left: int, decodes: int) -> int:
        """See `PlanHook`."""
        budget = max(left + decodes, self.buckets.least_budget(self.mixed_steps))
        return self.room_for_prompts(budget, decodes, self.buckets, separate=not self.mixed_steps)

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Cuts the last chunk back to a bucket size where that saves more padding than it delays.

        Args:
            plan: entries, chunks last.
            calls: of the plan; the first has the chunks, if there are any.
        """
        if not self.has_chunks or not any(entry.size > 1 for entry in plan):
            return
        delayed = self.tokens_to_delay(sum(entry.size for entry in calls[0]), self.buckets.chunk_tokens)
        if 0 < delayed < plan[-1].size:
            plan[-1] = replace(plan[-1], size=plan[-1].size - delayed)


class ChunkerRule:
    """Lets a chunker choose, from what steps with chunks have cost. A `PlanHook`, and a listener.

    Args:
        chunker: for example an `AdaptiveChunker`.
        max_num_seqs: requests that run at the same time.
    """

    def __init__(self, chunker: Chunker, max_num_seqs: int):
        self.chunker, self.max_num_seqs = chunker, max_num_seqs

    @classmethod
    def put_on(cls, state: ServingState, chunker: Chunker) -> None:
        """Lets a chunker choose the chunks of a loop.

        Raises:
            ValueError: the chunker's largest size does not fit into a step.
        """
        budget, seqs = state.limits.max_num_batched_tokens, state.limits.max_num_seqs
        if budget < (least := chunker.sizes[-1] + seqs):
            raise ValueError(
                f"max_num_batched_tokens is {budget}: the chunker's largest size {chunker.sizes[-1]} and {seqs}"
                f" decodes have to fit, so give at least {least} tokens"
            )
        rule = cls(chunker, seqs)
        state.hooks.plan.append(rule)
        state.events.listeners.insert(0, rule)

    def limit(self, left: int, decodes: int) -> int:
        """See `PlanHook`. Without decodes nobody waits for the chunks."""
        return (
            min(left, self.chunker.select_chunk_size(left, decodes / self.max_num_seqs)) if decodes else left
        )

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Nothing to change."""

    def __call__(self, event: Event) -> None:
        """Tells the chunker what a step with chunks has cost."""
        tokens = sum(part.tokens for part in event.parts if part.kind == "chunk")
        if tokens:
            self.chunker.observe(tokens, event.seconds)
