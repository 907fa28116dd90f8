"""Arrival processes of a load: their rate, their bursts, and what they refuse."""

import numpy as np
import pytest

from tiny_llm_lab.arrivals import arrival_times


def test_arrivals_have_the_rate_and_the_burstiness_that_were_asked_for():
    for burstiness in (0.25, 1.0, 4.0):
        gaps = np.diff(arrival_times(20_000, 5.0, burstiness, rng=np.random.default_rng(1)))
        assert gaps.mean() == pytest.approx(0.2, rel=0.05)
        assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_arrivals_at_another_rate_are_the_same_ones_faster_and_at_infinity_all_at_once():
    slow, fast = (arrival_times(9, rate, rng=np.random.default_rng(3)) for rate in (1.0, 4.0))
    assert slow[0] == 0 and slow == sorted(slow)
    assert fast == pytest.approx([time / 4 for time in slow])
    assert arrival_times(3, float("inf"), rng=np.random.default_rng(3)) == [0.0] * 3


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (float("nan"), 1), (1, 0)])
def test_arrivals_need_a_rate_and_a_burstiness(rate, burstiness):
    with pytest.raises(ValueError, match="above 0"):
        arrival_times(3, rate, burstiness, rng=np.random.default_rng(0))
