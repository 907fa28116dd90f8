"""The starvation corpus as a table: each policy through each incident."""

from collections.abc import Sequence
from functools import cache

from rich.table import Table

from tiny_llm_engine.solutions.solution_types import ServingPackage

from .corpus import CORPUS
from .incident import Incident
from .incident_run import failures

SHORT = {"decode-first": "dec", "prefill-first": "pre", "chunks-only": "chunks"}  # heads of narrow columns


@cache
def broken_by(names: ServingPackage, policy: str) -> dict[int, list[str]]:
    """The bounds that a policy breaks, by incident number.

    A run is deterministic, so it runs once.
    """
    return {one.number: failures(names, policy, one) for one in CORPUS}


def incident_table(names: ServingPackage, policies: Sequence[str]) -> Table:
    """A line per incident, a column per policy."""
    table = Table("", "incident", *heads(policies), box=None, pad_edge=False, collapse_padding=True)
    table.columns[1].no_wrap = True
    for column in table.columns[2:]:
        column.justify = "center"
    rows = [marks(names, policies, incident) for incident in CORPUS]
    for incident, row in zip(CORPUS, rows, strict=True):
        table.add_row(str(incident.number), incident.title, *row)
    passed = (column.count("✓") for column in zip(*rows, strict=True))
    table.add_row("", f"of {len(CORPUS)}", *map(str, passed))
    return table


def heads(policies: Sequence[str]) -> list[str]:
    return [SHORT.get(policy, policy) for policy in policies]


def marks(names: ServingPackage, policies: Sequence[str], incident: Incident) -> list[str]:
    """The cells of an incident: ✓ where every bound holds, ✗ where one is broken."""
    return ["✗" if broken_by(names, policy)[incident.number] else "✓" for policy in policies]
