"""Keeps a benchmark's result, with the options as a reader would type them."""

import re
import sys
from typing import Any

from rich.console import Console

from . import provenance


def keep(console: Console, result: dict[str, Any], name: str | None, argv: list[str] | None) -> None:
    """Writes the sealed file `name`.json, if there is a name."""
    if name:
        result["options"] = as_typed(sys.argv[1:] if argv is None else argv)
        console.print(f"kept: {provenance.save(result, name, provenance.RESULTS).name}")


def as_typed(arguments: list[str]) -> str:
    """The options, without where the result was kept."""
    return re.sub(r" ?--save[ =]\S+", "", " ".join(arguments)).strip()
