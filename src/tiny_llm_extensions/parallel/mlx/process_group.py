"""Ranks as processes of their own, by mx.distributed: a ring of sockets on Linux.

mlx.launch starts ranks, and so does the engine; both name a rank's place in the environment. MLX makes one group per
process. On a Mac there are further libraries, which only mlx.launch sets up. Only the ring on Linux was run by us.
"""

import json
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..groups import RankPlace


class ProcessGroup:
    """A `Group` whose ranks are processes. Made by `Meeting.join` or `join_launched`."""

    def __init__(self, group: Any):
        self.group, self.rank, self.size = group, group.rank(), group.size()

    def all_reduce(self, x: mx.array) -> mx.array:
        """See `Group.all_reduce`."""
        return mx.distributed.all_sum(x, group=self.group)

    def all_gather(self, x: mx.array) -> mx.array:
        """See `Group.all_gather`. MLX gathers along the first axis."""
        return mx.distributed.all_gather(x, group=self.group).reshape(self.size, *x.shape)

    def all_to_all(self, x: mx.array, sent: Sequence[int], received: Sequence[int]) -> mx.array:
        """See `Group.all_to_all`. MLX has no such call: all ranks gather all rows, and each takes its own."""
        longest = int(self.all_gather(mx.array(max(sent))).max())
        parts = mx.split(x, list(accumulate(sent))[:-1])
        padded = [mx.pad(part, [(0, longest - len(part)), *[(0, 0)] * (x.ndim - 1)]) for part in parts]
        gathered = self.all_gather(mx.stack(padded))[:, self.rank]  # (size, longest, ...)
        return mx.concatenate([part[:rows] for part, rows in zip(gathered, received, strict=True)])

    def send(self, x: mx.array, rank: int) -> None:
        """See `Group.send`."""
        mx.async_eval(mx.distributed.send(x, rank, group=self.group))

    def receive(self, shape: tuple[int, ...], like: mx.array, rank: int) -> mx.array:
        """See `Group.receive`."""
        return mx.distributed.recv(shape, like.dtype, rank, group=self.group)

    def leave(self) -> None:
        """Does nothing: MLX closes the connections when the process ends."""


class Meeting:
    """Where ranks that this process starts find each other: a free port of this machine for each, listed in a file.

    Args:
        size: number of ranks; this process is rank 0.
    """

    def __init__(self, size: int):
        self.size = size
        with ExitStack() as stack:  # all are open at once, so that they differ
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(size)]
            hosts = [[f"127.0.0.1:{each.getsockname()[1]}"] for each in sockets]
        number, name = tempfile.mkstemp(".json", "tiny-llm-ranks-")
        self.file = Path(name)
        with os.fdopen(number, "w", encoding="utf-8") as file:
            json.dump(hosts, file)

    def environment(self, rank: int) -> dict[str, str]:
        """What another rank's process finds in its environment; `join_launched` reads it."""
        return {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(self.file)}

    def join(self, device: str) -> ProcessGroup:
        """This process joins as rank 0, and waits for the others.

        Raises:
            RuntimeError: they do not come, or this process was in a group already.
        """
        own = self.environment(0)
        os.environ.update(own)
        try:
            return join_launched(device)
        finally:
            for name in own:
                del os.environ[name]

    def close(self) -> None:
        """Frees what the ranks needed to meet."""
        self.file.unlink(missing_ok=True)


def launched(environment: Mapping[str, str] = os.environ) -> RankPlace | None:
    """This process's place, if mlx.launch or the engine has started it as one of several ranks."""
    if not {"MLX_RANK", "MLX_HOSTFILE"} <= environment.keys():
        return None
    hosts = json.loads(Path(environment["MLX_HOSTFILE"]).read_text(encoding="utf-8"))
    return RankPlace(int(environment["MLX_RANK"]), len(hosts), hosts[0][0].rpartition(":")[0])


def join_launched(device: str) -> ProcessGroup:
    """This process joins the ranks with which it was started, and waits for them.

    Raises:
        RuntimeError: they do not come, or this process was in a group already.
    """
    made = ProcessGroup(mx.distributed.init(strict=True))
    try:
        mx.eval(made.all_reduce(mx.ones(1)))
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}; MLX makes one group of ranks per process: if this one has had a group, start a new process"
        ) from None
    return made
