"""The latencies of a batch, on traces whose every figure can be worked out by hand."""

from types import SimpleNamespace

import pytest

from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.trace import percentile


@pytest.mark.parametrize(("values", "p"), [([], 50), ([1], 0), ([1], 101), ([1], -1)])
def test_there_is_no_percentile_of_nothing(values, p):
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, p)


class Script:
    """A batch that happens as it is told: requests by number, each with the tokens it has so far."""

    def __init__(self):
        self.recorder = Recorder(128)
        self.requests = [
            SimpleNamespace(prompt_idx=index, tokens=[], prompt_tokens=[0], finish_reason="stop")
            for index in range(3)
        ]
        for request in self.requests:
            self.recorder.arrive(request, 1.0)

    def emit(self, time: float, kind: str, index: int, token: bool = False) -> None:
        if token:
            self.requests[index].tokens.append(0)
        self.recorder(SimpleNamespace(kind=kind, time=time, request=self.requests[index], slot=None))

    @property
    def trace(self):
        return self.recorder.trace()


def play(script: Script) -> None:
    """Two requests that share steps from 1.5 s on, and one that is refused; all three are there at 1 s."""
    script.emit(1.0, "prefill", 0)
    script.emit(1.25, "token", 0, token=True)
    script.emit(1.25, "prefill", 1)
    script.emit(1.5, "token", 1, token=True)
    script.emit(1.75, "token", 0, token=True)
    script.emit(1.75, "token", 1, token=True)
    script.emit(2.75, "token", 0, token=True)
    script.emit(2.75, "token", 1)  # an end token: the request has no more tokens than before
    script.emit(2.75, "finish", 1)
    script.emit(3.0, "token", 0, token=True)
    script.emit(3.0, "finish", 0)
    script.emit(3.0, "finish", 2)


def test_the_latencies_of_a_scripted_trace():
    script = Script()
    play(script)
    trace = script.trace
    assert [lane.ttft for lane in trace.lanes] == [0.25, 0.5, None], "from the arrival, not from the prefill"
    assert trace.gaps == [0.5, 1.0, 0.25, 0.25], "gaps of request 0, then of request 1; none across requests"
    assert trace.num_tokens == 6, "an end token is no token of a text"
    assert trace.latencies() == [
        "TTFT p50 250.0 ms, p99 500.0 ms",
        "TBT p50 250.0 ms, p99 1000.0 ms",
        "3.0 tokens/s",
    ]


def test_what_was_not_seen_is_left_out():
    script = Script()
    assert script.trace.latencies() == []
    script.emit(2.0, "finish", 2)
    assert (script.trace.gaps, script.trace.latencies()) == ([], [])
    script.emit(3.0, "token", 0, token=True)
    assert script.trace.latencies() == ["TTFT p50 2000.0 ms, p99 2000.0 ms", "0.5 tokens/s"], (
        "one token has no gap"
    )


@pytest.mark.parametrize(
    ("reason", "latency"), [("stop", 2.0), ("length", 2.0), ("abort", None), ("error", None)]
)
def test_only_an_answer_that_came_to_its_own_end_has_a_latency(reason, latency):
    script = Script()
    assert script.trace.lanes[0].latency is None
    script.requests[0].finish_reason = reason
    script.emit(3.0, "finish", 0)
    assert script.trace.lanes[0].latency == latency
