"""The other ranks of an engine, as rank 0 sees them: it announces every step, and notices when one is gone."""

import atexit
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty, Queue
from typing import Any

from tiny_llm_engine.solutions.solution_types import Bucket, PackedBatch

from .channel import Channel, step_message
from .other_ranks import OtherRanks, RankError

PATIENCE_SECONDS = 10.0  # without a heartbeat
END_SECONDS = 5.0  # for a process to end by itself
NEWS_SECONDS = 1.0  # for a rank's end to become known after a collective call has failed
STUCK_SECONDS = 5.0  # for a collective call to fail after a rank's end is known


class Ranks(OtherRanks):
    """The other ranks of a model, of which this process is rank 0.

    Args:
        channels: to them, by rank.
        processes: those that this process has started, by rank. torchrun or mlx.launch ends the others.
        has_stages: whether the ranks share the layers, and not every matrix.
    """

    def __init__(
        self,
        channels: Mapping[int, Channel],
        processes: Mapping[int, subprocess.Popen],
        has_stages: bool = False,
    ):
        self.channels, self.processes, self.has_stages = dict(channels), dict(processes), has_stages
        self.on_failure = lambda line: None
        self._is_closing, self._failing = False, threading.Lock()
        self._has_failed, self._is_computing = threading.Event(), False
        self._replies: Queue[tuple[int, dict[str, Any]]] = Queue()
        self._can_join = {rank: threading.Event() for rank in self.channels}
        for rank in self.channels:
            threading.Thread(target=self._watch, args=(rank,), daemon=True).start()
        # Whoever closes no engine leaves the group here: gloo's threads may not outlive the interpreter.
        atexit.register(self.close)

    @property
    def size(self) -> int:
        return 1 + len(self.channels)

    def check(self) -> None:
        """Does nothing while all ranks are there.

        Raises:
            RankError: one is gone.
        """
        if self.failure is not None:
            raise RankError(self.failure)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message to every other rank.

        Raises:
            RankError: one is gone.
        """
        self.check()
        for rank, channel in self.channels.items():
            try:
                channel.send(message)
            except OSError as error:
                self._fail(f"rank {rank} takes no steps: {one_line(error)}")
        self.check()

    def wait_until_ready(self) -> None:
        """Returns when the others are about to join the group.

        Raises:
            RankError: one is gone.
        """
        for event in self._can_join.values():
            event.wait()
        self.check()

    def ask(self, message: Mapping[str, Any]) -> dict[int, Any]:
        """Sends a message to every other rank; returns their replies by rank.

        Raises:
            RankError: one is gone.
        """
        self.send(message)
        replies: dict[int, Any] = {}
        while len(replies) < len(self.channels):
            with suppress(Empty):
                rank, reply = self._replies.get(timeout=NEWS_SECONDS)
                replies[rank] = reply["reply"]
            self.check()
        return replies

    def make_pools(self, num_blocks: int, is_profiled: bool = False) -> None:
        self.send({"pool": {"num_blocks": num_blocks, "is_profiled": is_profiled}})

    def announce(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        self.send(step_message(batch, bucket))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """See `OtherRanks`. If the body raises, the ranks are no longer at the same call, and all others end."""
        self._is_computing = True
        try:
            self.check()
            yield
        except BaseException as error:
            self._has_failed.wait(NEWS_SECONDS)  # the connection may be lost before it is known why
            self._fail(f"rank 0: {one_line(error)}")
            if not isinstance(error, Exception):
                raise
            raise RankError(self.failure) from error
        finally:
            self._is_computing = False

    def close(self) -> None:
        """Ends the other ranks, and returns when they have ended. Closing twice does nothing."""
        atexit.unregister(self.close)
        with self._failing:
            self._is_closing = True
        for channel in self.channels.values():
            channel.close()
        group, self.group = self.group, None
        if group is not None:
            group.leave()
        end = time.monotonic() + END_SECONDS
        for process in self.processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # What the watching threads do.

    def _watch(self, rank: int) -> None:
        """Receives what a rank sends, until it is gone."""
        try:
            while True:
                message = self.channels[rank].receive()
                if "error" in message:
                    return self._fail(f"rank {rank}: {message['error']}")
                if "reply" in message:
                    self._replies.put((rank, message))
                elif message["state"] == "ready to join":
                    self._can_join[rank].set()
        except TimeoutError:
            self._fail(f"rank {rank} gave no heartbeat for {PATIENCE_SECONDS:g} s")
        except (EOFError, OSError):
            self._fail(f"rank {rank} has ended{self._how_it_ended(rank)}")

    def _how_it_ended(self, rank: int) -> str:
        process = self.processes.get(rank)
        if process is None:
            return ""
        try:
            code = process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return ""
        return f" by signal {-code}" if code < 0 else f" with exit code {code}"

    def _fail(self, line: str) -> None:
        """Keeps the first failure, and ends all other ranks: they may be waiting for the failed one."""
        with self._failing:
            if self._is_closing or self.failure is not None:
                return
            self.failure = line
        for process in self.processes.values():
            process.kill()
        for channel in self.channels.values():
            channel.close()
        self._has_failed.set()
        stuck = threading.Timer(STUCK_SECONDS, self._end_if_stuck)
        stuck.daemon = True
        stuck.start()
        for event in self._can_join.values():
            event.set()
        self.on_failure(line)

    def _end_if_stuck(self) -> None:
        """Ends this process if a step still waits for the rank that is gone: no exception reaches a collective call.

        MLX's ring notices most lost peers, and not all.
        """
        if self._is_computing:
            print(self.failure, file=sys.stderr, flush=True)
            os._exit(1)


def one_line(error: BaseException) -> str:
    """An error as one line."""
    return " ".join(str(error).split()) or type(error).__name__


def share_threads(port: Any, size: int) -> None:
    """Gives each rank on this machine its share of the CPU's cores, unless OMP_NUM_THREADS says how many."""
    if port.device == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        port.backend_module.set_threads(max(1, (os.cpu_count() or 1) // size))
