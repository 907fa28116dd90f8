"""One workload, served once by a solution's chunked scheduler; the latencies are counted by the solution's metrics."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...model.detokenizer import StreamDetokenizer
from ..latency import percentile
from .workloads import LONG, RUNNING, SHORT, Asked, Workload

UNCHUNKED = 999_999  # the step that no prompt reaches
PROMISE = (
    128  # tokens that may be computed between two decode steps; what is more is a stall, whatever the chunk
)


class EndlessTokenizer:
    """Ends no text, so that every run has the same number of tokens."""

    eos_token_ids: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError("the benchmark's prompts are token ids")

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(lambda token: b" ")


class ArrivalsDuringSteps:
    """A `ServingModel` that lets things happen while one of its calls runs.

    Args:
        model: what runs them.
        during: by a call's number from 0, what happens as it begins.
    """

    def __init__(self, model: Any, during: dict[int, list[Callable[[], None]]]):
        self._model, self._during, self.calls = model, during, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, *arguments: Any, **options: Any) -> int | None:
        self._begin_call()
        return self._model.prefill(*arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> list[int | None]:
        self._begin_call()
        return self._model.decode(*arguments, **options)

    def _begin_call(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        for happen in self._during.pop(number, ()):
            happen()


@dataclass(frozen=True)
class Serving:
    """What serves: a solution's policy and a model.

    Args:
        names: the module `serving` of a solution.
        model: a `ServingModel`.
        clock: seconds.
    """

    names: ModuleType
    model: Any
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Served:
    """What one run was like.

    Args:
        metrics: the solution's own `ChunkedPrefillMetrics`.
        figures: of them, what the tables show; see `figures_of`.
    """

    metrics: Any
    figures: dict[str, Any]


def prompt_of(length: int, vocabulary: int, number: int = 0) -> list[int]:
    """Token ids that repeat only after the whole vocabulary; speed does not depend on what they mean."""
    return [(7919 * position + 31 * number) % vocabulary for position in range(length)]


def serve(serving: Serving, workload: Workload, chunk: int | None, **options: Any) -> Served:
    """Serves the workload once; options as the scheduler has them.

    Raises:
        RuntimeError: a request did not have its whole answer.
    """
    names, during = serving.names, {}
    model = ArrivalsDuringSteps(serving.model, during)
    metrics = names.ChunkedPrefillMetrics(prefill_step=PROMISE)
    scheduler = names.ChunkedPrefillScheduler(
        model,
        workload.batch_size,
        UNCHUNKED if chunk is None else chunk,
        workload.max_seq_len,
        clock=serving.clock,
        **options,
    )
    requests = [_request(names, model, number, asked) for number, asked in enumerate(workload.asked)]
    try:
        _open(scheduler, _request(names, model, 0, Asked(RUNNING, 4, 2)))
        model.calls, scheduler.metrics = 0, metrics
        start = serving.clock()
        for request, asked in zip(requests, workload.asked, strict=True):
            if asked.arrives is None:
                scheduler.add(request)
            else:
                during.setdefault(asked.arrives, []).append(lambda request=request: scheduler.add(request))
        while scheduler.has_work_remaining():
            scheduler.step()
        total = serving.clock() - start
    finally:
        scheduler.close()
    _check(requests, workload)
    return Served(metrics, figures_of(metrics, workload, total))


def _open(scheduler: Any, request: Any) -> None:
    """Serves a small request before the clock starts: a service that is open has made its batch's cache already."""
    scheduler.add(request)
    while scheduler.has_work_remaining():
        scheduler.step()
    scheduler.collect_results()


def _request(names: ModuleType, model: Any, number: int, asked: Any) -> Any:
    prompt = prompt_of(asked.tokens, model.vocab_size, number)
    limit = names.SamplingParams(max_tokens=asked.answer)
    return names.Request(model, EndlessTokenizer(), prompt, prompt_idx=number, sampling=limit)


def _check(requests: Sequence[Any], workload: Workload) -> None:
    for request, asked in zip(requests, workload.asked, strict=True):
        if len(request.tokens) != asked.answer:
            reason = request.error or request.finish_reason
            raise RuntimeError(
                f"request {request.prompt_idx} of {workload.name} has {len(request.tokens)} of {asked.answer} tokens: "
                f"{reason}"
            )


def figures_of(metrics: Any, workload: Workload, total: float) -> dict[str, Any]:
    """One run in seconds: every TTFT of the long and of the short prompts, TBT p50 and p99, the longest gap, the stalls
    against `PROMISE`, and the time of all."""

    def ttft(kind: str) -> list[float]:
        return sorted(metrics.ttft[i] for i, asked in enumerate(workload.asked) if asked.kind == kind)

    return {
        "ttft_long": ttft(LONG),
        "ttft_short": ttft(SHORT),
        "tbt_p50": percentile(metrics.tbt, 50),
        "tbt_p99": percentile(metrics.tbt, 99),
        "longest_gap": metrics.longest_gap,
        "stall_steps": metrics.stall_steps,
        "total": total,
    }
