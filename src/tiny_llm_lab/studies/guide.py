"""The run of the guide to chunked prefill on Gaudi: prompts of 8,192 tokens, all at the start, answers of 1,024."""

from typing import Any

from tiny_llm_course.trace.text import counted
from tiny_llm_course.trace.workload import SHORT, RequestSpec
from tiny_llm_engine.solutions.solution_types import Event

from ..latency_recorder import LatencyRecorder
from .hardware import HARDWARE
from .served import StudyPlan, simulation_on
from .study import Study

MODEL = "llama-3-8b"
PROMPT, ANSWER = 8192, 1024
SEQS, BUDGET = 128, 4096  # of the guide's command, which has 1,024 requests
WAYS: dict[str, dict[str, Any]] = {
    "512": {"max_num_batched_tokens": 512},
    "2,048": {"max_num_batched_tokens": 2048},
    "4,096 (guide)": {"max_num_batched_tokens": BUDGET},
    "whole": {"max_num_batched_tokens": PROMPT + ANSWER, "enable_chunked_prefill": False},
}


class RunningRecorder(LatencyRecorder):
    """Counts the requests that run, and preemptions."""

    def __init__(self):
        super().__init__()
        self.running = self.most = self.preemptions = 0

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind in ("prefill", "resume"):
            self.running += 1
            self.most = max(self.most, self.running)
        elif event.kind in ("preempt", "finish"):
            self.running -= 1
            self.preemptions += event.kind == "preempt"


def serve(plan: StudyPlan, **options: Any) -> RunningRecorder:
    """Serve the requests, all of them there at the start."""
    recorder, sizes = RunningRecorder(), {"max_num_seqs": SEQS, **options}
    simulation = simulation_on(HARDWARE[MODEL], plan.names, recorder, PROMPT + ANSWER, **sizes)
    simulation.send_all(RequestSpec(SHORT, PROMPT, ANSWER, time=0.0) for _ in range(plan.requests))
    simulation.run()
    return recorder


def run(plan: StudyPlan) -> Study:
    """Run the guide's requests whole, and in chunks of several sizes; `plan.hardware` does not count."""
    rows = []
    for name, options in WAYS.items():
        recorder = serve(plan, **options)
        found = recorder.latencies()
        tokens = found.tokens + PROMPT * found.requests
        latencies = found.ttft(50), found.tbt(99), found.longest_gap
        rows.append([name, found.end, tokens / found.end, *latencies, recorder.most, recorder.preemptions])
    return Study(
        "guide",
        f"The guide's run, {counted(plan.requests, 'request')} of {PROMPT:,} + {ANSWER:,} tokens, at most {SEQS} at "
        f"a time\n{HARDWARE[MODEL].says}",
        ("chunks", "total s", "tokens/s", "P50 TTFT s", "P99 TBT s", "longest s", "at once", "preempted"),
        rows,
        (
            "The guide's figures, and step times of a Gaudi 2, were not published.",
            "At once: KV blocks end before the 128 requests that the command allows.",
        ),
    )
