"""A workload for Week 3's engine, what it does meanwhile, and the latencies of its requests."""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.trace import Trace, percentile
from tiny_llm_course.trace.workload import Workload
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.solutions.solution_types import Event, PackedModel


class EngineLoad:
    """The requests of one run: those that are there at the start, and those that arrive among the engine's steps.

    `arrives` of a request counts the calls of the model that decode. Every policy and every budget has the same number
    of them, so a prompt meets the same batch under all.

    Args:
        engine: the engine that serves them.
        workload: the requests and their arrivals.
        listeners: called with each event of the run, like those that the engine has.
    """

    def __init__(self, engine: LLMEngine, workload: Workload, *listeners: Callable[[Event], object]):
        self._engine, self._decodes, self._listeners = engine, 0, (*listeners, self._count)
        vocabulary, params = engine.runner.vocab_size, engine.names.SamplingParams
        self.requests = [
            engine.request(
                None,
                spec.ids(vocabulary, number),
                params(max_tokens=spec.answer, ignore_eos=not workload.ends),
            )
            for number, spec in enumerate(workload.requests)
        ]
        pairs = list(zip(self.requests, workload.requests, strict=True))
        self._first = [request for request, spec in pairs if spec.arrives is None]
        late = [(spec.arrives, request) for request, spec in pairs if spec.arrives is not None]
        self._late = deque(sorted(late, key=lambda pair: pair[0]))

    def _count(self, event: Event) -> None:
        if any(part.kind == "decode" for part in event.parts):
            self._decodes += 1

    def run(self) -> None:
        """Serve every request to its end. If nothing is left to do, the next one arrives at once.

        Raises:
            ValueError: a request failed.
        """
        with self._engine.heard_by(*self._listeners):
            self._engine.run(self._first, self._send_due)
            while self._late:
                self._engine.run([self._late.popleft()[1]], self._send_due)
        for request in self.requests:
            if (error := request.output().error) is not None:
                raise ValueError(f"request {request.request_id}: {error}")

    def _send_due(self) -> None:
        while self._late and self._late[0][0] <= self._decodes:
            self._engine.add(self._late.popleft()[1])


class Counts:
    """Counter of calls, preemptions and KV blocks in use: a listener, and a `PackedModel` around the engine's.

    Args:
        engine: whose; its scheduler must be new.
    """

    def __init__(self, engine: LLMEngine):
        self._engine = engine
        self.calls = self.preemptions = self.peak_blocks = 0
        self._before = replace(engine.runner.waste)
        self._drafts = (drafts := engine.extensions.get("drafts")) and replace(drafts.counts)
        engine.loop.model = cast(PackedModel, self)  # `__getattr__` has the rest of it

    def __call__(self, event: Event) -> None:
        if event.kind == "preempt":
            self.preemptions += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.runner, name)

    def run(self, batch: Any) -> list[Any]:
        """See `PackedModel.run`. Blocks are counted here: after the call, those that have ended have none."""
        self._count()
        return self._engine.runner.run(batch)

    def submit(self, batch: Any) -> None:
        """See `PipelinedModel.submit`."""
        self._count()
        cast(Any, self._engine.runner).submit(batch)

    def _count(self) -> None:
        allocator = self._engine.allocator
        self.calls += 1
        self.peak_blocks = max(self.peak_blocks, allocator.num_blocks - allocator.num_free)

    def figures(self) -> dict[str, Any]:
        """The counts since the start."""
        waste = self._engine.runner.waste.since(self._before)
        return {
            "calls": self.calls,
            "preemptions": self.preemptions,
            "peak_blocks": self.peak_blocks,
            "num_blocks": self._engine.allocator.num_blocks,
            "compiled_shapes": self._engine.extensions["shapes"].num_shapes,
            "setup_seconds": self._engine.setup_seconds,
            "scheduled_tokens": waste.tokens,
            "computed_tokens": waste.padded_tokens,
            "scheduled_pages": waste.pages,
            "computed_pages": waste.padded_pages,
            **self._draft_figures(),
        }

    def _draft_figures(self) -> dict[str, int]:
        """Drafts since the start; none of it for an engine without them."""
        if self._drafts is None:
            return {}
        now, before = vars(self._engine.extensions["drafts"].counts), vars(self._drafts)
        return {name: now[name] - before[name] for name in now}


def figures_of_run(engine: LLMEngine, workload: Workload) -> dict[str, Any]:
    """Serve a workload, with an empty prefix cache: latencies in seconds, and counts."""
    engine.reset_prefix_cache()
    counts, recorder = Counts(engine), Recorder(engine.max_num_batched_tokens)
    load = EngineLoad(engine, workload, recorder, counts)
    load.run()
    outputs = [request.output() for request in load.requests]
    return {
        **latencies(recorder.trace()),
        **counts.figures(),
        "cached_tokens": sum(output.num_cached_tokens for output in outputs),
        "output_tokens": sum(len(output.outputs[0].token_ids) for output in outputs),
    }


def trace_of_run(engine: LLMEngine, workload: Workload) -> Trace:
    """Serve a workload, with an empty prefix cache: its trace, with stalls against the workload's promise."""
    engine.reset_prefix_cache()
    recorder = Recorder(workload.promise)
    EngineLoad(engine, workload, recorder).run()
    return recorder.trace(workload.name, engine.max_num_batched_tokens)


def latencies(trace: Trace) -> dict[str, float | None]:
    """TTFT, TPOT and time between tokens of all requests, in seconds; None where no answer has two tokens."""
    lanes, samples = trace.lanes, {"tbt": trace.gaps}
    samples["ttft"] = [lane.ttft for lane in lanes if lane.ttft is not None]
    samples["tpot"] = [lane.tpot(count) or 0.0 for lane in lanes if (count := len(lane.token_times)) > 1]
    found: dict[str, float | None] = {
        f"{name}_p{p}": percentile(values, p) if values else None
        for name, values in samples.items()
        for p in (50, 90, 99)
    }
    return {**found, "longest_gap": trace.longest_gap}
