"""What keeps the stages of a pipeline busy: micro-batches that are planned before earlier ones are computed."""

from tiny_llm_extensions.parallel.in_flight import InFlight
from tiny_llm_extensions.parallel.pipeline import Pipeline


def fill_stages(pipeline: Pipeline) -> None:
    """Plans and submits micro-batches while a stage has none, and something can be planned.

    Args:
        pipeline: its stages, and what is in flight there.
    """
    # TASK 3.7.8: `plan`, its `calls`; for each an `InFlight`, then `submit`, then `num_in_flight` of its requests.
    # Once submitted, a chunk's keys will be in their blocks before a later micro-batch reads them.
    raise NotImplementedError("week 3 day 7 task 8: fill_stages")
