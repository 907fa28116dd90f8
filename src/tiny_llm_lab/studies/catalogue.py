"""The studies by the names that `pdm run lab` takes."""

from collections.abc import Callable

from . import ablation, budget, bursts, capacity, incidents, pipeline, scale, single_prompt
from .served import StudyPlan
from .study import Study

STUDIES: dict[str, Callable[[StudyPlan], Study]] = {
    "piggyback": single_prompt.piggyback,
    "tiles": single_prompt.tiles,
    "overhead": single_prompt.overhead,
    "bubbles": pipeline.bubbles,
    "pipeline": pipeline.run,
    "ablation": ablation.run,
    "budget": budget.run,
    "bursts": bursts.run,
    "capacity": capacity.run,
    "incidents": incidents.run,
    "scale": scale.run,
}
ALL = tuple(name for name in STUDIES if name != "scale")
