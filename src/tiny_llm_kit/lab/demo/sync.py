"""The first demo: all requests are there at the start, and a loop steps the scheduler."""

from collections.abc import Callable
from typing import Any

from .job import Job
from .outcome import Outcome
from .policies import Policy


def serve(
    job: Job, policy: Policy, on_event: Callable[[Any], object], check_interrupt: Callable[[], None]
) -> Outcome:
    """Serves all requests under one policy.

    Raises:
        KeyboardInterrupt: from `check_interrupt`, between two steps; every cache is released then.
    """
    scheduler, outcome = job.begin(policy, on_event)
    try:
        for request in outcome.requests:
            outcome.send(request.prompt_idx, outcome.start)
            scheduler.add(request)
        while scheduler.has_work_remaining():
            scheduler.step()
            check_interrupt()
    finally:
        scheduler.close()
    return outcome
