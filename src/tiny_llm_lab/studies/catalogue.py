"""The studies by the names that `pdm run lab` takes."""

from collections.abc import Callable

from . import (
    capacity,
    chunk_policies,
    conversations,
    disaggregation,
    guide,
    incidents,
    latency_studies,
    latency_targets,
    pipeline,
    scale,
    settings,
    single_prompt,
)
from .served import StudyPlan
from .study import Study

STUDIES: dict[str, Callable[[StudyPlan], Study]] = {
    "settings": settings.run,
    "piggyback": single_prompt.piggyback,
    "tiles": single_prompt.tiles,
    "overhead": single_prompt.overhead,
    "bubbles": pipeline.bubbles,
    "pipeline": pipeline.run,
    "bubble-budgets": pipeline.budgets,
    "ablation": latency_studies.ablation,
    "budget": latency_studies.budget,
    "bursts": latency_studies.bursts,
    "capacity": capacity.run,
    "targets": latency_targets.run,
    "sglang": chunk_policies.sglang,
    "load": chunk_policies.load,
    "guide": guide.run,
    "incidents": incidents.run,
    "conversations": conversations.run,
    "disaggregation": disaggregation.run,
    "scale": scale.run,
}
ALL = tuple(name for name in STUDIES if name not in ("scale", "conversations", "disaggregation"))
