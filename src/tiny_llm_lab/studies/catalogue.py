"""The studies by the names that `pdm run lab` takes."""

from collections.abc import Callable

from . import capacity, incidents, latency_studies, pipeline, scale, single_prompt
from .served import StudyPlan
from .study import Study

STUDIES: dict[str, Callable[[StudyPlan], Study]] = {
    "piggyback": single_prompt.piggyback,
    "tiles": single_prompt.tiles,
    "overhead": single_prompt.overhead,
    "bubbles": pipeline.bubbles,
    "pipeline": pipeline.run,
    "ablation": latency_studies.ablation,
    "budget": latency_studies.budget,
    "bursts": latency_studies.bursts,
    "capacity": capacity.run,
    "incidents": incidents.run,
    "scale": scale.run,
}
ALL = tuple(name for name in STUDIES if name != "scale")
