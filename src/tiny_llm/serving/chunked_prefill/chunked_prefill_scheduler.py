"""Chunked prefill: each step computes one chunk of a prompt and decodes one token per running request.

From Agrawal et al., 2023.
"""

import time
from collections.abc import Callable

from tiny_llm_engine.chunked_prefill.chunk_sizes import Chunker
from tiny_llm_engine.chunked_prefill.chunk_turns import ChunkTurns
from tiny_llm_engine.chunked_prefill.serving_model import ServingModel
from tiny_llm_engine.events import Listener

from .batch import Batch
from .chunk import chunker_step
from .chunked_prefill_metrics import ChunkedPrefillMetrics
from .turns import Turns


class ChunkedPrefillScheduler(ChunkTurns):
    """Serves requests in steps, with at most one chunk of a prompt between two tokens of a request.

    Args:
        model: runs the steps.
        batch_size: maximum number of requests that decode at the same time.
        prefill_step: maximum number of tokens in a chunk; not used with a `chunker`.
        max_seq_len: capacity of a slot in tokens, prompt and answer together.
        turns: chooses the prompt that is computed next; first come, first served when None.
        clock: returns seconds.
        chunker: chooses the size of every chunk from the times of earlier ones.
        metrics: its `on_event` is called with each event, such as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.

    `ChunkTurns`, given, has the parts of the phases. `pending` is the request whose prompt is computed, or waits for
    a slot; `choose_pending` sets it, and `leave` removes a request from the prefills.

    What the model or `on_event` raises is raised by `step`. A call of the model that fails ends only the requests in it
    (`model_call`); the next step serves the others.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        model: ServingModel,
        batch_size: int = 5,
        prefill_step: int = 128,
        max_seq_len: int = 512,
        *,
        turns: Turns | None = None,
        clock: Callable[[], float] = time.perf_counter,
        chunker: Chunker | None = None,
        metrics: ChunkedPrefillMetrics | None = None,
        on_event: Listener | None = None,
    ):
        if prefill_step < 1:
            raise ValueError(f"prefill_step is {prefill_step}: a chunk has at least 1 token")
        turns = Turns() if turns is None else turns
        turns.check_slots(batch_size)
        batch = Batch(model, batch_size, max_seq_len, clock=clock, on_event=self.hear)
        sizes = {"prefill_step": prefill_step, "max_seq_len": max_seq_len, "chunker": chunker}
        super().__init__(batch, turns, chunker_step, **sizes, metrics=metrics, on_event=on_event)

    def has_work_remaining(self) -> bool:
        """Whether a request waits, is paused, is being prefilled, or runs."""
        # TASK 2.7.3: `turns` holds those that wait or are paused. A single prompt of many chunks is only in `pending`.
        raise NotImplementedError("week 2 day 7 task 3: ChunkedPrefillScheduler.has_work_remaining")

    def step(self) -> bool:
        """Computes at most one chunk of a prompt, then one token per running request.

        Returns:
            Whether anything was done; if not, no work remains.
        """
        self._drop_ended()
        # TASK 2.7.3: the three phases, each once in every step, whatever the others have done.
        # A prompt that is finished here gets its slot at once, and decodes in the same step.
        raise NotImplementedError("week 2 day 7 task 3: ChunkedPrefillScheduler.step")

    def handle_prefill_phase(self) -> bool:
        """Computes one chunk of one prompt. Returns whether there was one to compute."""
        self.choose_pending()
        # TASK 2.7.3: compute nothing if there is no pending prompt, or while a finished prompt waits for a slot.
        # `choose_step` gives the maximum size of the chunk, 0 if it has to wait. `compute_chunk` does the rest.
        raise NotImplementedError("week 2 day 7 task 3: ChunkedPrefillScheduler.handle_prefill_phase")

    def move_prefill_to_decode(self) -> bool:
        """Moves a finished prompt into a slot. Returns whether `pending` has left."""
        # TASK 2.7.3: not before the whole prompt is computed; while no slot is free, it stays pending.
        # A request that ended with its first token needs no slot. `leave` clears `pending` for the next prompt.
        raise NotImplementedError("week 2 day 7 task 3: ChunkedPrefillScheduler.move_prefill_to_decode")

    def handle_decode_phase(self) -> bool:
        """Decodes one token per running request. Returns whether there was one to decode for."""
        # TASK 2.7.3: `batch.decode`, if a request runs. Requests that have ended leave before the step and after it.
        raise NotImplementedError("week 2 day 7 task 3: ChunkedPrefillScheduler.handle_decode_phase")

    def close(self) -> None:
        """Aborts every request that has not ended, and releases every cache."""
        self.is_closed = True
        self.batch.close()
        for request in self._requests:
            request.abort()
