"""How the other ranks reach rank 0: it listens on a free port, and they know the port and a key."""

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .channel import Channel
from .other_ranks import RankError

# The environment of a process that the engine starts holds a `Contact` here.
CONTACT = "TINY_LLM_RANK"
START_SECONDS = 120.0  # until a process has come that was started
POLL_SECONDS = 0.2
KEY_LENGTH = 32  # characters


@dataclass(frozen=True)
class Contact:
    """What another rank needs to reach rank 0.

    Args:
        rank: the rank of the process that holds this record.
        host, port: where rank 0 listens.
        key: shows that the process belongs to these ranks.
    """

    rank: int
    host: str
    port: int
    key: str

    def connect(self) -> Channel:
        """A channel to rank 0.

        Raises:
            OSError: it does not listen.
        """
        channel = Channel(socket.create_connection((self.host, self.port), timeout=START_SECONDS))
        channel.send({"rank": self.rank, "key": self.key})
        return channel


class MeetingPoint:
    """Listens for the other ranks, on a free port.

    Args:
        host: an address of this machine: the loopback address, unless ranks come from others.
    """

    def __init__(self, host: str = "127.0.0.1"):
        self.host, self.key = host, secrets.token_hex(KEY_LENGTH // 2)
        self.listener = socket.create_server((host, 0))
        self.listener.settimeout(POLL_SECONDS)

    def contact(self, rank: int) -> Contact:
        """What that rank needs."""
        return Contact(rank, self.host, self.listener.getsockname()[1], self.key)

    def environment(self, rank: int) -> dict[str, str]:
        """The same in the environment of a process."""
        return {CONTACT: json.dumps(asdict(self.contact(rank)))}

    def accept(
        self, size: int, processes: Mapping[int, subprocess.Popen], patience: float
    ) -> dict[int, Channel]:
        """The channels to all other ranks, as they come.

        Args:
            size: number of ranks.
            processes: those that were started here, by rank.
            patience: seconds without a message after which a rank counts as gone.

        Raises:
            RankError: a process has ended, or one does not come in time.
        """
        channels: dict[int, Channel] = {}
        end = time.monotonic() + START_SECONDS
        while len(channels) < size - 1:
            missing = [rank for rank in range(1, size) if rank not in channels]
            for rank in missing:
                if rank in processes and (code := processes[rank].poll()) is not None:
                    raise RankError(f"rank {rank} cannot start: it has ended with exit code {code}")
            if time.monotonic() > end:
                raise RankError(f"rank {missing[0]} cannot start: it did not come within {START_SECONDS:g} s")
            try:
                channel = Channel(self.listener.accept()[0], patience)
                greeting = channel.receive()
            except (OSError, EOFError, ValueError):  # nobody yet, or somebody else
                continue
            if secrets.compare_digest(str(greeting.get("key")), self.key):
                channels[int(greeting["rank"])] = channel
        return channels

    def close(self) -> None:
        """Stops listening."""
        self.listener.close()


def start_process(environment: Mapping[str, str]) -> subprocess.Popen:
    """A process that follows rank 0. Ctrl-C on the terminal does not reach it: rank 0 ends it."""
    line = [sys.executable, "-m", "tiny_llm_extensions.parallel.follower"]
    return subprocess.Popen(line, env=dict(environment), stdin=subprocess.DEVNULL, start_new_session=True)
