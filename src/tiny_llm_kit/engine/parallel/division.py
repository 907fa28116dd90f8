"""The two ways to divide a model among ranks: every matrix, or the layers."""

from typing import Any

from ..port import Port
from .rank_part import RankPart
from .stage_part import StagePart


def part_of(port: Port, group: Any, stages: bool) -> RankPart | StagePart:
    """What this rank holds."""
    return (StagePart if stages else RankPart)(port.serving, group.rank, group.size)


def model_of_ranks(port: Port, stages: bool) -> Any:
    """The solution's model for one rank."""
    return port.PipelineStage if stages else port.Qwen3ModelTensorParallel
