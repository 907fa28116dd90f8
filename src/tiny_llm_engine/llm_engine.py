"""Week 3's engine: serves requests with a runner and a scheduler that `open_engine` has made."""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, cast

from .engine_options import EngineLimits, PlainOptions
from .engine_request import EngineRequest, RequestFactory
from .packed_runner import PackedRunner
from .solutions.solution_types import AnswerSequence, BlockAllocator, Event, SamplingParams, ServingPackage
from .step_loop import StepLoop

NewLoop = Callable[[PackedRunner, Callable[[], float], Callable[[Event], object]], StepLoop[AnswerSequence]]
NESTED = (
    "this thread is inside a call of this LLM, in a listener or callback: call again when it has returned"
)


@dataclass(eq=False)
class LLMEngine:
    """Serves requests with one model. An `Engine` for the loop of Day 3.6.

    Not for several threads at once: the calls of `LLM` take turns, by `turn`.

    `open_engine` makes its parts, and puts extensions on it.

    Args:
        port: a solution on a backend, see `Port`.
        runner: runs the steps, and has the KV pools.
        new_loop: new_loop(runner, clock, on_event) makes a loop with empty blocks and an empty queue.
        products: how matrices are multiplied, in words.
        setup_seconds: what the runner, its warm-up and measurements of steps took.
        clock: seconds, for events and metrics.

    Attributes:
        listeners: called with each event of the loop.
        on_request: by a field of `SamplingParams`, what is called with each answer that asks for it; it may change the
            answer, or end it with a reason.
        on_reset: called when every cached prefix is to be forgotten.
        on_close: called when the loop has ended.
        extensions: what was put on it, by name. The engine asks for none of them.
    """

    port: Any
    tokenizer: Any
    options: PlainOptions
    limits: EngineLimits
    runner: PackedRunner
    new_loop: NewLoop
    products: str = ""
    setup_seconds: float = 0.0
    clock: Callable[[], float] = time.perf_counter
    listeners: list[Callable[[Event], object]] = field(default_factory=list, init=False)
    on_request: dict[str, Callable[[AnswerSequence], object]] = field(default_factory=dict, init=False)
    on_reset: list[Callable[[], object]] = field(default_factory=list, init=False)
    on_close: list[Callable[[], object]] = field(default_factory=list, init=False)
    extensions: dict[str, Any] = field(default_factory=dict, init=False)
    is_closed: bool = field(default=False, init=False)

    def __post_init__(self):
        # An extension may put others there.
        self.on_request |= {"structured_outputs": refuse_grammar, "extra_args": refuse_transfer}
        self._lock, self._caller = threading.Lock(), None
        self._open: dict[int, EngineRequest] = {}  # by the number of each sequence that has not ended
        self._requests = RequestFactory(
            self.names,
            self.tokenizer,
            vocab_size=self.runner.vocab_size,
            max_model_len=self.max_model_len,
            pool_tokens=self.runner.most_blocks * self.options.block_size,
            seed=self.options.seed,
            on_request=self.on_request,
        )
        self._start_loop()

    def _start_loop(self) -> None:
        self.loop = self.new_loop(self.runner, self.clock, self._emit)
        self._parallel = ParallelSampling(self.loop.enqueue)

    @cached_property
    def names(self) -> ServingPackage:
        """The module `serving` of the solution."""
        return cast(ServingPackage, self.port.serving)

    @property
    def max_model_len(self) -> int:
        """Tokens of a prompt and its answer."""
        return self.limits.max_model_len

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of a step."""
        return self.limits.max_num_batched_tokens

    @property
    def network(self) -> Any:
        """The model, compiled, if anything is."""
        return self.runner.model

    @property
    def allocator(self) -> BlockAllocator:
        """The KV blocks of the pool."""
        return cast(BlockAllocator, self.loop.allocator)

    def reset_prefix_cache(self) -> None:
        """Forgets every cached prefix, in the pool and outside.

        Raises:
            RuntimeError: answers wait or run, whose blocks would be lost.
        """
        if self.num_open:
            raise RuntimeError(
                f"answers wait or run ({self.num_open}): reset the prefix cache when they have ended"
            )
        self.loop.close()  # a step of ended requests may be in flight
        for forget in self.on_reset:
            forget()
        self._start_loop()

    def _emit(self, event: Event) -> None:
        if event.request is not None:
            number = event.request.request_id
            request = self._open.pop(number, None) if event.kind == "finish" else self._open.get(number)
            if request is not None:  # a test may add a sequence to the scheduler itself
                request.metrics.on_event(event)
        for listener in self.listeners:
            listener(event)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One call of `LLM`: those of other threads wait until it has returned.

        Raises:
            RuntimeError: this thread is inside such a call, and would wait for itself.
        """
        if self._caller == threading.get_ident():
            raise RuntimeError(NESTED)
        with self._lock:
            self._caller = threading.get_ident()
            try:
                yield
            finally:
                self._caller = None

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
        return len(self.loop.waiting) + len(self._parallel)

    def request(
        self,
        prompt: str | None,
        ids: Sequence[int],
        sampling: SamplingParams,
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
        return self._requests.request(prompt, ids, sampling, error, priority)

    def add(self, request: EngineRequest) -> None:
        """Adds a request that `request` has made to the queue."""
        request.metrics.arrival_time = self.clock()
        self._open.update(dict.fromkeys((sequence.request_id for sequence in request.sequences), request))
        if request.sequences:
            self._parallel.add(request.sequences)

    def has_work_remaining(self) -> bool:
        """Whether an answer waits or runs."""
        return bool(len(self._parallel)) or self.loop.has_work_remaining()

    def step(self) -> bool:
        """One step for all requests that were added.

        Returns:
            Whether anything was computed.

        Raises:
            What the model has raised. The requests in the failed call have ended then.
        """
        try:
            return self.loop.step()
        finally:
            self._parallel.release()

    def collect_results(self) -> None:
        """Forgets the requests that have ended; each has its own result."""
        self.loop.collect_results()

    def run(self, requests: Sequence[EngineRequest], on_step: Callable[[], object] | None = None) -> None:
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
                    if on_step is not None:
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
        self.listeners = [partial(call_quietly, listener) for listener in listeners]
        try:
            for request in list(self._open.values()):
                request.abort()
            self.loop.abort_all()
            self._parallel.release()
        finally:
            self.listeners = listeners

    def close(self) -> None:
        """Ends every request, and gives the memory of weights and KV blocks back. Closing twice does nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self._parallel.close()
        self.loop.close()
        for close in self.on_close:
            close()
        release, device = self.runner.backend_module.release_memory, self.runner.device
        del self.runner, self.loop, self._parallel, self._requests
        release(device)


@contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Keep Ctrl-C until the yielded function is called, which then raises KeyboardInterrupt.

    A second Ctrl-C does not wait. Where Ctrl-C is ignored, or Python does not have it, nothing changes.
    """
    pressed = False

    def keep(number: int, frame: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    is_ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if not is_ours:
        yield check
        return
    signal.signal(signal.SIGINT, keep)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def refuse_grammar(sequence: AnswerSequence) -> None:
    """End an answer that must follow a grammar, in an engine without."""
    sequence.fail("structured_outputs: this engine was opened without grammars")


def refuse_transfer(sequence: AnswerSequence) -> None:
    """End an answer whose keys and values are to be shared, in an engine without a connector."""
    sequence.fail("kv_transfer_params: this engine was opened without kv_transfer_config")


def call_quietly(listener: Callable[[Any], object], event: Event) -> None:
    """Tells a listener of an event, whatever it raises."""
    with suppress(BaseException):
        listener(event)


class ParallelSampling:
    """Holds the children of each prompt until their parent has its first token.

    Parent and children are ordinary requests of the scheduler. A child computes what the prefix cache does not have:
    the last block of the prompt at least, and all of the prompt without a cache. A parent that ends without a token
    makes the next child the parent.

    Args:
        enqueue: enqueue(sequence, parent) of the scheduler; `parent` is None for the first answer.
    """

    def __init__(self, enqueue: Callable[[Any, Any], None]):
        self._enqueue = enqueue
        self._held: dict[Any, deque[Any]] = {}  # the children of each parent

    def __len__(self) -> int:
        """Number of children that are held."""
        return sum(map(len, self._held.values()))

    def add(self, sequences: Iterable[Any], before: Any = None) -> None:
        """Enqueues the first of these answers, and holds the others.

        Args:
            sequences: answers to one prompt.
            before: the parent so far, which has ended without a token.
        """
        parent, *children = sequences
        if children:
            self._held[parent] = deque(children)
        self._enqueue(parent, before)

    def release(self) -> None:
        """Enqueues the children whose parent has a token or has ended. Call it between two steps.

        Nothing is lost if a listener of the scheduler raises: the next call goes on.
        """
        while ready := [parent for parent in self._held if parent.tokens or parent.is_done]:
            for parent in ready:
                children = self._held[parent]
                while children and parent.tokens:
                    self._enqueue(children.popleft(), parent)
                del self._held[parent]
                if children:
                    self.add(children, parent)

    def close(self) -> None:
        """Ends the children that are held."""
        held, self._held = self._held, {}
        for child in (child for children in held.values() for child in children):
            child.abort()
