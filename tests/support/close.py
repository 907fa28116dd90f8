"""The comparison of the day tests: its message names the wrong idea, not only the number."""

from collections.abc import Callable, Mapping

import numpy as np

# At the end of an idea that several mistakes would break.
OR_EARLIER = "; or more is wrong, as an earlier failure says"


def recognised(actual: np.ndarray, wrong: Mapping[str, Callable[[], np.ndarray]], idea: str) -> str:
    """The names of the wrong ideas that compute `actual`; `idea` when it is not one of them."""

    def computes(result: np.ndarray) -> bool:
        return actual.shape == result.shape and np.allclose(actual, result, atol=1e-4)

    return ", or: ".join(name for name, compute in wrong.items() if computes(compute())) or idea


def assert_close(actual, expected, *, atol: float = 1e-5, rtol: float = 1e-5, idea: str) -> None:
    """Compare two NumPy arrays in float64.

    Args:
        actual: what the solution computed.
        expected: what the oracle says.
        atol, rtol: |actual − expected| ≤ atol + rtol·|expected| passes.
        idea: what is probably wrong when this fails, in the words of the chapter.

    Raises:
        AssertionError: naming the idea, the shapes, and the worst element.
    """
    __tracebackhide__ = True
    if actual is None:
        raise AssertionError(f"{idea}\n  the result is None: is a `return` missing?")
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if actual.shape != expected.shape:
        raise AssertionError(f"{idea}\n  shape {actual.shape}, expected {expected.shape}")
    wrong = ~np.isclose(actual, expected, atol=atol, rtol=rtol, equal_nan=False)
    if wrong.any():
        difference = np.where(np.isfinite(actual), np.abs(actual - expected), np.inf)
        at = np.unravel_index(np.argmax(np.where(wrong, difference, -1)), actual.shape)
        raise AssertionError(
            f"{idea}\n  {wrong.sum()} of {wrong.size} elements differ; "
            f"the worst at {tuple(map(int, at))}: {actual[at]:.6g}, expected {expected[at]:.6g}"
        )
