"""One prompt alone: the cost of cutting it into chunks, of a decode beside it, and of a tile."""

import math
from dataclasses import replace

from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.simulation.step_cost import StepWork
from tiny_llm_course.trace.workload import SHORT, RequestSpec

from .hardware import DECODE_CONTEXT, HARDWARE, TILE
from .served import StudyPlan, of_yi
from .study import Chart, Curve, Study

PROMPTS, CHUNKS = (2047, 4095, 8191, 16383), (512, 1024, 2048)
# osdi-experiments/figure-9/chunking-overhead.csv: prompt -> chunk -> time relative to one step.
PAPER = {
    2047: {512: 1.152, 1024: 1.175, 2048: 0.999},
    4095: {512: 1.189, 1024: 1.202, 2048: 1.024},
    8191: {512: 1.117, 1024: 1.109, 2048: 0.937},
    16383: {512: 0.995, 1024: 0.961, 2048: 0.805},
}
# osdi-experiments/table-2/results.csv: tokens of a prompt and decodes -> seconds.
MIXED = {(1024, 0): 0.2172, (1021, 3): 0.2176, (0, 4): 0.0681}
AROUND = (255, 256, 257, 384, 385, 512, 513)  # tokens of a step


def ttft(plan: StudyPlan, prompt: int, chunk: int) -> float:
    """Seconds of a prompt without other requests; NaN where it got no token."""
    recorder = Recorder(chunk)
    simulation = Simulation(
        plan.names, HARDWARE[plan.hardware].cost, recorder=recorder, max_num_batched_tokens=chunk
    )
    simulation.send(RequestSpec(SHORT, prompt, 1), 0)
    simulation.run()
    seconds = recorder.trace().lanes[0].ttft
    return math.nan if seconds is None else seconds


def overhead(plan: StudyPlan) -> Study:
    """Compare chunked with whole prompts, by the prompt's length."""
    rows = []
    for prompt in PROMPTS:
        whole = ttft(plan, prompt, prompt)
        for chunk in CHUNKS:
            seconds = ttft(plan, prompt, chunk)
            rows.append([prompt, chunk, seconds, seconds / whole, of_yi(plan, PAPER[prompt][chunk])])
    return Study(
        "overhead",
        f"Chunk overhead\n{HARDWARE[plan.hardware].says}",
        ("prompt", "chunk", "TTFT s", "of whole", "paper, of whole"),
        rows,
        (
            "In the paper's file a very long prompt is faster in chunks than whole; a roofline without a term for the "
            "size of activations cannot show that.",
        ),
    )


def piggyback(plan: StudyPlan) -> Study:
    """Compare decodes beside a prompt with decodes alone."""
    cost, rows = HARDWARE[plan.hardware].cost, []
    for (tokens, decodes), published in MIXED.items():
        work = StepWork.of([(tokens, 0)], [DECODE_CONTEXT] * decodes)
        rows.append([tokens, decodes, 1000 * cost.seconds(work), of_yi(plan, 1000 * published)])
    return Study(
        "piggyback",
        f"Decodes beside a prompt\n{HARDWARE[plan.hardware].says}",
        ("prompt tokens", "decodes", "step ms", "paper ms"),
        rows,
        (
            "The paper's step of 4 decodes took 68.1 ms here and 48.8 ms in its other file: runs differ that much.",
        ),
    )


def tiles(plan: StudyPlan) -> Study:
    """Measure a step of one token more than whole tiles."""
    cost = HARDWARE[plan.hardware].cost
    smooth = replace(cost, tile=1)

    def seconds(cost, tokens: int) -> float:
        return 1000 * cost.seconds(StepWork.of([(tokens, 0)]))

    base = seconds(cost, 256)
    edges = range(0, 641, TILE)
    drawn = sorted({*range(1, 641, 15), *edges, *(edge + 1 for edge in edges)} - {0, 641})
    rows = [
        [n, seconds(cost, n), 100 * (seconds(cost, n) / base - 1), 32 if n == 257 else None] for n in AROUND
    ]
    curves = [
        Curve(name, [(n, seconds(each, n)) for n in drawn])
        for name, each in ((f"tiles of {TILE}", cost), ("no tiles", smooth))
    ]
    return Study(
        "tiles",
        f"Tile quantisation\n{HARDWARE[plan.hardware].says}",
        ("tokens", "step ms", "more than 256 tokens, %", "paper, %"),
        rows,
        (f"The tile, {TILE} tokens, was chosen by this figure of the paper: it is no prediction.",),
        Chart("tokens of a step", "milliseconds", curves),
    )
