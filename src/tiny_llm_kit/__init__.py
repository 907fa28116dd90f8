"""Given code: everything around the course that nobody has to fill in.

Loading, tokenizer, commands, screens and the tooling of the course. Kit code never imports a solution;
it reaches one by name through `port.resolve`.
"""


def __getattr__(name: str):
    """`tiny_llm_kit.load`, imported at its first use: `doctor` must start where nothing is installed yet."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .course.capabilities import load

    return load
