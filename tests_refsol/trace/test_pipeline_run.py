"""What is made of a pipeline's spans: bubbles, their kinds, the prediction and the chart; all worked out by hand."""

import pytest

from tiny_llm_course.trace.pipeline import gantt
from tiny_llm_course.trace.pipeline.pipeline_run import PipelineRun
from tiny_llm_course.trace.pipeline.simulated_pipeline import SimulatedPipeline, pass_in_turns, predicted
from tiny_llm_course.trace.simulation.step_cost import AdditiveCost, StepWork

PLAIN = AdditiveCost.of_terms(0.0, 1.0, 0.0, 1.0)  # a second for each token of a prompt and each decode
CHUNK, SMALL, DECODES = (
    StepWork(chunk_tokens=4),
    StepWork(chunk_tokens=2),
    StepWork(decodes=2, decode_pairs=9),
)
# Stage 1 begins when stage 0 has ended; both take half of each step.
RUN = PipelineRun.of_seconds(
    [CHUNK, SMALL, DECODES],
    [[(10.0, 12.0), (12.0, 13.0), (14.0, 15.0)], [(12.0, 14.0), (14.0, 15.0), (15.0, 16.0)]],
)


def test_bubbles_lie_between_the_micro_batches_of_a_stage():
    assert [(bubble.kind, bubble.start, bubble.end) for bubble in RUN.bubbles(0)] == [
        ("PB1", 2.0, 2.0),
        ("PB2", 3.0, 4.0),
    ]
    assert RUN.seconds_by_kind() == {"PB1": 0.0, "PB2": 1.0}
    assert (RUN.end, RUN.busy(0), RUN.busy(1), RUN.shares) == (6.0, 4.0, 4.0, [0.5, 0.5])
    assert RUN.bubble_share == pytest.approx(1 / 9)


def test_a_prediction_of_the_same_micro_batches_is_the_run_itself():
    """It was made by the rules of the prediction: two in flight, each stage half of a step."""
    found = predicted(RUN, PLAIN)
    assert found.seconds_by_kind() == {"PB1": 0.0, "PB2": 1.0}
    assert found.bubble_share == pytest.approx(RUN.bubble_share)
    assert [seconds for _, seconds in RUN.samples] == [4.0, 2.0, 2.0]


def test_stages_of_unequal_shares_wait_for_the_slowest():
    found = pass_in_turns(PLAIN, [CHUNK] * 11, 2, [0.25, 0.75])
    assert found.end == 4 + 10 * 3
    assert found.bubble_share == pytest.approx(9 * 2 / (9 * 2 + 44), abs=0.02), (
        "stage 0 waits 2 s in each turn"
    )


def test_receiving_takes_time_on_every_stage_but_the_first():
    pipeline = SimulatedPipeline(PLAIN, 3, transfer=0.5)
    assert pipeline.send(StepWork(chunk_tokens=3), 1.0) == 1 + 3 + 2 * 0.5
    run = PipelineRun.of_seconds([CHUNK] * 2, [[(0.0, 2.0), (2.0, 4.0)], [(2.5, 4.5), (5.25, 7.0)]])
    assert run.transfers == [0.75], "since the stage was free, and the first one had ended"


def test_the_chart_has_a_row_for_each_stage_and_names_the_bubbles():
    signs = [
        "".join(sign for sign, _ in gantt.cells_of(gantt.bars_of(RUN, stage), RUN.end, 6))
        for stage in range(2)
    ]
    assert signs == ["██▓2█ ", "  ██▓█"]
