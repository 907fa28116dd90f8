"""Week 3's engine around one loaded model: pool, allocator, scheduler, and the loop that serves requests."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from ..terminal import interrupts_kept
from .backends.grammar import CompiledGrammar
from .engine_options import EngineLimits, EngineOptions
from .engine_request import EngineRequest
from .parallel.ranks import Alone, Ranks
from .parallel_sampling import ParallelSampling
from .port import Port
from .profiling.attention_choice import has_chunk_kernel
from .profiling.engine_profiling import measured_num_blocks, measured_profile
from .profiling.product_choice import choose_products
from .request_factory import RequestFactory
from .speculation.speculation import Speculation, draft_model
from .step_shapes import StepShapes

NO_PROMPT_ROWS = (
    "prompt_logprobs needs steps of any number of sampled rows, and these are padded: use enforce_eager=True without "
    "bucketing_strategy"
)
TILE = 64  # tokens: what sizes that a policy chooses are multiples of


class LLMEngine:
    """Serves requests with one model. An `Engine` for the loop of Day 3.6. Not for several threads at once.

    Args:
        port: of the solution whose code runs.
        network: `Qwen3ModelWeek3` of it.
        tokenizer: of the model.
        options: see `EngineOptions`.
        clock: seconds, for events and metrics.
        ranks: the others that hold a part of the model; None if there are none. The engine ends them.
        draft_network: `Qwen3ModelWeek3` of the draft model, if the options name one.

    Raises:
        RankError: a rank is gone.
        ValueError: the options contradict each other or the model, or no KV block fits.
    """

    def __init__(
        self,
        port: Port,
        network: Any,
        tokenizer: Any,
        options: EngineOptions,
        clock: Callable[[], float] = time.perf_counter,
        ranks: Alone | Ranks | None = None,
        draft_network: Any = None,
    ):
        self.port, self.tokenizer, self.options, self.clock = port, tokenizer, options, clock
        self.names = port.serving
        self.limits = limits = EngineLimits.of(options, self.names, network.config)
        self.max_model_len, self.max_num_batched_tokens = limits.max_model_len, limits.max_num_batched_tokens
        self.is_closed = False
        self.listeners: list[Callable[[Any], object]] = []  # called with each event of the scheduler
        self._open: dict[int, EngineRequest] = {}  # by the number of each sequence that has not ended
        self.ranks = ranks or Alone()
        # Several ranks share the cores, so that what one of them measures says little.
        wanted = options.cpu_products if self.ranks.size == 1 else "usual"
        self.products = choose_products(port, network, wanted, options.enforce_eager is False)
        port.given.use_native_layers(network, has_chunk_kernel(port, wanted))
        num_blocks = measured_num_blocks(port, self.names, network, options, limits, self.ranks)
        self.shapes = StepShapes(port, self.names, options, limits, num_blocks)
        start = time.perf_counter()
        self.ranks.make_pools(num_blocks)
        self.runner = self.shapes.new_runner(network, self.ranks)
        self.network = self.runner.model  # compiled, if anything is
        if self.is_compiled:
            self.warm_up()
        slack = options.policy == "slack"
        self.profile = measured_profile(self.names, self.runner, options, limits) if slack else None
        self.speculation = self._make_speculation(draft_network)
        self._requests = RequestFactory(
            self.names,
            tokenizer,
            vocab_size=self.runner.vocab_size,
            max_model_len=self.max_model_len,
            pool_tokens=self.runner.num_blocks * options.block_size,
            seed=options.seed,
        )
        self.setup_seconds = time.perf_counter() - start  # most of it compiles, if anything is compiled
        self._make_scheduler()

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

    def _make_speculation(self, draft_network: Any) -> Speculation | None:
        config = self.options.speculation
        if config is None:
            return None
        where = self.options, self.limits, self.runner
        if config.method == "ngram":
            proposer = self.names.PromptLookup(*config.lookup)
        else:
            proposer = draft_model(self.port, draft_network, *where)
        return Speculation(self.names, *where, config, proposer)

    def _policy_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"long_prefill_token_threshold": self.options.long_prefill_token_threshold}
        if self.profile is not None:
            options |= {"profile": self.profile, "latency_target": self.options.latency_target}
            options["tile"] = min(TILE, self.max_num_batched_tokens)
        return options

    def _load_chunker(self) -> Any:
        """Chunks in multiples of a tile, up to what a step has beside the most decodes."""
        most = max(1, self.max_num_batched_tokens - self.options.max_num_seqs)
        tile = min(TILE, most)
        return self.names.LoadChunker(range(tile, most + 1, tile))

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix.

        Raises:
            RuntimeError: answers wait or run, whose blocks would be lost.
        """
        if self.has_work_remaining():
            raise RuntimeError(
                f"answers wait or run ({self.num_open}): reset the prefix cache when they have ended"
            )
        self._make_scheduler()

    def _make_scheduler(self) -> None:
        options = self.options
        self.allocator = self.names.BlockAllocator(
            self.runner.num_blocks, options.block_size, enable_prefix_caching=options.enable_prefix_caching
        )
        make = partial(self.names.make_scheduler, options.policy)
        if self.speculation is not None:
            make = self.speculation.scheduler
        self.scheduler = make(
            self.runner,
            self.allocator,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=options.max_num_seqs,
            enable_chunked_prefill=options.enable_chunked_prefill,
            buckets=self.runner.buckets,
            chunker=self._load_chunker() if options.scale_chunks_by_load else None,
            queue=self.names.PriorityScheduler() if options.scheduling_policy == "priority" else None,
            clock=self.clock,
            on_event=self._emit,
            **self._policy_options(),
        )
        self._parallel = ParallelSampling(self.scheduler.enqueue)

    def _emit(self, event: Any) -> None:
        if event.request is not None:
            number = event.request.request_id
            request = self._open.pop(number, None) if event.kind == "finish" else self._open.get(number)
            if request is not None:  # a test may add a sequence to the scheduler itself
                request.on_event(event)
        for listener in self.listeners:
            listener(event)

    @contextmanager
    def heard_by(self, *listeners: Callable[[Any], object]) -> Iterator[None]:
        """Adds listeners for as long as the context lasts."""
        self.listeners += listeners
        try:
            yield
        finally:
            for listener in listeners:
                self.listeners.remove(listener)

    @property
    def num_open(self) -> int:
        """Sequences that wait or run."""
        return len(self._open)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, in the queue or for their parent's first token."""
        return len(self.scheduler.waiting) + len(self._parallel)

    def request(
        self,
        prompt: str | None,
        ids: Sequence[int],
        sampling: Any,
        error: str | None = None,
        *,
        priority: str = "interactive",
    ) -> EngineRequest:
        """A request that is not added yet. One that can never be served has ended, with the reason.

        Args:
            prompt: the text that `ids` came from, if any.
            ids: the prompt.
            sampling: `SamplingParams` of the solution; without a seed it gets one from the engine's.
            error: why it has failed before it began.
            priority: "interactive" or "batch"; it counts with the scheduling policy "priority".

        Raises:
            RuntimeError: the engine is closed.
        """
        if self.is_closed:
            raise RuntimeError("this LLM is closed: make a new one for more requests")
        if sampling.prompt_logprobs is not None and self.runner.buckets is not None:
            error = error or NO_PROMPT_ROWS
        return self._requests.request(prompt, ids, sampling, error, priority)

    def compile_grammar(self, sampling: Any) -> CompiledGrammar:
        """The grammar of `sampling`, which requests find compiled while it is held. May run on any thread.

        Raises:
            ValueError: there is no such grammar.
        """
        return self._requests.grammars.compiled(sampling.structured_outputs)

    def add(self, request: EngineRequest) -> None:
        """Adds a request that `request` has made to the queue."""
        request.metrics.arrival_time = self.clock()
        self._open.update(dict.fromkeys((one.request_id for one in request.sequences), request))
        if request.sequences:
            self._parallel.add(request.sequences)

    def has_work_remaining(self) -> bool:
        """Whether an answer waits or runs."""
        return bool(len(self._parallel)) or self.scheduler.has_work_remaining()

    def step(self) -> bool:
        """One step for all requests that were added.

        Returns:
            Whether anything was computed.

        Raises:
            What the model has raised. The requests in the failed call have ended then.
        """
        try:
            return self.scheduler.step()
        finally:
            self._parallel.release()

    def collect_results(self) -> None:
        """Forgets the requests that have ended; each has its own result."""
        self.scheduler.collect_results()

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
                while self.has_work_remaining():
                    self.step()
                    on_step()
                    check_interrupt()
        except BaseException:
            with interrupts_kept():  # one more Ctrl-C changes nothing
                self._abort_all()
            raise
        finally:
            self.collect_results()  # once, for it looks at every request

    def _abort_all(self) -> None:
        """Ends every request, whatever listeners raise meanwhile."""
        listeners = self.listeners
        self.listeners = [*(partial(call_quietly, each) for each in listeners)]
        try:
            for request in list(self._open.values()):
                request.abort()
            self.scheduler.abort_all()
            self._parallel.release()
        finally:
            self.listeners = listeners

    def close(self) -> None:
        """Ends every request, and gives the memory of weights and KV blocks back. Closing twice does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._parallel.close()
        self.ranks.close()
        self.scheduler.close()
        del self.runner, self.network, self.scheduler, self.allocator, self._parallel, self._requests


def call_quietly(listener: Callable[[Any], object], event: Any) -> None:
    """Tells a listener of an event, whatever it raises."""
    with suppress(BaseException):
        listener(event)
