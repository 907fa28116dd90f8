"""Prometheus metrics of the HTTP side of replicas; Ray Serve has those of each replica."""

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest


class ReplicaMetrics:
    """Counts refused requests and those whose replica has died.

    Args:
        model_name: a label, as in `EngineMetrics`.
    """

    def __init__(self, model_name: str):
        self._registry, self._label = CollectorRegistry(), model_name
        self._refusals = self._counter(
            "refused_requests", "requests that were answered with 4xx or 503", "status"
        )
        self._losses = self._counter("lost_replica_requests", "requests whose replica has died", "outcome")
        ProcessCollector(registry=self._registry)

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"tiny_llm:{name}", about, ["model_name", label], registry=self._registry)

    def count_refusal(self, status: int) -> None:
        """Count an answer with this status of HTTP."""
        self._refusals.labels(self._label, str(status)).inc()

    def count_loss(self, retried: bool) -> None:
        """Count a request whose replica has died; it was sent again, or ended with an error."""
        self._losses.labels(self._label, "retried" if retried else "failed").inc()

    def value(self, name: str) -> float:
        """See `EngineMetrics.value`."""
        return self._registry.get_sample_value(f"vllm:{name}", {"model_name": self._label}) or 0.0

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
