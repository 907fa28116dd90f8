"""A console that remembers what it prints, and what it printed as a `<pre>` for a chapter to include."""

import io
import re
import textwrap

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 88


def recording_console(command: str, columns: int = COLUMNS) -> Console:
    """A console that remembers what it prints, the same on every machine; it begins with the command's own line."""
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
    """A command on lines that fit the console, as a shell takes them."""
    lines = textwrap.wrap(command, columns - 4, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)


def fragment(console: Console, measured: tuple[str, ...] = ()) -> str:
    """What the console printed, as one `<pre>` for a chapter to include; `measured` patterns of its text are marked."""
    code = console.export_html(theme=MONOKAI, code_format="{code}", inline_styles=True)
    lines = [mark(line.rstrip(), measured) for line in code.splitlines()]
    return '<pre class="screen" tabindex="0">' + "\n".join(lines).strip("\n") + "\n</pre>\n"


def mark(line: str, measured: tuple[str, ...]) -> str:
    """Puts what the patterns match into `<span class="measured">`; tags are left alone."""
    if not measured:
        return line
    either = f"(<[^>]*>)|(?:{'|'.join(measured)})"
    return re.sub(either, lambda m: m[1] or f'<span class="measured">{m[0]}</span>', line)


def unmeasured(fragment: str) -> str:
    """The fragment without what differs in every run."""
    return re.sub(r'<span class="measured">[^<]*</span>', "…", fragment)
