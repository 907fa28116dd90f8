"""How ranks share a model: what each of them holds, and the model that it makes of that."""

from dataclasses import dataclass
from typing import Any

from tiny_llm_engine.loading import HeldPart, mlp_options
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .groups import Group
from .rank_parts import RankPart, StagePart


@dataclass(frozen=True)
class RankDivision:
    """The ranks that compute a model of Week 3 together, and how they share it: a `Division`.

    Args:
        group: see `Group`; `rank` is this process.
        stages: whether they share the layers, and not every matrix.
        expert_parallel: whether they share the experts, and not every expert's matrices.
    """

    group: Group
    stages: bool = False
    expert_parallel: bool = False

    def part(self, names: ServingPackage) -> HeldPart:
        """What this rank holds."""
        place = names, self.group.rank, self.group.size
        return StagePart(*place) if self.stages else RankPart(*place, self.expert_parallel)

    def model(self, port: Port, weights: Any, options: dict[str, Any]) -> Any:
        """This rank's model around the weights of its part."""
        group = self.group
        if self.stages:
            return port.PipelineStage(weights, **options, **mlp_options(port, weights.config), group=group)
        mixtures = mlp_options(port, weights.config, group)
        return port.Qwen3ModelTensorParallel(weights, **options, **mixtures, group=group)
