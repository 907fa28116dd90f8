"""What common errors of unfinished code mean, where the error itself does not say it."""

FORGOTTEN = "a function has returned None: is its `return` missing?"
LENGTHS = (
    "two lists that belong together have different lengths: one of them has an entry too many, or too few"
)


def idea_of(error: BaseException) -> str | None:
    """What an error of a test often means; None where its own message is all that is known."""
    said = str(error)
    if "NoneType" in said or said.startswith("assert None") or "(None, " in said[:40]:
        return FORGOTTEN
    return LENGTHS if isinstance(error, ValueError) and said.startswith("zip() argument") else None
