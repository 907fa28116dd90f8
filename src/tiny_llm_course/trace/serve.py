"""The lab's serve loop: a workload on a solution's chunked scheduler, and its recorded trace."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import (
    AnswerSequence,
    Event,
    Request,
    ServingModel,
    ServingPackage,
)

from .recorder import Recorder
from .trace import WHOLE, Trace
from .workload import RUNNING, RequestSpec, Workload

Listener = Callable[[Event], object]


class EndlessTokenizer:
    """A tokenizer without an end token, so that every answer has its full length; its texts are empty.

    Prompts are token ids.
    """

    eos_token_ids: frozenset[int] = frozenset()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> "EndlessTokenizer":
        return self

    def add(self, token: int) -> str:
        return ""

    def finish(self) -> str:
        return ""


def endless_sequence(
    names: ServingPackage, prompt: list[int], answer: int, max_seq_len: int, number: int = 0, **options: Any
) -> AnswerSequence:
    """A request of Week 3 with an answer of exactly this many tokens, whose text is empty."""
    sampling = names.SamplingParams(max_tokens=answer)
    options = {"request_id": number, "sampling": sampling, "max_seq_len": max_seq_len, **options}
    return names.Sequence(prompt, EndlessTokenizer(), **options)


class CountedModel:
    """A `ServingModel` that counts the calls of another, and runs actions as chosen calls begin."""

    def __init__(self, model: ServingModel):
        self._model, self.calls = model, 0
        self.during: dict[int, list[Callable[[], None]]] = {}  # call number -> actions as it begins

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, *arguments: Any, **options: Any) -> int | None:
        self._begin_call()
        return self._model.prefill(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> list[int | None]:
        self._begin_call()
        return self._model.decode(*arguments, **options)

    def clock(self) -> int:
        """The number of calls so far, for events whose time is a call."""
        return self.calls

    def _begin_call(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        for happen in self.during.pop(number, ()):
            happen()


@dataclass(frozen=True)
class Serving:
    """A solution's scheduler and a model that it serves."""

    names: ServingPackage  # the module `serving` of a solution
    model: Any  # a `ServingModel`, or the runner of an engine
    tokenizer: Any = field(default_factory=EndlessTokenizer)
    clock: Callable[[], float] = time.perf_counter  # seconds

    def adaptive_chunker(self) -> "ServingPackage.AdaptiveChunker":
        """`AdaptiveChunker` over the chunk sizes of the model's device, or over its default sizes."""
        sizes = getattr(self.model, "chunk_sizes", None)
        return self.names.AdaptiveChunker(**({} if sizes is None else {"sizes": sizes}))

    def request(
        self,
        spec: RequestSpec,
        number: int = 0,
        max_seq_len: int | None = None,
        model: ServingModel | None = None,
    ) -> Request:
        """A request of the solution."""
        return self.names.Request(
            model or self.model,
            self.tokenizer,
            spec.ids(self.model.vocab_size, number),
            prompt_idx=number,
            max_seq_len=max_seq_len,
            sampling=self.names.SamplingParams(max_tokens=spec.answer),
            priority=spec.priority,
        )


class NoEnd(RuntimeError):
    """Raised when a scheduler does not serve every request to its end; one line that names the fix."""

    def __init__(self, problem: str):
        super().__init__(f"{problem}: `pdm run test --week 2 --day 7` says what is wrong with the scheduler")


