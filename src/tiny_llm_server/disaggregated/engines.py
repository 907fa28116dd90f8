"""The engines behind a proxy: whether each is ready, what its metrics say, and its process if it was started here."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_engine.models.files import Json

from ..vllm_flags import PREFIX
from .exchange import LOST, fetched

PREFILL, DECODE = "prefill", "decode"
ROLES = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
HOST, EVERYWHERE = "127.0.0.1", ("0.0.0.0", "::")
DEAD = b"the engine is dead"  # as `/health` says it
LOOK_SECONDS, PATIENCE = 0.5, 10.0  # between two looks, and for one: a busy engine may need some time


class ProxiedEngine:
    """An engine with OpenAI's API.

    Args:
        role: `PREFILL` or `DECODE`.
        address: host:port.
        start: starts its process, and again when it has ended; None if somebody else does.
    """

    def __init__(self, role: str, address: str, start: Callable[[], subprocess.Popen] | None = None):
        self.role, self.address, self.start = role, address, start
        self.process: subprocess.Popen | None = None
        self.is_ready = self.was_ready = self.is_stopped = False
        self.metrics = ""  # as it said last
        self.kv_address = ""  # where others read its keys and values

    async def watch(self, on_look: Callable[[], object]) -> None:
        """Look now and then, until it is stopped.

        Raises:
            FatalError: its process ended before it was ever ready.
        """
        while not self.is_stopped:
            if self.start is not None and (self.process is None or self.process.poll() is not None):
                if self.process is not None and not self.was_ready:
                    raise FatalError(f"the {self.role} engine on {self.address} ended before it was ready")
                self.process = self.start()
            try:
                await asyncio.wait_for(self._look(), PATIENCE)
            except (*LOST, ValueError):  # or it is no engine
                self.is_ready = False
            on_look()
            await asyncio.sleep(LOOK_SECONDS)

    def source(self) -> Json:
        """Where another engine reads keys and values of this one, as fields of its `kv_transfer_params`."""
        host, _, port = self.kv_address.rpartition(":")
        here = self.address.rpartition(":")[0].strip("[]")
        return {"remote_host": here if host in EVERYWHERE else host, "remote_port": int(port)}

    async def _look(self) -> None:
        """Ask whether it takes requests, and for its metrics."""
        status, health = await fetched(self.address, "GET", "/health")
        said = json.loads(health) if health.startswith(b"{") else {}
        self.metrics = (await fetched(self.address, "GET", "/metrics"))[1].decode()
        self.kv_address = said.get("kv_transfer", "")
        has_source = self.role == DECODE or ":" in self.kv_address
        self.is_ready = status == 200 and said.get("status", "ready") == "ready" and has_source
        if self.process is not None and DEAD in health:
            self.process.kill()  # and start it again
        self.was_ready |= self.is_ready

    def stop(self, seconds: float) -> None:
        """End its process, if it was started here: by force after this time."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def started(role: str, count: int, command: Sequence[str], share: int) -> list[ProxiedEngine]:
    """Engines in processes of their own on this machine, on free ports; they start when they are watched.

    Args:
        command: starts an engine, but for its address and its role.
        share: cores of each.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment, engines = {"OMP_NUM_THREADS": str(share), **kept}, []
    for _ in range(count):
        port, config = free_port(), {"kv_role": ROLES[role], "kv_ip": HOST, "kv_port": 0}
        place = ["--host", HOST, "--port", str(port), "--kv-transfer-config", json.dumps(config)]
        line = [sys.executable, *command, *place, "--ends-with-stdin"]
        # Its input ends with this process. Ctrl-C is for this one alone, which lets the open requests end.
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "start_new_session": True}
        start = partial(subprocess.Popen, line, env=environment, **pipes)
        engines.append(ProxiedEngine(role, f"{HOST}:{port}", start))
    return engines


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server((HOST, 0)) as listener:
        return listener.getsockname()[1]
