"""A rank that plans nothing: it loads its part of the model, and runs each batch that rank 0 announces.

The engine starts it as `python -m tiny_llm_extensions.parallel.follower`. Under torchrun or mlx.launch every process
but that of rank 0 becomes one.
"""

import json
import os
import threading
from contextlib import nullcontext, suppress
from typing import Any

from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Network

from ..engine_options import limits_of
from ..given import given_of
from ..graphs.step_shapes import StepShapes
from ..job import Job
from ..load_job import network_of, port_of
from ..nvidia.text_steps import why_no_texts
from .channel import Channel, step_of
from .groups import Group
from .link_speed import run_sums
from .meeting_point import CONTACT, Contact
from .other_ranks import compute_beside
from .ranks import one_line, share_threads
from .timed_group import timed

BEAT_SECONDS = 1.0


class Follower:
    """Computes what rank 0 announces, until rank 0 closes the channel.

    Args:
        channel: to rank 0.
        group: of the ranks, if this process is in it already.
    """

    def __init__(self, channel: Channel, group: Group | None = None):
        self.channel = channel
        self.group: Any = group
        self.runner: PackedRunner

    def run(self) -> None:
        """Loads this rank's part of the model, and follows.

        Raises:
            EOFError: rank 0 is gone, or has closed the channel.
            Whatever loading or a step has raised.
        """
        self.job = Job(**self.channel.receive())
        threading.Thread(target=self._beat, daemon=True).start()
        self.port = port_of(self.job)
        self.channel.send({"state": "ready to join"})
        group = given_of(self.port).join_launched(self.port.device) if self.group is None else self.group
        self.group = timed(self.port, group, self.job.options.has_stages)
        share_threads(self.port, self.group.size)
        self.network, _ = network_of(self.job, self.port, self.group)
        while True:
            self._take(self.channel.receive())

    def _take(self, message: dict[str, Any]) -> None:
        if "pool" in message:
            self.runner = runner_of(self.port, self.network, self.job, **message["pool"])
        elif "sums" in message:
            run_sums(self.port, self.group, **message["sums"])
        elif "spans" in message:
            self.channel.send({"reply": self.group.take_spans()})
        else:
            with self.group.computing() if self.job.options.has_stages else nullcontext():
                compute_beside(self.runner, *step_of(self.port.serving, message))

    def _beat(self) -> None:
        """Sends heartbeats, beside whatever else this process does."""
        never = threading.Event()
        try:
            while not never.wait(BEAT_SECONDS):
                self.channel.send({"state": "alive"})
        except OSError:
            os._exit(0)  # rank 0 is gone, and this process may wait for it in a collective call


def runner_of(port: Port, network: Network, job: Job, num_blocks: int, is_profiled: bool) -> PackedRunner:
    """A runner with the shapes and pools of rank 0's, compiled if that is."""
    options = job.options
    if is_profiled:
        kind = options.kv_cache_dtype
        return port.packed_runner(network, num_blocks, options.block_size, kv_cache_dtype=kind)
    limits = limits_of(options, port.serving, network.config)
    has_texts = why_no_texts(port, network, options) is None
    shapes = StepShapes(port, port.serving, options, limits, num_blocks, has_texts=has_texts)
    return shapes.new_runner(network)


def follow(channel: Channel, group: Group | None = None) -> int:
    """Follows rank 0 to the end. What goes wrong is sent to rank 0, which reports it.

    Returns:
        The exit code.
    """
    try:
        Follower(channel, group).run()
    except EOFError:
        return 0
    except BaseException as error:
        with suppress(OSError):  # rank 0 may be gone
            channel.send({"error": one_line(error)})
        return 1
    return 0


def main() -> None:
    channel = Contact(**json.loads(os.environ.pop(CONTACT))).connect()
    os._exit(follow(channel))  # at once: libraries would wait for ranks that are gone


if __name__ == "__main__":
    main()
