"""The ranks of a group in one thread: each runs until it needs another one, then the next rank runs.

Nothing is started, a mistake cannot hang, and the order of the calls is always the same. Real ranks are processes, see
`engine/parallel`.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.backend import Backend
from tiny_llm_engine.solutions.solution_types import Array, PackedBatch, Sampled


class LockstepError(AssertionError):
    """The ranks wait for each other in different calls, which on real devices would last for ever."""


@dataclass(frozen=True)
class Call:
    """What a rank waits for: a collective call of all ranks, or an array from another one.

    Args:
        name: of the method of `LockstepRank`.
        array: what this rank gives; None for `receive`, and for `all_to_all` a list of arrays, one per rank.
        sender: of `receive`.
    """

    name: str
    array: Array = None
    sender: int | None = None

    def __str__(self) -> str:
        if self.sender is not None:
            return f"receive from rank {self.sender}"
        if self.name == "all_to_all":  # ranks may give different numbers of rows
            return f"{self.name} of rows {list(self.array[0].shape[1:])} in {self.array[0].dtype}"
        return f"{self.name} of {list(self.array.shape)} in {self.array.dtype}"


class LockstepGroup:
    """`size` ranks that take turns in one thread.

    Args:
        size: number of ranks.
        backend_module: what is known of their arrays' library.

    Attributes:
        ranks: what each function gets as its `Group`.
        calls: the collective calls so far, as texts.
    """

    def __init__(self, size: int, backend_module: Backend):
        self.size, self.backend_module = size, backend_module
        self.ranks = [LockstepRank(self, rank) for rank in range(size)]
        self.calls: list[str] = []
        self.mailboxes: dict[tuple[int, int], deque[Array]] = {}  # by sender and receiver
        self._hub = getcurrent()

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Runs one function per rank, each to its end.

        Returns:
            Their results.

        Raises:
            LockstepError: all ranks that have not ended wait, and not in the same collective call.
            Whatever a function raises.
        """
        self._hub = getcurrent()
        threads = [greenlet(function) for function in functions]
        with (
            self.backend_module.inference()
        ):  # else the first function to enter it would leave it before the others
            waiting = [each.switch() for each in threads]
            while not all(each.dead for each in threads):
                answers = self._answers(threads, waiting)
                for rank, answer in answers.items():
                    waiting[rank] = threads[rank].switch(answer)
        return waiting  # a greenlet's last value is what its function has returned

    def wait(self, call: Call) -> Any:
        """Lets the other ranks run until the call can be answered."""
        return self._hub.switch(call)

    def mailbox(self, sender: int, receiver: int) -> deque[Array]:
        """Arrays on their way from one rank to another."""
        return self.mailboxes.setdefault((sender, receiver), deque())

    def _answers(self, threads: Sequence[greenlet], waiting: Sequence[Any]) -> dict[int, Any]:
        """What the calls return that can be answered now, by rank."""
        open_ = [rank for rank, thread in enumerate(threads) if not thread.dead]
        received = {
            rank: self.mailbox(waiting[rank].sender, rank).popleft()
            for rank in open_
            if waiting[rank].sender is not None and self.mailbox(waiting[rank].sender, rank)
        }
        if received:
            return received
        where = [
            "has ended" if thread.dead else f"waits in {call}"
            for thread, call in zip(threads, waiting, strict=True)
        ]
        if len(set(where)) > 1 or waiting[0].sender is not None:
            listed = "; ".join(f"rank {rank} {state}" for rank, state in enumerate(where))
            raise LockstepError(f"the ranks wait for each other for ever: {listed}")
        self.calls.append(str(waiting[0]))
        return self._collective(waiting)

    def _collective(self, calls: Sequence[Call]) -> dict[int, Any]:
        arrays = [call.array for call in calls]
        if calls[0].name == "all_reduce":
            total = sum(arrays[1:], start=arrays[0])
            return dict(enumerate(total + 0 for _ in calls))  # copies: a rank may write into its own
        if calls[0].name == "all_to_all":
            return {rank: [array[rank] for array in arrays] for rank in range(self.size)}
        gathered = self.backend_module.concatenate([array[None] for array in arrays], 0)
        return dict(enumerate(gathered + 0 for _ in calls))


class LockstepRank:
    """A `Group` as one rank of a `LockstepGroup` sees it."""

    def __init__(self, group: LockstepGroup, rank: int):
        self.group, self.rank, self.size = group, rank, group.size

    def all_reduce(self, x: Array) -> Array:
        return self.group.wait(Call("all_reduce", x))

    def all_gather(self, x: Array) -> Array:
        return self.group.wait(Call("all_gather", x))

    def all_to_all(self, x: Array, sent: Sequence[int], received: Sequence[int]) -> Array:
        self._check_rows(x.shape[0], list(sent), list(received))
        starts = [sum(sent[:rank]) for rank in range(self.size)]
        parts = [x[start : start + rows] for start, rows in zip(starts, sent, strict=True)]
        found = self.group.wait(Call("all_to_all", parts))
        arrived = [part.shape[0] for part in found]
        if arrived != list(received):
            raise LockstepError(
                f"all_to_all on rank {self.rank}: `received` is {list(received)}, and the ranks sent {arrived}: "
                f"`received[r]` must be rank r's `sent[{self.rank}]`"
            )
        return self.group.backend_module.concatenate(found, 0)

    def _check_rows(self, rows: int, sent: list[int], received: list[int]) -> None:
        """Raises a `LockstepError` unless `sent` divides an array of this many rows among all ranks."""
        where = f"all_to_all on rank {self.rank}"
        if not len(sent) == len(received) == self.size:
            raise LockstepError(
                f"{where}: `sent` is {sent} and `received` is {received}: "
                f"give each of them {self.size} numbers, one per rank"
            )
        if sum(sent) != rows:
            raise LockstepError(
                f"{where}: `sent` is {sent}, {sum(sent)} rows in all, and the array has {rows} rows: "
                "`sent` must divide these rows among the ranks; on the way back it is the plan's `received`"
            )

    def send(self, x: Array, rank: int) -> None:
        self.group.mailbox(self.rank, rank).append(x)

    def receive(self, shape: tuple[int, ...], like: Array, rank: int) -> Array:
        found = self.group.wait(Call("receive", sender=rank))
        if tuple(found.shape) != tuple(shape) or found.dtype != like.dtype:
            raise LockstepError(
                f"rank {self.rank} expects {list(shape)} in {like.dtype} from rank {rank}, "
                f"and it sent {list(found.shape)} in {found.dtype}"
            )
        return found


class LockstepRunner:
    """The runners of all ranks as one `PackedModel`: each call runs the batch on all of them.

    Args:
        group: the group in which the ranks take turns.
        runners: one per rank, in order. Whatever else is asked of this object is the first one's.
    """

    def __init__(self, group: LockstepGroup, runners: Sequence[PackedRunner]):
        self.group, self.runners = group, runners

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """The first rank's tokens; stages of a pipeline but the last draw none.

        Raises:
            AssertionError: another rank has chosen other tokens.
        """
        chosen = self.group.run([partial(runner.run, batch) for runner in self.runners])
        tokens = [[each.token for each in one] for one in chosen if one]
        assert all(each == tokens[0] for each in tokens), f"the ranks chose different tokens: {tokens}"
        return chosen[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.runners[0], name)
