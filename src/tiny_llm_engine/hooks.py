"""Where an extension is put on a loop: each list is empty in a plain engine, and no line of an extension runs then.

Extensions act in the order in which they are put on the loop.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from .packed_model import PackedBatch, Sampled
from .request_life import SequenceState
from .scheduled import Scheduled

Served = TypeVar("Served", bound=SequenceState)


RequestHook = Callable[[SequenceState], object]  # changes a request that is about to wait for the first time
BatchHook = Callable[[PackedBatch, Sequence[Scheduled]], object]  # adds to the batch of a call
# Says which texts a failed call has left unknown, by their digests. They are computed again.
FailureHook = Callable[[], set[bytes]]


class AdmissionHook(Protocol[Served]):
    """Holds requests that have their place, until their blocks are filled."""

    def __len__(self) -> int:
        """How many are held."""
        ...

    def __iter__(self) -> Iterator[Served]: ...

    def advance(self, is_idle: bool) -> bool:
        """Goes on, once in each step. Returns whether a request has left with its blocks.

        Args:
            is_idle: whether nothing runs.
        """
        ...

    def refuses(self, sequence: Served) -> bool:
        """Whether a request has to wait in the queue, because too many are held."""
        ...

    def takes(self, sequence: Served) -> bool:
        """Holds a request that has its place, if it has to wait. Returns whether it does."""
        ...

    def take_ready(self, most: int) -> Served | None:
        """A request that need not wait any longer, and has at most this many tokens left to compute."""
        ...

    def wait(self) -> None:
        """Waits a moment, since there is nothing to compute."""

    def drop_ended(self) -> bool:
        """Lets those leave that have ended. Returns whether there were any."""
        ...

    def take_all(self) -> list[Served]:
        """All requests that are held, which are held no longer."""
        ...


class PlanHook(Protocol):
    """Limits the prompts of a step, and changes its plan."""

    def limit(self, left: int, decodes: int) -> int:
        """Of `left` tokens of prompts, how many the step may have beside its decodes."""
        ...

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Changes a whole plan, which is computed in these calls. Blocks are reserved for what it has."""


class CommitHook(Protocol):
    """Takes its part of what a call has drawn, and acts when the call is recorded."""

    def first_draws(self, call: Sequence[Scheduled], sampled: Sequence[Sampled]) -> Sequence[Sampled]:
        """One draw for each entry that needs a token."""
        ...

    def committed(self, call: Sequence[Scheduled]) -> None:
        """The call is recorded, and its tokens are taken."""


@dataclass
class LoopHooks(Generic[Served]):
    """What is put on a loop, by the place where it acts.

    A seventh place is `StepLoop.calls`: how the calls of plans are computed. An eighth is the model, which is handed to
    the loop with all that was put on it.
    """

    request: list[RequestHook] = field(default_factory=list)
    admission: list[AdmissionHook[Served]] = field(default_factory=list)
    plan: list[PlanHook] = field(default_factory=list)
    batch: list[BatchHook] = field(default_factory=list)
    commit: list[CommitHook] = field(default_factory=list)
    failure: list[FailureHook] = field(default_factory=list)
