"""Serves the requests of the demo under each policy, and records the latencies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median

from tiny_llm_engine.engine_options import check_count
from tiny_llm_engine.solutions.solution_types import Request

from ..chunk_sweep import known
from ..serve import Listener, Service, Serving
from ..trace import Trace
from ..workload import RequestSpec, Workload
from .device_watch import DeviceUse


@dataclass(frozen=True)
class Knobs:
    """What changes what happens: options of the demo, and most of them of the scheduler or its `Turns`.

    Args:
        prefill_step: tokens of a chunk: smaller shortens gaps, larger ends prompts sooner.
        chunker: "fixed", or "adaptive", which chooses the size of each chunk from the times of earlier ones.
        batch_size: requests that decode together: more throughput, slower steps, more memory.
        max_seq_len: tokens of a slot, prompt and answer: its cache is kept for each slot. None is what the longest
            request needs.
        reserved_decode_slots: slots that long texts (class batch) may not take.
        priorities: whether interactive requests go before those of the class batch, with ageing.
        peak_load: share of busy slots at which a long prompt waits; None never.
        patience: maximum number of times that a prompt makes room, so no wait is endless.
        max_tokens: tokens of an answer.

    Raises:
        ValueError: one is out of range.
    """

    prefill_step: int = 128
    chunker: str = "fixed"
    batch_size: int = 5
    max_seq_len: int | None = None
    reserved_decode_slots: int = 0
    priorities: bool = False
    peak_load: float | None = None
    patience: int = 8
    max_tokens: int = 48

    def __post_init__(self):
        for name in ("prefill_step", "batch_size", "max_seq_len", "patience", "max_tokens"):
            check_count(name, getattr(self, name))
        if self.chunker not in ("fixed", "adaptive"):
            raise ValueError(f"chunker is {self.chunker!r}: give fixed or adaptive")
        if not 0 <= self.reserved_decode_slots < self.batch_size:
            raise ValueError(f"reserved_decode_slots: give 0 to {self.batch_size - 1}, fewer than slots")
        if self.peak_load is not None and not 0 < self.peak_load <= 1:
            raise ValueError(f"peak_load is {self.peak_load}: give a share above 0 and at most 1")


@dataclass(frozen=True)
class DemoPolicy:
    """One way to serve."""

    name: str
    says: str
    is_chunked: bool  # whether prompts are cut
    pauses: bool  # whether a long prompt makes room for a shorter one


POLICIES = (
    DemoPolicy("unchunked", "every prompt in one piece", is_chunked=False, pauses=False),
    DemoPolicy("chunked", "in pieces, first come first served", is_chunked=True, pauses=False),
    DemoPolicy("pausing", "in pieces, and a shorter prompt goes first", is_chunked=True, pauses=True),
)


@dataclass(frozen=True)
class Demo:
    """The demo's model, requests and options."""

    serving: Serving
    specs: Sequence[RequestSpec]
    knobs: Knobs

    @property
    def workload(self) -> Workload:
        """The workload, with room for the longest prompt and its answer unless `max_seq_len` is given."""
        answer = self.knobs.max_tokens
        specs = tuple(replace(spec, answer=answer) for spec in self.specs)
        room = self.knobs.max_seq_len or max(spec.tokens for spec in specs) + answer
        return Workload("demo", "", specs, self.knobs.batch_size, self.knobs.prefill_step, room)

    def service(self, policy: DemoPolicy, on_event: Listener) -> Service:
        """A run under this policy, ready to begin."""
        knobs, names = self.knobs, self.serving.names
        adapts = policy.is_chunked and knobs.chunker == "adaptive"
        return Service(
            self.serving,
            self.workload,
            knobs.prefill_step if policy.is_chunked else None,
            on_event,
            chunker=self.serving.adaptive_chunker() if adapts else None,
            queue=names.PriorityScheduler() if knobs.priorities else None,
            pause_prefill=policy.pauses,
            reserved_decode_slots=knobs.reserved_decode_slots,
            peak_load=knobs.peak_load,
            patience=knobs.patience,
        )

    def warm_up(self) -> None:
        """Serve the longest prompt and two tokens once, so that the first policy pays no one-time costs."""
        room, names = self.workload.max_seq_len, self.serving.names
        request = self.serving.request(replace(self.specs[0], answer=2), max_seq_len=room)
        if not request.is_done:
            names.batch_generate(self.serving.model, self.serving.tokenizer, [request], room, 1)

    def one_by_one(self) -> "Demo":
        """The same requests, of which one runs at a time, whatever its priority."""
        alone = {"batch_size": 1, "reserved_decode_slots": 0, "priorities": False, "peak_load": None}
        return replace(self, knobs=replace(self.knobs, **alone))

    def serve(
        self, policy: DemoPolicy, on_event: Listener, check_interrupt: Callable[[], None]
    ) -> "PolicyRun":
        """Serve all requests under one policy; all are there at the start.

        Raises:
            KeyboardInterrupt: from `check_interrupt`, between two steps; every cache is released then.
        """
        with self.service(policy, on_event) as service:
            service.send_all()
            for _ in service.steps(check_interrupt):
                pass
        return PolicyRun(policy, self.specs, service.requests, service.trace())


@dataclass(frozen=True)
class PolicyRun:
    """The latencies of all requests under one policy."""

    policy: DemoPolicy  # of the run
    specs: Sequence[RequestSpec]  # what was sent, and the same as objects of the solution
    requests: Sequence[Request]
    trace: Trace  # what was recorded
    use: DeviceUse | None = None  # of the device, where it was watched

    def ttft(self, number: int) -> float | None:
        """Seconds from sending a request to its first token; None if it had none."""
        return self.trace.lanes[number].ttft

    def latency(self, number: int) -> float | None:
        """Seconds from sending a request to its end; None if it did not finish."""
        return self.trace.lanes[number].latency

    def median_ttft(self, kind: str) -> float | None:
        """Median seconds to the first token, of the prompts of a kind; None if none had one."""
        seconds = known("ttft", self.trace, self.specs, kind)
        return median(seconds) if seconds else None

    def mean_latency(self, kind: str) -> float | None:
        """Mean seconds from sending to the end, of the prompts of a kind; None if none finished."""
        seconds = known("latency", self.trace, self.specs, kind)
        return mean(seconds) if seconds else None

    def per_second(self, count: int) -> float | None:
        """A count divided by the seconds of the run; None for a run without time."""
        return count / self.trace.end if self.trace.end else None

    @property
    def num_finished(self) -> int:
        """Number of requests that came to their end."""
        return len([lane for lane in self.trace.lanes if lane.latency is not None])
