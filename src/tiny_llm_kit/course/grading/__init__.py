"""How the day tests run and what they say: the pytest plugin and the one comparison that tests use."""

from .close import assert_close

__all__ = ["assert_close"]
