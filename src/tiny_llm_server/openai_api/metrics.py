"""Prometheus metrics of the engine, under the names that vLLM's dashboards know, where they mean the same."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily

from tiny_llm_engine.events import RequestTimes
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.solutions.solution_types import Event

from .service_contract import AnswerState

# Bounds of the histograms' buckets, as vLLM has them.
TO_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 40, 80, 160, 640)
BETWEEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5, 10, 40)
WHOLE = (0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
HISTOGRAMS = {
    "time_to_first_token_seconds": ("from arrival to the first token", TO_FIRST),
    "inter_token_latency_seconds": ("between two tokens of an answer", BETWEEN),
    "e2e_request_latency_seconds": ("from arrival to end", WHOLE),
    "request_queue_time_seconds": ("from arrival to the first step", WHOLE),
    "request_inference_time_seconds": ("from the first step to the end", WHOLE),
    "request_prefill_time_seconds": ("from the first step to the first token", WHOLE),
    "request_decode_time_seconds": ("from the first token to the end", WHOLE),
    "iteration_tokens_total": ("tokens that a step computed", STEP_TOKENS),
    "request_prompt_tokens": ("tokens of a prompt", TOKENS),
    "request_generation_tokens": ("tokens of an answer", TOKENS),
    "request_params_max_tokens": ("max_tokens of a request that has it", TOKENS),
    "request_prefill_kv_computed_tokens": ("tokens of a prompt that were not in the prefix cache", TOKENS),
    "request_time_per_output_token_seconds": ("mean time between two tokens of an answer", BETWEEN),
}
LABEL = ("model_name",)
CACHE_OPTIONS = ("block_size", "enable_prefix_caching", "gpu_memory_utilization")
COUNTERS = {
    "prompt_tokens": "tokens of prompts",
    "generation_tokens": "tokens of answers",
    "num_preemptions": "times that a running request gave its blocks away",
    "prefix_cache_queries": "tokens of prompts that were looked up in the prefix cache",
    "prefix_cache_hits": "tokens of prompts that were found there",
}


DRAFTS = {
    "drafts": "decodes that had drafts",
    "draft_tokens": "drafts",
    "accepted_tokens": "drafts that were right",
}


@dataclass
class AnswerTimes(RequestTimes):
    """Times of one answer.

    Args:
        started_time: when its first step began.
        tokens: how many it has.
    """

    started_time: float | None = None
    tokens: int = 0

    def spans(self) -> Iterator[tuple[str, float | None, float | None]]:
        """The histograms of an answer that has ended, each with the times that it lies between."""
        yield "e2e_request_latency_seconds", self.arrival_time, self.finished_time
        yield "request_queue_time_seconds", self.arrival_time, self.started_time
        yield "request_inference_time_seconds", self.started_time, self.finished_time
        yield "request_prefill_time_seconds", self.started_time, self.first_token_time
        yield "request_decode_time_seconds", self.first_token_time, self.finished_time


class EngineCounters:
    """A collector of Prometheus that reads what an engine counts of its drafts, and of its copies of KV blocks.

    Args:
        engine: it may have none of them.
        model_name: a label.
    """

    def __init__(self, engine: LLMEngine, model_name: str):
        self._engine, self._label = engine, model_name

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Counters of drafts and of transfers, and one of copies, by where blocks came from and where they went."""
        if (drafts := self._engine.extensions.get("drafts")) is not None:
            for name, about in DRAFTS.items():
                counter = CounterMetricFamily(f"vllm:spec_decode_num_{name}", about, labels=["model_name"])
                counter.add_metric([self._label], getattr(drafts.counts, name))
                yield counter
        if (cold := self._engine.extensions.get("cold")) is not None:
            name, about = "tiny_llm:kv_blocks_copied", "KV blocks that left the pool, or came back to it"
            counter = CounterMetricFamily(name, about, labels=["model_name", "source", "target"])
            for levels, count in list(cold.copied.items()):
                counter.add_metric([self._label, *levels], count)
            yield counter
        if (connector := self._engine.extensions.get("kv_transfer")) is not None:
            for name, count in connector.counts.items():
                about = f"{name.replace('_', ' ')} of keys and values of other engines, or for them"
                counter = CounterMetricFamily(f"tiny_llm:kv_transfer_{name}", about, labels=["model_name"])
                counter.add_metric([self._label], count)
                yield counter


