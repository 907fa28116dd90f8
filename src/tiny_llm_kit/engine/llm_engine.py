"""Week 3's engine around one loaded model: pool, allocator, scheduler, and the loop that serves requests."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from ..terminal import interrupts_kept
from .engine_options import EngineLimits, EngineOptions
from .engine_profiling import measured_num_blocks, measured_profile
from .engine_request import EngineRequest
from .port import Port, resolve_serving
from .request_factory import RequestFactory
from .step_shapes import StepShapes


class LLMEngine:
    """Serves requests with one model. Not for several threads at once.

    Args:
        port: of the solution whose code runs.
        network: `Qwen3ModelWeek3` of it.
        tokenizer: of the model.
        options: see `EngineOptions`.
        clock: seconds, for events and metrics.

    Raises:
        ValueError: the options contradict each other or the model, or no KV block fits.
    """

    def __init__(
        self,
        port: Port,
        network: Any,
        tokenizer: Any,
        options: EngineOptions,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.port, self.tokenizer, self.options, self.clock = port, tokenizer, options, clock
        self.names = resolve_serving(port.solution.__name__.split(".")[0])
        self.limits = limits = EngineLimits.of(options, self.names, network.config)
        self.max_model_len, self.max_num_batched_tokens = limits.max_model_len, limits.max_num_batched_tokens
        self.listeners: list[Callable[[Any], object]] = []  # called with each event of the scheduler
        self._requests = RequestFactory(self.names, tokenizer, self.max_model_len, options.seed)
        self._open: dict[int, EngineRequest] = {}  # by the number of each sequence that has not ended
        num_blocks = options.num_blocks or measured_num_blocks(port, self.names, network, options, limits)
        self.shapes = StepShapes(port, self.names, options, limits, num_blocks)
        start = time.perf_counter()
        self.runner = self.shapes.new_runner(network)
        self.network = self.runner.model  # compiled, if anything is
        if self.is_compiled:
            self.warm_up()
        slack = options.policy == "slack"
        self.profile = measured_profile(self.names, self.runner, options, limits) if slack else None
        self.setup_seconds = time.perf_counter() - start  # most of it compiles, if anything is compiled
        self.reset_prefix_cache()

    @property
    def is_compiled(self) -> bool:
        """Whether the model was compiled before the first request."""
        return self.shapes.is_compiled

    @property
    def num_shapes(self) -> int:
        """Shapes of a step that were compiled or captured."""
        return self.shapes.num_shapes

    def warm_up(self) -> None:
        """Runs every shape that a step can have once, with a progress bar on a terminal."""
        self.shapes.warm_up(self.runner)

    def _policy_options(self) -> dict[str, Any]:
        if self.profile is None:
            return {}
        tile = min(64, self.max_num_batched_tokens)
        return {"profile": self.profile, "latency_target": self.options.latency_target, "tile": tile}

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix. No request may be running."""
        options = self.options
        self.allocator = self.names.BlockAllocator(
            self.runner.num_blocks, options.block_size, enable_prefix_caching=options.enable_prefix_caching
        )
        self.scheduler = self.names.make_scheduler(
            options.policy,
            self.runner,
            self.allocator,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            enable_chunked_prefill=options.enable_chunked_prefill,
            buckets=self.runner.buckets,
            queue=self.names.PriorityScheduler() if options.scheduling_policy == "priority" else None,
            clock=self.clock,
            on_event=self._emit,
            **self._policy_options(),
        )

    def _emit(self, event: Any) -> None:
        if event.request is not None:
            number = event.request.request_id
            request = self._open.pop(number, None) if event.kind == "finish" else self._open.get(number)
            if request is not None:  # a server's sequences are added to the scheduler itself
                request.on_event(event)
        for listener in self.listeners:
            listener(event)

    @property
    def num_open(self) -> int:
        """Sequences that wait or run."""
        return len(self._open)

    def request(
        self,
        prompt: str | None,
        ids: Sequence[int],
        sampling: Any,
        error: str | None = None,
        *,
        priority: str = "interactive",
    ) -> EngineRequest:
        """A request that is not added yet.

        Args:
            prompt: the text that `ids` came from, if any.
            ids: the prompt.
            sampling: `SamplingParams` of the solution; without a seed it gets one from the engine's.
            error: why it has failed before it began.
            priority: "interactive" or "batch"; it counts with the scheduling policy "priority".

        Raises:
            RuntimeError: the engine is closed.
        """
        if self.scheduler is None:
            raise RuntimeError("this LLM is closed: make a new one for more requests")
        return self._requests.request(prompt, ids, sampling, error, priority)

    def check(self, sequence: Any) -> None:
        """Ends a sequence that can never be served, with the reason. Changes nothing of the engine."""
        pool_tokens = self.runner.num_blocks * self.options.block_size
        sequence.check(self.runner.vocab_size, self.max_model_len, pool_tokens)

    def add(self, request: EngineRequest) -> None:
        """Adds a request to the queue. One that can never be served ends at once with its error."""
        request.metrics.arrival_time = self.clock()
        for sequence in request.sequences:
            self._open[sequence.request_id] = request
            self.scheduler.add(sequence)

    def step(self) -> None:
        """One step for all requests that were added."""
        self.scheduler.step()

    def run(self, requests: Sequence[EngineRequest], on_step: Callable[[], object] = lambda: None) -> None:
        """Serves these requests to their end, with those that were added before.

        Ctrl-C takes effect between two steps. However it ends, the engine is empty afterwards and can be used again.

        Args:
            on_step: called after each step.

        Raises:
            Whatever the model raises, and KeyboardInterrupt.
        """
        try:
            with interrupts_kept() as check_interrupt:
                for request in requests:
                    self.add(request)
                while self.scheduler.has_work_remaining():
                    self.step()
                    on_step()
                    check_interrupt()
        except BaseException:
            for request in list(self._open.values()):
                request.abort()
            self.scheduler.plan(self.clock())  # nothing is left to plan; requests that have ended leave
            raise
        finally:
            self.scheduler.collect_results()  # once, for it looks at every request; each has its own result

    def close(self) -> None:
        """Ends every request, and gives the memory of weights and KV blocks back. Closing twice does nothing."""
        if self.scheduler is not None:
            self.scheduler.close()
        self.runner = self.network = self.scheduler = self.allocator = None
