"""Serving in stages, in virtual time: a group of requests for each stage, with one scheduler each."""

from collections.abc import Callable, Iterable

from tiny_llm_course.trace.pipeline.simulated_pipeline import SimulatedPipeline
from tiny_llm_course.trace.simulation.simulated_model import SimulatedPackedModel
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.simulation.step_cost import StepWork
from tiny_llm_course.trace.workload import RequestSpec
from tiny_llm_engine.solutions.solution_types import Sampled, ServingPackage

from .hardware import BLOCK


class PipelinedModel(SimulatedPackedModel):
    """A simulated model whose steps are micro-batches in a shared pipeline."""

    def __init__(self, pipeline: SimulatedPipeline, sampled: Callable[[int], Sampled], max_model_len: int):
        super().__init__(sampled, pipeline.cost, max_model_len)
        self._pipeline, self._end = pipeline, 0.0

    def end_of(self, work: StepWork) -> float:
        """When the micro-batch has left the pipeline."""
        is_late = self.clock.now > self._end
        self._end = self._pipeline.send(work, self.clock.now, is_late)
        return self._end


def groups_of(
    names: ServingPackage,
    pipeline: SimulatedPipeline,
    specs: Iterable[RequestSpec],
    max_model_len: int,
    num_blocks: int,
    **options: object,
) -> list[Simulation]:
    """A simulation for each stage, among which the requests and the KV blocks are divided.

    Args:
        max_model_len: tokens of a prompt and its answer, at most.
        num_blocks: KV blocks of all stages together.
        options: passed on to each `Simulation`.
    """
    stages = len(pipeline.shares)
    groups = [
        Simulation(
            names,
            model=PipelinedModel(pipeline, names.Sampled, max_model_len),
            num_blocks=num_blocks // stages,
            block_size=BLOCK,
            jump=False,  # a skipped step would not pass the pipeline
            **options,  # pyright: ignore[reportArgumentType]
        )
        for _ in range(stages)
    ]
    for number, spec in enumerate(specs):
        groups[number % stages].send(spec, number)
    return groups


def serve_all(groups: list[Simulation]) -> None:
    """Serve every request: the group whose time is earliest goes next."""
    left = list(groups)
    while left:
        group = min(left, key=lambda group: group.clock.now)
        if not group.advance():
            left.remove(group)
