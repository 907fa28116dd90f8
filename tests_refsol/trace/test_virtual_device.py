"""A device with a queue and a host beside it in virtual time, worked out by hand."""

import pytest

from tiny_llm_course.trace.simulation.virtual_device import VirtualDevice, WorkSpan, served_on_device
from tiny_llm_ref import serving

BATCH = serving.PackedBatch(token_ids=[7, 8], sample_rows=[0, 1])


def test_a_step_waits_for_the_host_and_for_the_step_before():
    device = VirtualDevice(serving.Sampled, host_seconds=2.0, step_seconds=6.0)
    device.submit(BATCH)
    device.submit(BATCH)
    assert len(device.collect()) == 2
    assert device.clock.now == 8.0
    device.submit(BATCH)
    assert device.host == [WorkSpan(0.0, 2.0), WorkSpan(2.0, 4.0), WorkSpan(8.0, 10.0)]
    assert device.device == [WorkSpan(2.0, 8.0), WorkSpan(8.0, 14.0), WorkSpan(14.0, 20.0)]
    device.abandon()
    assert (device.clock.now, device.idle_share, device.reads) == (20.0, 0.0, 1)


@pytest.mark.parametrize(
    ("host", "before", "after"), [(2.0, 1 / 4, 0.0), (6.0, 1 / 2, 0.0), (9.0, 9 / 15, 3 / 9)]
)
def test_the_idle_share_of_many_steps(host, before, after):
    """Before: host / (host + step). After: the part of the host that is longer than the step."""
    plain, ahead = (
        served_on_device(serving, is_ahead, host, 6.0, [300]).idle_share for is_ahead in (False, True)
    )
    assert plain == pytest.approx(before, abs=0.01)
    assert ahead == pytest.approx(after, abs=0.01)
