"""The `def` lines of a Python name, without its body: a function, a class with its methods, or `Class.method`."""

import ast
import re
import textwrap

from docstrings import fold, is_short

COLUMNS = 84  # of a block that a page shows without scrolling


def contract(source, name):
    """The lines of `name` that say how to call it, and its docstring, folded, or "" if it is among the lines.

    Raises LookupError when the source has no such name.
    """
    node = found(source, name)
    docstring = ast.get_docstring(node) or ""
    documented = [(each.name, text) for each in public_methods(node) if (text := ast.get_docstring(each))]
    folds = bool(documented) or not is_short(docstring)
    lines = heads(source.splitlines(), node, "" if folds else docstring)
    text = "\n".join(fitted(textwrap.dedent("\n".join(lines)).splitlines()))
    return text, fold(docstring or node.name, documented) if folds else ""


def summary(source, name):
    """A function in one line: its call without types, the day on which it is filled, its docstring's first sentence.

    Raises LookupError when the source has no such name, or no task in it.
    """
    node = found(source, name)
    arguments = node.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        argument.annotation = None
    call = f"{name}({ast.unparse(arguments).removeprefix('self').removeprefix(', ')})"
    text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
    task = re.search(r"# TASK (\d+\.\d+)\.", text)
    if task is None:
        raise LookupError(f"a task in {name}")
    return call, task[1], re.split(r"(?<=\.)\s", ast.get_docstring(node) or "")[0].replace("\n", " ")


def found(source, name):
    """The definition of a name. Raises LookupError when there is none."""
    node = ast.parse(source)
    for part in name.split("."):
        node = next((child for child in definitions(node) if child.name == part), None)
        if node is None:
            raise LookupError(name)
    return node


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


def heads(lines, node, docstring=""):
    """The header with a docstring below it, and the headers of a class's public methods."""
    start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    result = lines[start - 1 : header_end(lines, node)]
    if docstring:
        inner = " " * (node.col_offset + 4)
        text = f'"""{" ".join(docstring.split())}"""'
        indents = {"initial_indent": inner, "subsequent_indent": inner}
        result += textwrap.wrap(text, COLUMNS + node.col_offset, break_on_hyphens=False, **indents)
    result += fields(lines, node)
    for method in public_methods(node):
        result += heads(lines, method)
    return result


def fields(lines, node):
    """The fields of a dataclass, which are its arguments, with their types."""
    if not any("dataclass" in ast.dump(decorator) for decorator in node.decorator_list):
        return []
    fields = [child for child in node.body if isinstance(child, ast.AnnAssign) and child.target.id[0] != "_"]
    return [
        line.split("  #")[0].split(" = field(")[0]
        for field in fields
        for line in lines[field.lineno - 1 : field.end_lineno]
    ]


def header_end(lines, node):
    """The last line of `def …:`; the body may begin with comments, so it is not just the line before the body."""
    for number in range(node.lineno, node.body[0].lineno + 1):
        if lines[number - 1].split("#")[0].rstrip().endswith(":"):
            return number
    return node.lineno


def fitted(lines):
    """The lines, none wider than a page: those of the source may be."""
    return [part for line in lines for part in arguments_below(line)]


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
