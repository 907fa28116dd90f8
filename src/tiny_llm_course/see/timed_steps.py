"""When host and device work on the steps of a real model, by the learner's schedulers: the second screen of Day 4.4."""

import time
from collections.abc import Sequence
from typing import Any, cast

from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Array, PackedBatch, Sampled
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.runners import packed_runner

from ..trace.serve import endless_sequence
from ..trace.simulation.virtual_device import WorkSpan, steps_of
from .shared import run_all, shipped

REQUESTS, PROMPT, ANSWER = 16, 8, 40
BLOCK = 16
ROUNDS = 6  # of both ways
Run = tuple[list[WorkSpan], list[WorkSpan]]  # of the host and of the device, a span for each step


class TimedModel:
    """A model of Week 3 that notes when each of its calls computed."""

    def __init__(self, model: Any):
        self._model, self.spans = model, list[WorkSpan]()

    def __call__(self, *inputs: Any) -> Array:
        start = time.perf_counter()
        found = self._model(*inputs)
        self.spans.append(WorkSpan(start, time.perf_counter()))
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class TimedSampler:
    """A `SeededSampler` with whose draw the step of a `TimedModel` ends."""

    def __init__(self, sampler: Any, spans: list[WorkSpan]):
        self._sampler, self._spans = sampler, spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def launch(self, *arguments: Any) -> Any:
        """See `SeededSampler.launch`."""
        found = self._sampler.launch(*arguments)
        self._spans[-1] = WorkSpan(self._spans[-1].start, time.perf_counter())
        return found


class TimedRunner:
    """A `PipelinedModel` that notes when the host worked: from the last collect or submit to the next submit."""

    num_stages = 2

    def __init__(self, runner: Any):
        self._runner, self.spans, self._free = runner, list[WorkSpan](), time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def submit(self, batch: PackedBatch) -> None:
        """See `PipelinedModel.submit`."""
        self._runner.submit(batch)
        now = time.perf_counter()
        self.spans.append(WorkSpan(self._free, now))
        self._free = now

    def collect(self) -> list[Sampled]:
        """See `PipelinedModel.collect`."""
        found = self._runner.collect()
        self._free = time.perf_counter()
        return found

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        self.submit(batch)
        return self.collect()


def timed_runs(b: Port, ways: Sequence[bool]) -> list[Run]:
    """The fastest run of each way, in turns. One thread computes, so that Python has a core.

    Args:
        ways: whether steps are planned ahead.
    """
    threads = b.backend_module.product_machine()["threads"]
    b.backend_module.set_threads(1)
    try:
        runs = [[timed_run(b, is_ahead) for is_ahead in ways] for _ in range(ROUNDS)]
    finally:
        b.backend_module.set_threads(threads)
    return [min(found, key=lambda run: run[1][-1].end - run[1][0].start) for found in zip(*runs, strict=True)]


def timed_run(b: Port, is_ahead: bool) -> Run:
    """What host and device did in each step of a load."""
    model, blocks = TimedModel(b.Qwen3ModelWeek3(shipped(b))), REQUESTS * 4
    plain = packed_runner(b, model, blocks, BLOCK, async_scheduling=True)
    plain.sampler, runner = TimedSampler(plain.sampler, model.spans), TimedRunner(plain)
    allocator = b.serving.BlockAllocator(blocks, BLOCK)
    run_all(make_loop(b.serving, "hybrid", cast(Any, runner), allocator, **steps_of(is_ahead)), requests(b))
    return runner.spans, model.spans


def requests(b: Port) -> list[AnswerSequence]:
    """The requests of the load."""
    prompts = ([7 * number + place for place in range(PROMPT)] for number in range(REQUESTS))
    return [
        endless_sequence(b.serving, prompt, ANSWER, 4 * BLOCK, number)
        for number, prompt in enumerate(prompts)
    ]
