"""Week 3's engine around one loaded model: pool, allocator, scheduler, and the loop that serves requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..terminal import interrupts_kept
from .compilation import FREE_SHAPES, keep_compiled, shapes_without_buckets, will_compile
from .engine_request import EngineRequest
from .kv_budget import blocks_that_fit, kv_bytes_per_token
from .packed_runner import PackedRunner
from .port import Port, resolve_serving
from .progress_bar import warm_up_bar
from .step_timer import SIZES as STEP_SIZES
from .step_timer import StepTimer, fit_line

CHUNKED_BUDGET = 512  # tokens of a step by default


@dataclass(frozen=True)
class EngineOptions:
    """The options of the engine. `LLM` takes each of them by keyword.

    Args:
        enable_chunked_prefill: whether prompts are computed in chunks beside decodes; else whole, in their own steps.
        max_num_batched_tokens: tokens that a step computes, of all requests together. None is 512, or without chunked
            prefill `max_model_len`, so that every whole prompt fits; and never less than `max_num_seqs`.
        max_num_seqs: requests that run at the same time.
        max_model_len: tokens of a prompt and its answer; the model's own limit when None.
        block_size: tokens of a KV block.
        num_blocks: KV blocks. None takes what fits, see `blocks_that_fit`.
        gpu_memory_utilization: share of the device's memory for weights, activations and KV blocks together. A CPU does
            not ask for it: its pool is a quarter of the free RAM.
        enable_prefix_caching: whether requests share the blocks of equal beginnings.
        scheduling_policy: "fcfs" serves requests in the order of their arrival; "priority" serves interactive requests
            before batch ones.
        policy: "hybrid" computes chunks and decodes in one forward, "separate" the same plan in two; or a name of the
            policies of Day 3.5.
        latency_target: seconds between two tokens of an answer, for the policy "slack", which measures steps first.
        enforce_eager: True runs the model as it is written; False compiles it before the first request, which takes
            seconds or minutes; None compiles it on an HPU and on CUDA.
        bucketing_strategy: how steps are padded to few shapes: "exponential", "linear" or "padding-aware". None pads
            nothing, unless something is compiled for fixed shapes: then it is "exponential".
        seed: of the requests that have none.

    Raises:
        ValueError: a value is out of range.
    """

    enable_chunked_prefill: bool = True
    max_num_batched_tokens: int | None = None
    max_num_seqs: int = 16
    max_model_len: int | None = None
    block_size: int = 128
    num_blocks: int | None = None
    gpu_memory_utilization: float = 0.9
    enable_prefix_caching: bool = True
    scheduling_policy: str = "fcfs"
    policy: str = "hybrid"
    latency_target: float | None = None
    enforce_eager: bool | None = None
    bucketing_strategy: str | None = None
    seed: int = 0

    def __post_init__(self):
        for name in ("max_num_batched_tokens", "max_num_seqs", "max_model_len", "block_size", "num_blocks"):
            value = getattr(self, name)
            if value is not None and not (type(value) is int and value >= 1):
                raise ValueError(f"{name} is {value!r}: give a whole number of at least 1")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ValueError(f'scheduling_policy is {self.scheduling_policy!r}: give "fcfs" or "priority"')
        if self.latency_target is not None and self.policy != "slack":
            raise ValueError(f'latency_target is for policy="slack", and the policy is {self.policy!r}')
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}: give a share above 0 and at most 1"
            )
        if not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise ValueError(f"seed is {self.seed!r}: give a whole number from 0 to 2⁶³ - 1")


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
        self.port, self.network, self.tokenizer, self.options, self.clock = (
            port,
            network,
            tokenizer,
            options,
            clock,
        )
        self.names = resolve_serving(port.solution.__name__.split(".")[0])
        self.max_model_len = self._model_len()
        least = CHUNKED_BUDGET if self.has_chunks else self.max_model_len
        self.max_num_batched_tokens = options.max_num_batched_tokens or max(least, options.max_num_seqs)
        self.listeners: list[Callable[[Any], object]] = []  # called with each event of the scheduler
        self._num_requests = self._num_sequences = 0  # in its life
        self._open: dict[int, EngineRequest] = {}  # by the number of each sequence that has not ended
        num_blocks = options.num_blocks or self._blocks_that_fit()
        self.is_compiled = will_compile(port, options.enforce_eager)
        buckets = self._new_buckets(num_blocks)
        start = time.perf_counter()
        if self.is_compiled:
            self.runner = self._compiled_runner(num_blocks, buckets)
            self.warm_up()
        else:
            self.runner = self._new_runner(num_blocks, buckets=buckets)
        self.profile = self._measured_profile() if options.policy == "slack" else None
        self.setup_seconds = time.perf_counter() - start  # most of it compiles, if anything is compiled
        self.reset_prefix_cache()

    def _model_len(self) -> int:
        most = self.network.config.max_position_embeddings
        if (self.options.max_model_len or 0) > most:
            raise ValueError(
                f"max_model_len is {self.options.max_model_len}, but the model reads {most} tokens"
            )
        return self.options.max_model_len or most

    @property
    def has_chunks(self) -> bool:
        """Whether a prompt may be computed in parts."""
        kind = self.names.POLICIES.get(self.options.policy, self.names.HybridScheduler)
        return self.options.enable_chunked_prefill and not issubclass(kind, self.names.WholePrompts)

    def _measured_profile(self) -> Any:
        """What steps cost here, with half of its context behind each decode, as far as there are blocks."""
        options, seqs = self.options, max(self.options.max_num_seqs, 2)
        context = min(self.max_model_len // 2, self.runner.num_blocks * options.block_size // seqs) - 1
        timer = StepTimer(self.names, self.runner, options.block_size, max(context, 1))
        most = min(self.max_num_batched_tokens, self.max_model_len)
        sizes = [size for size in STEP_SIZES if size < most] + [most]
        return self.names.profile_steps(timer.seconds, sizes, fit_line, [1, seqs])

    def _policy_options(self) -> dict[str, Any]:
        if self.profile is None:
            return {}
        tile = min(64, self.max_num_batched_tokens)
        return {"profile": self.profile, "latency_target": self.options.latency_target, "tile": tile}

    def _new_runner(self, num_blocks: int, **options: Any) -> PackedRunner:
        runner = self.port.packed_runner(self.network, num_blocks, self.options.block_size, **options)
        runner.max_model_len = self.max_model_len
        return runner

    def _compiled_runner(self, num_blocks: int, buckets: Any) -> PackedRunner:
        """A runner of the network with its parts compiled; the first run of each shape compiles them."""
        keep_compiled(self.port)
        where = self.port.device, FREE_SHAPES if buckets is None else len(buckets.warm_up_list())
        self.network = self.port.compile_model(self.network, *where)
        return self._new_runner(
            num_blocks, buckets=buckets, capture=lambda forward: self.port.capture_step(forward, *where)
        )

    def warm_up(self) -> None:
        """Runs every shape that a step can have once, with a progress bar on a terminal."""
        with warm_up_bar() as on_progress:
            if self.runner.buckets is not None:
                self.runner.warm_up(on_progress)
            else:
                self.runner.warm_up_on(self._free_shapes(), on_progress)

    def _free_shapes(self) -> list[Any]:
        pad_slot = self.runner.num_blocks * self.options.block_size
        return shapes_without_buckets(self.names, self.max_num_batched_tokens, pad_slot)

    @property
    def num_shapes(self) -> int:
        """Shapes of a step that were compiled or captured."""
        if not self.is_compiled:
            return 0
        buckets = self.runner.buckets
        return len(self._free_shapes() if buckets is None else buckets.warm_up_list())

    def _new_buckets(self, num_blocks: int) -> Any:
        """The shapes of all steps; None when nothing is padded."""
        options = self.options
        fixed = self.port.fixed_sizes(self.port.device) if self.is_compiled else ("pages",)
        strategy = options.bucketing_strategy or ("exponential" if "tokens" in fixed else None)
        if strategy is None:
            return None
        sizes = self.max_num_batched_tokens, options.max_num_seqs, self.max_model_len, options.block_size
        own = not options.enable_prefix_caching
        limits = limits_of_steps(options.policy, self.has_chunks, num_blocks) if own else {}
        return self.names.make_buckets(strategy, *sizes, pad_pages="pages" in fixed, **limits)

    def _blocks_that_fit(self) -> int:
        size = self.options.block_size
        return blocks_that_fit(
            self.port.kit,
            self.port.device,
            size * kv_bytes_per_token(self.network.config, self.port.float_dtype),
            self.options.max_num_seqs * -(-self.max_model_len // size),  # all requests at their longest
            self.options.gpu_memory_utilization,
            self._peak_bytes,
        )

    def _peak_bytes(self) -> int:
        """Runs the largest step on a pool of one block, and returns the bytes that it needed beside the pool."""
        runner, options = self._new_runner(1), self.options
        count, longest = self.max_num_batched_tokens, self.max_model_len
        batch = profiling_batch(self.names, count, options.max_num_seqs, longest, options.block_size)

        def run() -> Any:
            runner.run(batch)
            return self.port.array([0])

        return self.port.peak_bytes(run)

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
        number, self._num_requests = self._num_requests, self._num_requests + 1
        if sampling.seed is None:
            sampling = replace(sampling, seed=request_seed(self.options.seed, number))
        made = EngineRequest(str(number), prompt, list(ids), sampling, self.tokenizer, error)
        for index in range(sampling.n if error is None else 0):
            own = replace(sampling, n=1, sample_index=sampling.sample_index + index)
            made.sequences.append(self._sequence(made.prompt_token_ids, own, priority))
        return made

    def _sequence(self, ids: list[int], sampling: Any, priority: str) -> Any:
        number, self._num_sequences = self._num_sequences, self._num_sequences + 1
        limit = {"sampling": sampling, "max_seq_len": self.max_model_len, "priority": priority}
        return self.names.Sequence(ids, self.tokenizer, request_id=number, **limit)

    def check(self, sequence: Any) -> None:
        """Ends a sequence that can never be served, with the reason. Changes nothing of the engine."""
        pool_tokens = self.runner.num_blocks * self.options.block_size
        sequence.check(self.runner.vocab_size, self.max_model_len, pool_tokens)

    def add(self, request: EngineRequest) -> None:
        """Lets a request wait for its turn. One that can never be served has ended with its error afterwards."""
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


def limits_of_steps(policy: str, has_chunks: bool, num_blocks: int) -> dict[str, int]:
    """What no step can exceed when every request has blocks of its own, see `Buckets`.

    Args:
        policy, num_blocks: of the engine.
        has_chunks: whether a prompt may be computed in parts.
    """
    limits = {"num_pages": num_blocks}
    if policy not in ("hybrid", "separate"):
        return limits
    if not has_chunks:  # whole prompts, in steps of their own
        return {**limits, "chunk_readers": 0, "decode_readers": 0}
    # One prompt at a time is computed in part. In a call of chunks alone, its last token is a request of one row.
    return {**limits, "chunk_readers": 1, **({"decode_readers": 1} if policy == "separate" else {})}


def profiling_batch(names: Any, count: int, rows: int, longest: int, block_size: int) -> Any:
    """The largest step: `count` tokens of prompts as long as can be, of which `rows` are sampled with every filter.

    For a pool of one block: all its keys are read from and written to the pad block.
    """
    batch = names.PackedBatch()
    for start in range(0, count, longest):
        size = min(longest, count - start)
        batch.positions.extend(range(longest - size, longest))
        batch.query_start.append(start + size)
        batch.context_lens.append(longest - size)
        batch.block_tables.append([1] * -(-longest // block_size))
    batch.token_ids.extend([0] * count)
    batch.slots.extend([block_size] * count)
    batch.sample_rows.extend(range(max(0, count - rows), count))
    batch.sampling.extend([names.SamplingParams(1.0, top_p=0.9, top_k=50)] * len(batch.sample_rows))
    return batch


def request_seed(seed: int, number: int) -> int:
    """The seed of an engine's request that has none of its own."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
