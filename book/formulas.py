"""LaTeX formulas to MathML, which a browser draws by itself: no script, no network.

`$…$` is a formula in a line and `$$…$$` one on its own. A dollar sign opens a formula when it touches what
follows and no letter, digit or backslash stands before it; it closes one when it touches what stands before it
and no letter or digit follows. So "$5 and $6" is money, and `\\$` is always a dollar sign. Code and HTML tags
are left alone.
"""

import html
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# What may hold a dollar sign that opens no formula comes first, and is kept as it is.
TOKEN = re.compile(
    r"""
      ^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(?P<fence>`{3,}|~{3,}) .*? (?:^[ \t>]*(?P=fence)[`~]*[ \t]*$|\Z)
    | (?<!`)(?P<ticks>`+)(?!`) .+? (?<!`)(?P=ticks)(?!`)
    | <!--.*?-->
    | <(?P<element>pre|code|svg|script|style|math)\b.*?</(?P=element)>
    | </?[a-zA-Z][\w-]*(?:\s+[\w:-]+(?:=(?:"[^"]*"|'[^']*'|[^\s"'>]+))?)*\s*/?>
    | \\\$
    | \$\$ (?P<display>(?:[^$]|(?<=\\)\$)+?) \$\$
    | (?<![\w\\$]) \$ (?![\s$]) (?P<inline>(?:\\.|[^$\\\n]|\n(?!\s*\n))+?) (?<!\s) \$ (?![\w$])
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)

# latex2mathml writes names and some values as operators, which a browser draws with room around them, and some brackets
# and relations as identifiers, which it does not stretch.
VALUE = re.compile(r"<mo>(?!mod<)([^\W\d_]{2,}|∞|⊤)</mo>")
OPERATOR = re.compile(r"<mi>([⌈⌉⌊⌋⟺…])</mi>")
# A function's name and what it is of, without brackets: a narrow space as in print.
APPLIED = re.compile(r"(?<!<msub>)(?<!<msup>)(<mi>(?:log|ln|cos|sin)</mi>)(?=<m(?!o))")


def render(text, to_mathml):
    """`text` with every formula replaced by what `to_mathml(latex, display)` gives for it."""

    def replace(match):
        display, inline = match["display"], match["inline"]
        if display is not None:
            return f'<span class="formula">{to_mathml(display.strip(), True)}</span>'
        return to_mathml(inline, False) if inline is not None else match[0]

    return TOKEN.sub(replace, text)


def converter():
    """The best converter of this machine: MathML, or the LaTeX itself where latex2mathml is not installed."""
    if latex2mathml := find_latex2mathml():
        return lambda latex, display: mathml(latex, display, latex2mathml)
    print(
        "book: latex2mathml is not installed, so formulas show as LaTeX; `pdm install` brings it",
        file=sys.stderr,
    )
    return lambda latex, display: f"<code>{inert(latex)}</code>"


def find_latex2mathml():
    """`latex2mathml.converter.convert` of this Python or, pure Python as it is, of the project's `.venv`; or None."""
    candidates = [*ROOT.glob(".venv/lib/python3*/site-packages"), ROOT / ".venv/Lib/site-packages"]
    sys.path += [str(folder) for folder in candidates if folder.is_dir()]
    try:
        from latex2mathml.converter import convert
    except ImportError:
        return None
    return convert


def mathml(latex, display, convert):
    """One `<math>` element on one line. Its `alttext` keeps the LaTeX, for screen readers and for copying."""
    try:
        markup = convert(latex, display="block" if display else "inline")
    except Exception as error:  # latex2mathml raises many kinds; all of them mean that the formula is wrong
        return problem(f"formula ${latex}$: {type(error).__name__}")
    if unknown := re.search(r"\\[a-zA-Z]+|>&<", markup):
        return problem(f"formula ${latex}$: latex2mathml does not know {unknown[0].strip('<>')}")
    markup = re.sub(r"<(\w+)([^<>]*?) ?/>", r"<\1\2></\1>", markup)
    markup = re.sub(r"(?<=>)[^<>]+(?=<)", lambda text: inert(html.unescape(text[0])), markup)
    markup = OPERATOR.sub(r"<mo>\1</mo>", VALUE.sub(r"<mi>\1</mi>", markup))
    markup = APPLIED.sub(r'\1<mspace width="0.17em"></mspace>', markup)
    return markup.replace("<math ", f'<math alttext="{inert(latex)}" ', 1)


def inert(text):
    """`text` as HTML in which Markdown finds nothing to do, not even the border of a table cell."""
    escaped = html.escape(text.replace("\n", " "))
    return re.sub(r"[*_`|\[\]~\\$]", lambda char: f"&#{ord(char[0])};", escaped)


def problem(message):
    """What stands in the page instead of a thing that could not be rendered; `pdm run book check` finds it."""
    print(f"book: {message}", file=sys.stderr)
    return f'<span class="book-error">{inert(message)}</span>'
