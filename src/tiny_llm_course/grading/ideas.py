"""What common errors of unfinished code mean, where the error itself does not say it."""

import pytest

FORGOTTEN = "a function has returned None: is its `return` missing?"
LENGTHS = (
    "two lists that belong together have different lengths: one of them has an entry too many, or too few"
)
# What Python and the array libraries raise. Their messages speak of shapes, not of the idea that is wrong.
RAW = (ArithmeticError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)


def idea_of(failure: pytest.ExceptionInfo, contract: str | None) -> str | None:
    """What a failure often means; None where its own message is all that is known.

    Args:
        contract: the test's docstring. Its first line explains a raw error, unless the test has set a local `idea`.
    """
    error, said = failure.value, str(failure.value)
    if "NoneType" in said or said.startswith("assert None") or "(None, " in said[:40]:
        return FORGOTTEN
    if not isinstance(error, RAW):
        return None
    if isinstance(error, ValueError) and said.startswith("zip() argument"):
        return LENGTHS
    ideas = (frame.locals.get("idea") for frame in failure.traceback)
    named = next((idea for idea in ideas if isinstance(idea, str)), contract or "")
    return named.partition("\n")[0] or None
