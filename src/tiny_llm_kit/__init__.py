"""Given code: everything in the course that learners do not write.

Loading, tokenizer, commands, screens and the tooling of the course. Kit code never imports a solution;
it reaches one by name through `port.resolve`.
"""


def __getattr__(name: str):
    """Import `load` on first use: `doctor` must start where nothing is installed yet."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .course.capabilities import load

    return load
