"""`{{#signature FILE NAME}}`: a name's signature and docstring, out of the reference and without its body.

FILE is a path below `src/tiny_llm_ref`; NAME is a function, a class (with its methods) or `Class.method`. Of a file of
one port, the signature of the other port is shown too if it differs: `theme/ports.js` makes tabs of the two.
The chapters state contracts this way: they cannot drift from the code, and they cannot give a solution away.
`cpp_signatures.py` does the same for C++.
"""

import ast
import re
import textwrap

import cpp_signatures
from formulas import ROOT, problem

COLUMNS = 84  # of a block that a page shows without scrolling
ITEM = re.compile(r"\w+(, \w+)*: ")  # how an argument or an error begins

PORTS = {"mlx_backend": "MLX", "torch_backend": "PyTorch"}
SOURCE = ROOT / "src" / "tiny_llm_ref"
DIRECTIVE = re.compile(r"^\{\{#signature +(?P<file>\S+) +(?P<name>[\w.]+) *\}\}", re.MULTILINE)


def expand(text):
    """`text` with every directive replaced by a fenced block, or by one for each port."""
    return DIRECTIVE.sub(lambda match: shown(match["file"], match["name"]), text)


def shown(file, name):
    """What a directive becomes."""
    try:
        own = block(file, name)
    except (OSError, LookupError) as error:
        return problem(f"no signature of {name} in {file} ({type(error).__name__})")
    folder, _, path = file.partition("/")
    try:
        blocks = [block(f"{port}/{path}", name) for port in PORTS] if folder in PORTS else [own]
    except (OSError, LookupError):  # of one port only
        return own
    return tabs(blocks) if len({*blocks}) > 1 else own


def tabs(blocks):
    """A block for each port, labelled: without a script they stand one below the other."""
    parts = (
        f'<div data-port="{label}">\n\n{each}\n\n</div>'
        for label, each in zip(PORTS.values(), blocks, strict=True)
    )
    return "\n".join(['<div class="port-tabs">', *parts, "</div>"])


def block(file, name):
    """A fenced block. Raises OSError or LookupError when there is no such name."""
    source = (SOURCE / file).read_text(encoding="utf-8")
    if file.endswith((".cpp", ".h")):
        return f"```cpp\n{cpp_signatures.contract(source, name)}\n```"
    return f"```python\n{contract(source, name)}\n```"


def contract(source, name):
    """The lines of `name` that say how to call it. Raises LookupError when the source has no such name."""
    node = ast.parse(source)
    for part in name.split("."):
        node = next((child for child in definitions(node) if child.name == part), None)
        if node is None:
            raise LookupError(name)
    lines = textwrap.dedent("\n".join(contract_lines(source.splitlines(), node))).splitlines()
    return "\n".join(fitted(lines))


def definitions(node):
    return [
        child
        for child in node.body
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]


def public_methods(node):
    """The methods that a class shows: `__init__` and its like, and those without an underscore in front."""
    methods = definitions(node) if isinstance(node, ast.ClassDef) else []
    return [each for each in methods if not each.name.startswith("_") or each.name.endswith("__")]


def contract_lines(lines, node):
    """Header and docstring; for a class also those of its public methods, each after a blank line."""
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    end = first.end_lineno if documented else header_end(lines, node)
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    result = lines[start - 1 : end]
    methods = public_methods(node)
    for method in methods:
        result += ["", *contract_lines(lines, method)]
    if not documented and not methods:
        result.append(" " * (node.col_offset + 4) + "...")
    return result


def header_end(lines, node):
    """The last line of `def …:`; the body may begin with comments, so it is not just the line before the body."""
    for number in range(node.lineno, node.body[0].lineno + 1):
        if lines[number - 1].split("#")[0].rstrip().endswith(":"):
            return number
    return node.lineno


def fitted(lines):
    """The lines, none wider than a page: those of the source may be."""
    text, inside = [], False  # a paragraph of a docstring, or one of its items; whether a docstring goes on
    for line in lines:
        if text and not goes_on(text, line):
            yield from wrapped(text)
            text = []
        if inside or '"""' in line:
            text.append(line)
        else:
            yield from arguments_below(line)
        inside ^= line.count('"""') == 1
    yield from wrapped(text)


def goes_on(text, line):
    """Whether a line belongs to the paragraph or the item before it."""
    if not line.strip() or not text[-1].strip() or line.strip() == '"""' or text[0].endswith(":"):
        return False
    deeper = 4 * bool(ITEM.match(text[0].lstrip()))
    return not ITEM.match(line.lstrip()) and indent(line) == indent(text[0]) + deeper


def wrapped(text):
    if max(map(len, text), default=0) <= COLUMNS:
        return text
    first = " " * indent(text[0])
    hanging = first + "    " * bool(ITEM.match(text[0].lstrip()))
    words = " ".join(line.strip() for line in text)
    return textwrap.wrap(
        words, COLUMNS, initial_indent=first, subsequent_indent=hanging, break_on_hyphens=False
    )


def arguments_below(line):
    """A line of a header; if it is too long, with each argument on a line of its own."""
    if len(line) <= COLUMNS:
        return [line]
    opening, closing = line.find("(") + 1, line.rfind(")")
    if not line.lstrip().startswith("def "):  # the arguments alone
        return [f"{' ' * indent(line)}{argument}," for argument in split(line.strip(", "))]
    inner = " " * (indent(line) + 4)
    arguments = [f"{inner}{argument}," for argument in split(line[opening:closing])]
    return [line[:opening], *arguments, " " * indent(line) + line[closing:]]


def split(arguments):
    """At the commas that stand in no bracket."""
    parts, depth = [""], 0
    for piece in re.split(r"(, |[][()])", arguments):
        depth += (piece in ("[", "(")) - (piece in ("]", ")"))
        if piece == ", " and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def indent(line):
    return len(line) - len(line.lstrip())
