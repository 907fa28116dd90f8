"""A runner whose caller plans the next step while the device computes this one: asynchronous scheduling (Day 4.4)."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tiny_llm_engine.backends.seeded_sampling import PendingDraws
from tiny_llm_engine.packed_model import PackedInputs
from tiny_llm_engine.packed_runner import Forward, PackedRunner
from tiny_llm_engine.solutions.solution_types import Array, PackedBatch, Sampled

Drawn = tuple[PendingDraws, PendingDraws | None] | None  # tokens and prompts; None if no row is sampled


class AsyncRunner(PackedRunner):
    """A `PipelinedModel` whose two stages are the host and the device: it reads tokens when they are collected.

    A step whose tokens are not known yet takes them from the draws of the step before, on the device. An accelerator
    and MLX compute while Python goes on; where a call of torch computes in its own thread, a worker makes it.

    Args:
        fill_placeholders: the solution's function of that name.
        arguments, options: see `PackedRunner`.
    """

    num_stages = 2

    def __init__(self, *arguments: Any, fill_placeholders: Callable[..., Array], **options: Any):
        super().__init__(*arguments, **options)
        self._fill_placeholders = fill_placeholders
        self._last: Array = None  # the tokens that the batch submitted last draws
        self._submitted: deque[tuple[PackedBatch, Callable[[], Drawn]]] = deque()
        in_thread = self.backend_module.threads_compute(self.device)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="device") if in_thread else None

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`."""
        bucket = self.bucket_of(batch)
        with self.backend_module.inference():
            # Made now: before the batch is computed, its blocks may belong to another request.
            forward, inputs = self.forward_of(bucket), self._inputs(batch, bucket)
            ids = self._array(inputs.token_ids) if batch.sources and self._takes_lists else inputs.token_ids
            inputs = replace(inputs, token_ids=ids)
            padding = [-1] * (len(ids) - len(batch.sources))
            sources = self._array([*batch.sources, *padding]) if batch.sources else None
        self._submitted.append((batch, self._started(batch, forward, inputs, sources)))
        self.waste.count(batch, bucket, self.block_size)

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`."""
        batch, wait = self._submitted.popleft()
        drawn = wait()
        if drawn is None:  # nothing is read, so synchronise before the caller takes the time
            self.backend_module.synchronize(self.device)
            return []
        with self.backend_module.inference():
            return self._read(batch, *drawn)

    def abandon(self) -> None:
        """See `PipelinedModel.abandon`. What a device has been given it computes before anything that comes later."""
        while self._submitted:
            with suppress(Exception):
                self._submitted.popleft()[1]()

    def _started(self, *step: Any) -> Callable[[], Drawn]:
        if self._worker is not None:
            return self._worker.submit(self._launch, *step).result
        drawn = self._launch(*step)
        return lambda: drawn

    def _launch(self, batch: PackedBatch, forward: Forward, inputs: PackedInputs, sources: Array) -> Drawn:
        with self.backend_module.inference():
            last, self._last = self._last, None  # also if this step fails
            self.prepare(batch)
            if sources is not None:
                inputs = replace(inputs, token_ids=self._fill_placeholders(inputs.token_ids, sources, last))
            logits = forward(inputs)
            drawn = None if logits is None else self._draw(batch, logits)
            if drawn is not None:
                self._last = drawn[0].ids
            self.backend_module.launch(self.pools)
        return drawn
