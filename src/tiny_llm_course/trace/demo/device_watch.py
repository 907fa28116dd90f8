"""What a device did during a run: how many cores computed, and how much memory was in use at most."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from tiny_llm_engine.machine.ram import resident_bytes
from tiny_llm_engine.solutions.backend import Backend
from tiny_llm_engine.solutions.solution_types import Event

TOOLS = {"cuda": "nvidia-smi", "hpu": "hl-smi"}  # what shows the state of a device from outside


@dataclass(frozen=True)
class DeviceUse:
    """Use of a device in one run.

    Args:
        cores: of the processor that computed, on average.
        memory: MB in use at most; None where nothing tells.
    """

    cores: float
    memory: float | None


class DeviceWatch:
    """A listener that looks at the memory at each event, and at the processor's time while its context lasts.

    Args:
        used_bytes: the memory in use, or None.
        processor, clock: seconds of all threads of this process, and of the wall.
    """

    def __init__(
        self,
        used_bytes: Callable[[], int | None],
        processor: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._used_bytes, self._clocks = used_bytes, (processor, clock)
        self._peak: int | None = None
        self._computed = self._passed = 0.0

    def __enter__(self) -> "DeviceWatch":
        self._began = [clock() for clock in self._clocks]
        return self

    def __exit__(self, *exception: object) -> None:
        ended = [clock() for clock in self._clocks]
        self._computed, self._passed = (end - begin for begin, end in zip(self._began, ended, strict=True))

    def __call__(self, event: Event) -> None:
        used = self._used_bytes()
        if used is not None:
            self._peak = max(used, self._peak or 0)

    @property
    def use(self) -> DeviceUse:
        """The use, after the context has ended."""
        memory = None if self._peak is None else self._peak / 1e6
        return DeviceUse(self._computed / self._passed if self._passed else 0.0, memory)


def used_bytes_of(backend: Backend, device: str) -> Callable[[], int | None]:
    """A function that returns the bytes in use: of an accelerator's memory, or on a CPU those of this process."""
    if backend.device_memory(device) is None:
        return resident_bytes

    def used() -> int | None:
        memory = backend.device_memory(device)
        return memory and memory[1] - memory[0]

    return used
