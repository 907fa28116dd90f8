"""The two ways to divide a model among ranks: every matrix, or the layers."""

from typing import Any

from ..port import Port
from .rank_part import RankPart
from .stage_part import StagePart


def part_of(port: Port, group: Any, stages: bool, expert_parallel: bool = False) -> RankPart | StagePart:
    """What this rank holds."""
    place = port.serving, group.rank, group.size
    return StagePart(*place) if stages else RankPart(*place, expert_parallel)


def model_of_ranks(port: Port, stages: bool) -> Any:
    """The solution's model for one rank."""
    return port.PipelineStage if stages else port.Qwen3ModelTensorParallel
