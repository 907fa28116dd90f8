"""Pages and drawings from jinja2 templates. What is put into one is escaped."""

from pathlib import Path

from .text import counted
from .timeline.words import duration


def render(file: Path, **values: object) -> str:
    """The text of a template; a value that is missing is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(file.parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"duration": duration, "counted": counted}
    return environment.get_template(file.name).render(values)
