"""The child process in which the tests of Day 4.1 run kernels, and the guards around their arrays."""

import ctypes

import numpy as np
import pytest

from support import child
from support.kernels import GUARD, assert_untouched, guarded


def test_a_child_returns_what_its_work_returns_or_raises():
    assert child.in_child(lambda: [np.ones(2), None])[1] is None
    with pytest.raises(NotImplementedError, match="week 4 day 1 task 1"):
        child.in_child(lambda: exec('raise NotImplementedError("week 4 day 1 task 1: multiply_line")'))


def test_a_crash_is_an_assertion_with_its_signal():
    with pytest.raises(AssertionError, match=r"crashed \(SIGSEGV\)"):
        child.in_child(lambda: ctypes.string_at(0))


def test_a_child_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(child, "SECONDS", 0.05)
    with pytest.raises(child.Endless, match=r"not ended after 0\.05 s"):
        child.in_child(lambda: [None for _ in iter(int, 1)])


@pytest.mark.parametrize("dtype", ["float32", "uint16", "uint8", "int64"])
@pytest.mark.parametrize("at", [-1, -GUARD, 6, 5 + GUARD])
def test_a_write_beside_an_array_is_found(dtype, at):
    array = guarded(np.arange(6, dtype=dtype).reshape(2, 3))
    array[0] = 1
    assert_untouched("y", array)
    array.base[GUARD + at] = 3
    with pytest.raises(AssertionError, match=rf"outside of y \(2, 3\): at number {at} of its 6"):
        assert_untouched("y", array)