class EngineMetrics:
    """A listener that counts scheduler events for Prometheus.

    Events come on the engine's thread; `text` may be called on any.

    An answer is a request here, as everywhere in the scheduler: `n` answers count `n` times.

    Args:
        model_name: the label that vLLM's metrics have.
    """

    def __init__(self, model_name: str):
        self._registry, self._label = CollectorRegistry(), model_name
        self._times: dict[int, AnswerTimes] = {}
        self._counters = {
            name: Counter(f"vllm:{name}", about, LABEL, registry=self._registry).labels(model_name)
            for name, about in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(f"vllm:{name}", about, LABEL, registry=self._registry, buckets=buckets).labels(
                model_name
            )
            for name, (about, buckets) in HISTOGRAMS.items()
        }
        name, about = "vllm:request_success", "answers that have ended"
        self._ends = Counter(name, about, ["model_name", "finished_reason"], registry=self._registry)
        name, about = "tiny_llm:refused_requests", "requests that were answered with 4xx or 503"
        self._refusals = Counter(name, about, ["model_name", "status"], registry=self._registry)
        ProcessCollector(registry=self._registry)

    def watch(self, engine: LLMEngine) -> None:
        """Add the gauges, whose values are read on request."""

        def used() -> float:
            allocator = engine.allocator
            return (allocator.num_blocks - allocator.num_free) / engine.runner.most_blocks

        def step_budget() -> int:
            return engine.loop.scheduler.max_num_batched_tokens

        gauges = (
            ("vllm:num_requests_running", "answers that are computed", lambda: len(engine.loop.running)),
            ("vllm:num_requests_waiting", "answers that wait", lambda: engine.num_waiting),
            ("vllm:kv_cache_usage_perc", "share of the KV blocks in use, 1 is all", used),
            ("tiny_llm:step_budget_tokens", "tokens that a step may have", step_budget),
        )
        for name, about, value in gauges:
            self._gauge(name, about, value)
        self._registry.register(EngineCounters(engine, self._label))
        options = {name: str(getattr(engine.options, name)) for name in CACHE_OPTIONS}
        numbers = {"num_gpu_blocks": str(engine.runner.most_blocks)}
        cache = {**numbers, "cache_dtype": getattr(engine.options, "kv_cache_dtype", "auto"), **options}
        name, about = "vllm:cache_config_info", "options of the KV cache, as labels"
        Gauge(name, about, [*cache], registry=self._registry).labels(**cache).set(1)

    def _gauge(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read on request."""
        Gauge(name, about, LABEL, registry=self._registry).labels(self._label).set_function(value)

    def count_refusal(self, status: int) -> None:
        """Count an answer with this status of HTTP."""
        self._refusals.labels(self._label, str(status)).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format, of type `CONTENT_TYPE_LATEST`."""
        return generate_latest(self._registry)

    def value(self, name: str) -> float:
        """A counter or a gauge of vLLM's, by its name without "vllm:"; 0 if it is not there."""
        return self._registry.get_sample_value(f"vllm:{name}", {"model_name": self._label}) or 0.0

    def __call__(self, event: Event) -> None:
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is not None:
            handler(event)

    def _observe(self, name: str, value: float) -> None:
        self._histograms[name].observe(value)

    def _on_step(self, event: Event) -> None:
        self._observe("iteration_tokens_total", sum(part.tokens for part in event.parts))

    def _on_arrive(self, event: Event) -> None:
        self._times[event.request.request_id] = AnswerTimes(event.time)

    def _on_prefill(self, event: Event) -> None:
        self._times[event.request.request_id].started_time = event.time
        self._count_cached(event.request)

    def _count_cached(self, answer: AnswerState) -> None:
        self._counters["prefix_cache_queries"].inc(answer.num_prompt_tokens)
        self._counters["prefix_cache_hits"].inc(answer.num_cached)

    def _on_preempt(self, event: Event) -> None:
        self._counters["num_preemptions"].inc()

    def _on_token(self, event: Event) -> None:
        times, tokens = self._times[event.request.request_id], len(event.request.tokens)
        if tokens == times.tokens:  # an end token adds nothing
            return
        gap = times.add_token(event.time)
        if gap is None:
            self._counters["prompt_tokens"].inc(event.request.num_prompt_tokens)
            self._observe("time_to_first_token_seconds", event.time - times.arrival_time)
        elif gap:  # 0 between tokens of one step, which vLLM does not count either
            self._observe("inter_token_latency_seconds", gap)
        self._counters["generation_tokens"].inc(tokens - times.tokens)
        times.tokens = tokens

    def _on_finish(self, event: Event) -> None:
        sequence, times = event.request, self._times.pop(event.request.request_id)
        times.finished_time = event.time
        self._ends.labels(self._label, sequence.finish_reason).inc()
        self._observe("request_prompt_tokens", sequence.num_prompt_tokens)
        self._observe("request_generation_tokens", len(sequence.tokens))
        self._observe("request_prefill_kv_computed_tokens", sequence.num_prompt_tokens - sequence.num_cached)
        if sequence.sampling.max_tokens is not None:
            self._observe("request_params_max_tokens", sequence.sampling.max_tokens)
        if (tpot := times.tpot(len(sequence.tokens))) is not None:
            self._observe("request_time_per_output_token_seconds", tpot)
        for name, start, end in times.spans():
            if start is not None and end is not None:
                self._observe(name, end - start)