class Service:
    """One run of a workload.

    Args:
        serving: model and scheduler.
        workload: the requests and their arrivals.
        chunk: tokens of a chunk; None computes prompts whole.
        on_event: called with each event, after it was recorded.
        metrics: the scheduler's `ChunkedPrefillMetrics`, if any.
        chunker: chooses the size of every chunk, instead of `chunk`.
        turns: options of `Turns`.
    """

    def __init__(
        self,
        serving: Serving,
        workload: Workload,
        chunk: int | None = None,
        on_event: Listener = lambda event: None,
        metrics: "ServingPackage.ChunkedPrefillMetrics | None" = None,
        chunker: "ServingPackage.AdaptiveChunker | None" = None,
        **turns: Any,
    ):
        self.serving, self.workload, self.chunk, self._on_event = serving, workload, chunk or WHOLE, on_event
        self._metrics, self._chunker = metrics, chunker
        self._model: Any = CountedModel(serving.model)  # passes on what it does not count
        names, max_seq_len = serving.names, workload.max_seq_len
        self.recorder = Recorder(workload.promise, [spec.name for spec in workload.requests])
        self.requests = [
            serving.request(spec, number, max_seq_len, self._model)
            for number, spec in enumerate(workload.requests)
        ]
        self.scheduler = names.ChunkedPrefillScheduler(
            self._model,
            workload.batch_size,
            self.chunk,
            max_seq_len,
            turns=names.Turns(**turns),
            clock=serving.clock,
        )

    def __enter__(self) -> "Service":
        """Serve a small request that is not recorded, so that the batch's cache exists."""
        try:
            self.scheduler.add(self.serving.request(RequestSpec(RUNNING, 4, 2), model=self._model))
            for _ in self.steps():
                pass
            self.scheduler.collect_results()
        except BaseException:
            self.scheduler.close()
            raise
        self._model.calls = 0
        self.scheduler.metrics, self.scheduler.chunker = self._metrics, self._chunker
        self.scheduler.on_event = self._emit
        self.recorder.begin(self.serving.clock())
        return self

    def __exit__(self, *exception: object) -> None:
        self.scheduler.close()

    def _emit(self, event: Event) -> None:
        self.recorder(event)
        self._on_event(event)

    def send(self, number: int, time: float | None = None) -> None:
        """Send a request; it has been waiting since `time` if it was sent during a step."""
        self.recorder.arrive(self.requests[number], self.serving.clock() if time is None else time)
        self.scheduler.add(self.requests[number])

    def send_all(self) -> None:
        """Send every request at its time in the workload."""
        for number, spec in enumerate(self.workload.requests):
            if spec.arrives is None:
                self.send(number)
            else:
                self._model.during.setdefault(spec.arrives, []).append(partial(self.send, number))

    def steps(
        self,
        check_interrupt: Callable[[], None] = lambda: None,
        more_come: Callable[[], object] = lambda: False,
    ) -> Iterator[None]:
        """The serve loop: yield before each step, and while there is no work but `more_come()`.

        Raises:
            NoEnd: the scheduler takes more steps than there are tokens.
            KeyboardInterrupt: from `check_interrupt`, between two steps.
        """
        steps, most = 0, 10 + sum(spec.tokens + spec.answer for spec in self.workload.requests)
        while self.scheduler.has_work_remaining() or more_come():
            yield
            if self.scheduler.has_work_remaining():
                self.scheduler.step()
                steps += 1
            check_interrupt()
            if steps > most:
                raise NoEnd(f"the scheduler has work after {steps:,} steps, more than there are tokens")

    def check_answers(self) -> None:
        """Raise NoEnd if a request does not have its whole answer."""
        for spec, request in zip(self.workload.requests, self.requests, strict=True):
            if len(request.tokens) != spec.answer:
                reason = request.error or request.finish_reason or "it never ended"
                name = spec.name or request.prompt_idx
                raise NoEnd(f"request {name} has {len(request.tokens)} of {spec.answer} tokens: {reason}")

    def trace(self, title: str = "", provenance: Json | None = None) -> Trace:
        """The recorded trace."""
        return self.recorder.trace(title or self.workload.name, self.chunk, provenance)


def serve(serving: Serving, workload: Workload, chunk: int | None = None, **options: Any) -> Service:
    """Serve a workload once, every request to its whole answer; options as `Service` takes them.

    Raises:
        NoEnd: a request does not have its whole answer.
    """
    with Service(serving, workload, chunk, **options) as service:
        service.send_all()
        for _ in service.steps():
            pass
    service.check_answers()
    return service
