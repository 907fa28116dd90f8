"""Prometheus metrics of the HTTP side of replicas: what it sees of the answers, and of replicas that die."""

import time
from collections.abc import Callable

from prometheus_client import Counter

from tiny_llm_engine.events import Event

from ..openai_api.metrics import EngineMetrics
from .replica_stream import AnswerCounts

GAUGES = {
    "vllm:num_requests_running": "answers that replicas compute",
    "vllm:num_requests_waiting": "answers that no replica has accepted yet",
}


class ReplicaMetrics(EngineMetrics):
    """vLLM's metrics of all replicas together, as far as they are seen from here.

    Steps and KV blocks are not: each replica has its own. Times lie between messages of the replicas.

    Args:
        model_name: a label, as in `EngineMetrics`.
        clock: seconds.
    """

    def __init__(self, model_name: str, clock: Callable[[], float] = time.perf_counter):
        super().__init__(model_name)
        self._clock = clock
        name, about = "tiny_llm:lost_replica_requests", "requests whose replica has died"
        self._losses = Counter(name, about, ["model_name", "outcome"], registry=self._registry)
        for outcome in ("retried", "failed"):  # a rate needs a zero before the first loss
            self._losses.labels(self._label, outcome)
        values = self._num_accepted, lambda: len(self._times) - self._num_accepted()
        for (name, about), value in zip(GAUGES.items(), values, strict=True):
            self._gauge(name, about, value)

    def _num_accepted(self) -> int:
        return sum(times.started_time is not None for times in self._times.values())

    def count_loss(self, retried: bool) -> None:
        """Count a request whose replica has died; it was sent again, or ended with an error."""
        self._losses.labels(self._label, "retried" if retried else "failed").inc()

    def on_answer(self, kind: str, answer: AnswerCounts) -> None:
        """Count what happened to an answer: a listener of `ReplicaStream`."""
        self(Event(kind, self._clock(), answer))

    def _on_refuse(self, event: Event) -> None:
        """No replica has accepted it: for metrics it was never here."""
        del self._times[event.request.request_id]

    def _on_prefill(self, event: Event) -> None:
        """Accepted; what the prefix cache had is known with the last piece."""
        self._times[event.request.request_id].started_time = event.time

    def _on_finish(self, event: Event) -> None:
        self._count_cached(event.request)
        super()._on_finish(event)
