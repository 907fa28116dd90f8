"""Runs replicas on this machine until a signal: starts Ray, waits, drains, and leaves no process."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import ray
from ray import serve

from .deployments import APP, QUIET

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start_replicas(application: serve.Application, host: str, port: int, replicas: int) -> None:
    """Start Ray and the application on this machine; return when every replica accepts requests.

    Ray takes a cluster that is there already (RAY_ADDRESS). On its own it has at least a CPU for each replica, so that
    more replicas than cores are possible.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if "RAY_ADDRESS" in os.environ:
        ray.init(log_to_driver=False, logging_level="warning")
    else:
        cpus = max(replicas, os.cpu_count() or 1)
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="warning")
    serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=QUIET)
    serve.run(application, name=APP, route_prefix="/")


def stop_replicas() -> None:
    """Let the open requests end, for as long as the deployments allow, and stop Ray."""
    serve.delete(APP)
    serve.shutdown()
    ray.shutdown()


def serve_until_signal(on_drain: Callable[[], object] = lambda: None) -> None:
    """Wait for SIGTERM or Ctrl-C, then drain; a second signal ends the process at once."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        if ended.is_set():
            os._exit(128 + number)
        ended.set()

    before = {number: signal.signal(number, end) for number in SIGNALS}
    while not ended.wait(1.0):  # without a timeout no signal would interrupt it
        pass
    on_drain()
    stop_replicas()
    for number, handler in before.items():
        signal.signal(number, handler)
