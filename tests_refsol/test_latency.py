"""The latencies of a batch, on traces whose every figure can be worked out by hand."""

from types import SimpleNamespace

import pytest

from tiny_llm_kit.lab.latency import Trace, figures, percentile


@pytest.mark.parametrize(
    ("p", "value"), [(0.1, 15), (5, 15), (20, 15), (20.1, 20), (40, 20), (50, 35), (99, 50), (100, 50)]
)
def test_a_percentile_is_one_of_the_values(p, value):
    """Nearest rank: number ⌈p · n / 100⌉ of the sorted values, here n = 5."""
    assert percentile([40, 15, 50, 20, 35], p) == value


def test_p99_needs_a_hundred_values_to_leave_one_out():
    assert percentile(range(1, 100), 99) == 99
    assert percentile(range(1, 101), 99) == 99
    assert percentile(range(1, 201), 99) == 198
    assert percentile([7], 50) == percentile([7], 99) == 7


@pytest.mark.parametrize(("values", "p"), [([], 50), ([1], 0), ([1], 101), ([1], -1)])
def test_there_is_no_percentile_of_nothing(values, p):
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, p)


class Script:
    """A batch that happens as it is told: requests by number, each with the tokens it has so far."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.requests = [SimpleNamespace(prompt_idx=index, tokens=[]) for index in range(3)]

    def tell(self, time: float, kind: str, index: int, token: bool = False) -> None:
        if token:
            self.requests[index].tokens.append(0)
        self.trace(SimpleNamespace(kind=kind, time=time, request=self.requests[index], slot=None))


def play(trace: Trace) -> None:
    """Two requests that share steps from 1.5 s on, and one that is refused; all three are there at 1 s."""
    script = Script(trace)
    script.tell(1.0, "prefill", 0)
    script.tell(1.25, "token", 0, token=True)
    script.tell(1.25, "prefill", 1)
    script.tell(1.5, "token", 1, token=True)
    script.tell(1.75, "token", 0, token=True)
    script.tell(1.75, "token", 1, token=True)
    script.tell(2.75, "token", 0, token=True)
    script.tell(2.75, "token", 1)  # an end token: the request has no more tokens than before
    script.tell(2.75, "finish", 1)
    script.tell(3.0, "token", 0, token=True)
    script.tell(3.0, "finish", 0)
    script.tell(3.0, "finish", 2)


def test_the_figures_of_a_scripted_trace():
    trace = Trace(start=1.0)
    play(trace)
    assert trace.first == [0.25, 0.5], "from the start, and not from the request's own prefill"
    assert trace.between == [0.5, 1.0, 0.25, 0.25], (
        "gaps of request 0, then of request 1; none across requests"
    )
    assert trace.tokens == 6, "an end token is no token of a text"
    assert trace.tokens_per_second == 6 / 2.0
    assert figures(trace) == [
        "TTFT p50 250.0 ms, p99 500.0 ms",
        "TBT p50 250.0 ms, p99 1000.0 ms",
        "3.0 tokens/s",
    ]


def test_what_was_not_seen_is_left_out():
    trace = Trace(start=1.0)
    script = Script(trace)
    assert figures(trace) == []
    script.tell(2.0, "finish", 2)
    assert (trace.first, trace.between, figures(trace)) == ([], [], [])
    script.tell(3.0, "token", 0, token=True)
    assert figures(trace) == ["TTFT p50 2000.0 ms, p99 2000.0 ms", "0.5 tokens/s"], "one token has no gap"
