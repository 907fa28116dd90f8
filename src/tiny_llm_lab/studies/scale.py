"""Processor time that the simulator needs for many requests: it uses one thread, and never waits."""

import time
from collections.abc import Callable

from .hardware import HARDWARE
from .served import StudyPlan, options_of, serve_trace
from .study import Study

TRACE, RATE = "openchat", 0.8
MILLION = 1_000_000
COLUMNS = ("requests", "processor s", "steps", "skipped, %", "hours simulated", "P50 TTFT s", "P99 TBT s")


def run(plan: StudyPlan, clock: Callable[[], float] = time.process_time) -> Study:
    """Time one run of the requests, and estimate that of a million."""
    start = clock()
    found = serve_trace(plan, TRACE, RATE, plan.seeds[0], **options_of("Sarathi-Serve", TRACE))
    seconds, latencies = clock() - start, found.recorder.latencies()
    skipped, times = 100 * found.skipped / found.steps, MILLION / plan.requests
    hours = latencies.end / 3600
    ran = [f"{plan.requests:,}", seconds, found.steps, skipped, hours, latencies.ttft(50), latencies.tbt(99)]
    million = [f"{MILLION:,}, extrapolated", seconds * times, None, None, hours * times, None, None]
    return Study(
        "scale",
        f"Scale, {TRACE} at {RATE:g} req/s, chunks of 512\n{HARDWARE[plan.hardware].says}",
        COLUMNS,
        [ran, million],
        (
            "A million was not run: its time is proportional, since the rate is one that is served without a backlog.",
        ),
    )
