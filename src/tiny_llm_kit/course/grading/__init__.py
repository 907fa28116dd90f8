"""The day tests: a pytest plugin that runs and reports them, their comparison, and oracles."""

from .close import assert_close

__all__ = ["assert_close"]
