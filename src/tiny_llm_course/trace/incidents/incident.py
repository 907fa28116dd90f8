"""Definition of an incident: timed requests, the engine's limits, and bounds on the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A request of a trace."""

    name: str  # "L", or "s3" as one of a group
    at: float  # ms
    prompt: int  # tokens
    answer: int  # tokens
    priority: str = "interactive"  # "interactive" or "batch"
    adapter: str = ""  # the adapter that it needs, where adapters are limited
    aborted: float | None = None  # ms at which its client leaves; None stays to the end


def group(count: int, first: Sent, every: float = 0.0) -> tuple[Sent, ...]:
    """`count` requests like `first`, one every `every` ms, named s0, s1, …"""
    return tuple(replace(first, name=f"{first.name}{i}", at=first.at + every * i) for i in range(count))


@dataclass(frozen=True)
class Bound:
    """A limit on a measure of a run."""

    # a measure of `IncidentRun`: "gap", "ttft", "mean_ttft", "end" in ms; "preemptions" of each request;
    # "refused", how many were; "prompt_tokens", those of one step
    what: str
    of: str  # the requests it speaks about: a name, or "s*" for a group
    most: float  # the limit
    least: float = 0.0  # for "refused"

    def __str__(self) -> str:
        return f"{self.what.replace('_', ' ')} of {self.of}"


@dataclass(frozen=True)
class IncidentCase:
    """One trace of an incident."""

    requests: tuple[Sent, ...]
    # what must hold. It must always hold that every request ends and every block is freed.
    bounds: tuple[Bound, ...]
    target: float = 62.0  # ms between two tokens, for schedulers that take one
    blocks: int = 2**13  # KV blocks of 16 tokens
    watermark: float = 0.01  # of the allocator
    options: Mapping[str, Any] = field(default_factory=dict)  # of every scheduler
    adapters: bool = False  # whether one adapter fits at a time
    late_frees: bool = False  # whether freed blocks come back 10 ms later
    says: str = ""  # what distinguishes the case


def case(*requests: Sent, bounds: Mapping[str, float | tuple[float, float]], **others: Any) -> IncidentCase:
    """A case, with its bounds as texts: "gap A" or "ttft s*" -> the limit, or the least and the most."""
    limits = {name: limit if isinstance(limit, tuple) else (0.0, limit) for name, limit in bounds.items()}
    made = [Bound(*name.split(), most=most, least=least) for name, (least, most) in limits.items()]
    return IncidentCase(requests, tuple(made), **others)


@dataclass(frozen=True)
class Incident:
    """A public incident of a serving engine."""

    number: int  # of the corpus
    title: str
    threads: tuple[str, ...]  # where it was reported, as repository#number
    mechanism: str  # why it happened, in a sentence
    cases: tuple[IncidentCase, ...]  # its traces, and counter-traces for a fix that goes too far

    @classmethod
    def of(cls, number: int, title: str, threads: str, mechanism: str, *cases: IncidentCase) -> "Incident":
        """An incident whose threads are separated by blanks."""
        return cls(number, title, tuple(threads.split()), mechanism, cases)
