"""The header of a benchmark: model, machine, versions and date."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

PEERS_AND_PORTS = ("torch", "mlx", "transformers", "llama-cpp-python", "mlx-lm")


def origin(console: Console, result: Mapping[str, Any], what: str, how: str) -> None:
    """Prints them.

    Args:
        what: the model and its type.
        how: rounds and threads.
    """
    found = result["provenance"]
    machine, versions = found["machine"], found["versions"]
    known = [f"{name} {versions[name]}" for name in PEERS_AND_PORTS if name in versions]
    console.print(f"{what}, {result['backend']} on {machine['system']}")
    console.print(f"{machine['processor']}, {machine['cores']} cores; {', '.join(known)}")
    console.print(f"{found['date']}, {how}")
