"""Runs replicas on this machine until a signal: starts Ray, waits, drains, and leaves no process."""

import logging
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import ray
from ray import serve

from tiny_llm_engine.machine.terminal import FatalError

from .deployments import APP, HTTP, QUIET
from .replica_options import not_started, one_line

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def start_replicas(application: serve.Application, host: str, port: int, replicas: int) -> None:
    """Start Ray and the application on this machine; return when every replica accepts requests.

    Ray takes a cluster that is there already (RAY_ADDRESS). On its own it has at least a CPU for each replica, so that
    more replicas than cores are possible.
    """
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    local = {"num_cpus": max(replicas, os.cpu_count() or 1), "include_dashboard": False}
    try:
        ray.init(
            log_to_driver=False, logging_level="warning", **({} if "RAY_ADDRESS" in os.environ else local)
        )
        serve.start(
            proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=QUIET
        )
    except Exception as error:  # Ray raises nothing narrower when a process of its own does not start in time
        raise FatalError(not_started(error)) from None
    try:
        serve.run(application, name=APP, route_prefix="/")
    except RuntimeError as error:
        raise FatalError(f"the replicas did not start: {one_line(error)}; Ray's log says more") from None


def stop_replicas() -> None:
    """Let the open requests end, for as long as the deployments allow, and stop Ray."""
    with suppress(Exception):  # a lost HTTP side has nothing to drain
        serve.get_deployment_handle(HTTP, app_name=APP).drain.remote().result()
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
