"""`{{#signature FILE NAME}}`: how to call a name, out of the reference and without its body; its docstring folds open.

FILE is a path below `src/tiny_llm_ref`, or below `src/tiny_llm_stubs` in a copy without it; NAME is a function, a class
(with its methods) or `Class.method`, or a name in C++. Of a file of one port, the other port's signature is shown too
if it differs: `theme/ports.js` makes tabs of the two. The chapters state contracts this way: they cannot drift from the
code, and they cannot give a solution away.

`{{#have FILE NAME, FILE NAME}}` folds functions of earlier days, a line each, for who has skipped those days.
"""

import re

import cpp_signatures
import python_signatures
from formulas import ROOT, problem

PORTS = {"mlx_backend": "MLX", "torch_backend": "PyTorch"}
REFERENCE = ROOT / "src" / "tiny_llm_ref"
SOURCE = REFERENCE if REFERENCE.is_dir() else ROOT / "src" / "tiny_llm_stubs"
DIRECTIVE = re.compile(r"^\{\{#signature +(?P<file>\S+) +(?P<name>[\w.]+) *\}\}", re.MULTILINE)
HAVE = re.compile(r"^\{\{#have +(?P<names>[^}]+)\}\}", re.MULTILINE)
HAVE_BLOCK = """<details class="have">
<summary>What you already have, if you skipped days</summary>

{}

</details>"""


def expand(text):
    """`text` with every directive replaced by a block of code and what folds open below it."""
    text = HAVE.sub(lambda match: have(match["names"].split(",")), text)
    return DIRECTIVE.sub(lambda match: shown(match["file"], match["name"]), text)


def have(names):
    """A folded list of functions, each with its call, its day and what it does."""
    lines = []
    for file, name in map(str.split, names):
        try:
            source = (SOURCE / file).read_text(encoding="utf-8")
            call, day, text = python_signatures.summary(source, name)
        except (OSError, LookupError) as error:
            return problem(f"no summary of {name} in {file} ({type(error).__name__})")
        lines.append(f"- `{call}`, Day {day}. {text}")
    return HAVE_BLOCK.format("\n".join(lines))


def shown(file, name):
    """What a directive becomes."""
    try:
        own = signature(file, name)
    except (OSError, LookupError) as error:
        return problem(f"no signature of {name} in {file} ({type(error).__name__})")
    folder, _, path = file.partition("/")
    try:
        ports = [signature(f"{port}/{path}", name) for port in PORTS] if folder in PORTS else [own]
    except (OSError, LookupError):  # of one port only
        ports = [own]
    blocks, folds = zip(*ports, strict=True)
    if len({*folds}) > 1:
        return tabs(["\n\n".join(port) for port in ports])
    return "\n\n".join(filter(None, (tabs(blocks) if len({*blocks}) > 1 else own[0], own[1])))


def tabs(blocks):
    """What each port has, labelled: without a script they stand one below the other."""
    parts = (
        f'<div data-port="{label}">\n\n{each}\n\n</div>'
        for label, each in zip(PORTS.values(), blocks, strict=True)
    )
    return "\n".join(['<div class="port-tabs">', *parts, "</div>"])


def signature(file, name):
    """A fenced block, and what folds open below it. Raises OSError or LookupError when there is no such name."""
    source = (SOURCE / file).read_text(encoding="utf-8")
    if file.endswith((".cpp", ".h")):
        return f"```cpp\n{cpp_signatures.contract(source, name)}\n```", ""
    block, folded = python_signatures.contract(source, name)
    return f"```python\n{block}\n```", folded
