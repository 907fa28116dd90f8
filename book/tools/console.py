"""A console that records what it prints, and its output as a `<pre>` for a chapter."""

import io
import re
import textwrap

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 88
MEASURED_LINE = '<span class="measured-line"></span>'


def recording_console(command: str, columns: int = COLUMNS) -> Console:
    """A recording console, the same on every machine, that starts with the command's own line."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        highlight=False,
    )
    console.print(Text.assemble(("$ ", "green"), (shell_lines(command, columns), "bold")), soft_wrap=True)
    return console


def shell_lines(command: str, columns: int) -> str:
    """A command broken into lines that fit the console, with a backslash at each break."""
    lines = textwrap.wrap(command, columns - 4, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)


def fragment(console: Console, measured: tuple[str, ...] = ()) -> str:
    """The console's output as a `<pre>` for a chapter; text that matches `measured` is marked."""
    code = console.export_html(theme=MONOKAI, code_format="{code}", inline_styles=True)
    lines = [mark(line.rstrip(), measured) for line in code.splitlines()]
    return '<pre class="screen" tabindex="0">' + "\n".join(lines).strip("\n") + "\n</pre>\n"


def mark(line: str, measured: tuple[str, ...]) -> str:
    """Wrap text that matches a pattern in `<span class="measured">`; tags are left alone.

    A line of which all the text matches gets a mark in front: its tags may differ too, such as the colours of a chart.
    """
    if not measured:
        return line
    text = re.sub(r"<[^>]*>", "", line)
    if any(re.fullmatch(pattern, text) for pattern in measured):
        return MEASURED_LINE + line
    either = f"(<[^>]*>)|(?:{'|'.join(measured)})"
    return re.sub(either, lambda m: m[1] or f'<span class="measured">{m[0]}</span>', line)


def unmeasured(fragment: str) -> str:
    """The fragment without the text that differs between runs."""
    fragment = re.sub(f"{MEASURED_LINE}.*", "…", fragment)
    return re.sub(r'<span class="measured">[^<]*</span>', "…", fragment)
