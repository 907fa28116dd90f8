"""Prometheus metrics of a proxy: what it did, what waits for its engines, and the metrics of all of them."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tiny_llm_engine.solutions.solution_types import SplitLoads

from .engines import ProxiedEngine

# What may become of a request: where its prompt is computed, and what went wrong.
EVENTS = ("elsewhere", "alone", "prefill_failed", "retried", "failed", "refused")


class ProxyMetrics:
    """A collector that counts requests, and passes on what the engines said last, with the labels `engine` and `role`.

    Blocks, bytes and seconds of transfers are counted where they happen: by the engines.
    """

    def __init__(self, engines: Sequence[ProxiedEngine], loads: SplitLoads):
        self._engines, self._loads, self._registry = engines, loads, CollectorRegistry()
        about = "requests, by where their prompts are computed and by what went wrong"
        self._events = Counter("tiny_llm:proxy_requests", about, ["event"], registry=self._registry)
        for event in EVENTS:  # a rate needs a zero before the first one
            self._events.labels(event)
        self._registry.register(self)

    def count(self, event: str) -> None:
        """Count one of `EVENTS`."""
        self._events.labels(event).inc()

    def count_refusal(self, status: int) -> None:
        """Count an answer with 4xx or 503."""
        self.count("refused")

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the registry shows besides the counter."""
        about = "tokens of prompts, or of answers, that engines which are ready still have to compute"
        waiting = GaugeMetricFamily("tiny_llm:outstanding_tokens", about, labels=["engine", "role"])
        merged: dict[str, Metric] = {}
        outstanding = {**self._loads.prefill.outstanding, **self._loads.decode.outstanding}
        for engine in self._engines:
            if engine.address in outstanding:
                waiting.add_metric([engine.address, engine.role], outstanding[engine.address])
            here = {"engine": engine.address, "role": engine.role}
            for family in text_string_to_metric_families(engine.metrics):
                known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                known.samples += [each._replace(labels={**each.labels, **here}) for each in family.samples]
        yield from (waiting, *merged.values())
