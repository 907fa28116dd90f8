"""`{{#signature FILE NAME}}`: a name's signature and docstring, out of the reference and without its body.

FILE is a path below `src/tiny_llm_ref`; NAME is a function, a class (with its methods) or `Class.method`.
The chapters state contracts this way: they cannot drift from the code, and they cannot give a solution away.
"""

import ast
import re
import textwrap

from formulas import ROOT, problem

SOURCE = ROOT / "src" / "tiny_llm_ref"
DIRECTIVE = re.compile(r"^\{\{#signature +(?P<file>\S+) +(?P<name>[\w.]+) *\}\}", re.MULTILINE)


def expand(text):
    """`text` with every directive replaced by a fenced block."""
    return DIRECTIVE.sub(lambda match: block(match["file"], match["name"]), text)


def block(file, name):
    try:
        source = (SOURCE / file).read_text(encoding="utf-8")
        return f"```python\n{contract(source, name)}\n```"
    except (OSError, LookupError) as error:
        return problem(f"no signature of {name} in {file} ({type(error).__name__})")


def contract(source, name):
    """The lines of `name` that say how to call it. Raises LookupError when the source has no such name."""
    node = ast.parse(source)
    for part in name.split("."):
        node = next((child for child in definitions(node) if child.name == part), None)
        if node is None:
            raise LookupError(name)
    return textwrap.dedent("\n".join(contract_lines(source.splitlines(), node)))


def definitions(node):
    return [child for child in node.body if isinstance(child, (ast.FunctionDef, ast.ClassDef))]


def contract_lines(lines, node):
    """Header and docstring; for a class also those of its methods, each after a blank line."""
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    end = first.end_lineno if documented else header_end(lines, node)
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    result = lines[start - 1 : end]
    methods = definitions(node) if isinstance(node, ast.ClassDef) else []
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
