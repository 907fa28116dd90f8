"""The module that becomes `torch.hpu`: as much of it as the course asks for."""

from .. import imitates


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return 0 if imitates("no-card") else 1


def get_device_name(device: int | None = None) -> str:
    return "imitation of a Gaudi"


def synchronize() -> None:
    """Nothing runs ahead here."""


def memory_allocated() -> int:
    """No memory is counted here."""
    return 0


def reset_peak_memory_stats() -> None:
    """There is no peak."""


def max_memory_allocated() -> int:
    return 0
