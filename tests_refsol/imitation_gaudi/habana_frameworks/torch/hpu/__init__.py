"""The module that becomes `torch.hpu`: as much of it as the course asks for."""

from ... import imitates, record
from .. import device
from ..utils.internal import is_lazy
from . import metrics


def is_available() -> bool:
    return device_count() > 0


def device_count() -> int:
    return 0 if imitates("no-card") else 1


def get_device_name(index: int | None = None) -> str:
    return "imitation of a Gaudi"


def synchronize() -> None:
    """Nothing runs ahead here."""


class Event:
    """A place in the work of the device; `record.waits` counts who waits for one."""

    def record(self) -> None:
        """All work before it is done already."""

    def synchronize(self) -> None:
        record.waits.append("event")


def mem_get_info() -> tuple[int, int]:
    """Free and total bytes: numbers of no device."""
    return 3 * 2**30, 4 * 2**30


def memory_allocated() -> int:
    """No memory is counted here."""
    return 0


def reset_peak_memory_stats() -> None:
    """There is no peak."""


def max_memory_allocated() -> int:
    return 0


if is_lazy():  # as in the plug-in, which has graphs in lazy mode alone

    def wrap_in_hpu_graph(
        module, asynchronous=False, disable_tensor_cache=False, dry_run=False, max_graphs=None
    ):
        """Replaces `forward`: one result per key, written again at every call; past `max_graphs` keys no graph."""
        record.note("wrap_in_hpu_graph", asynchronous, disable_tensor_cache, dry_run, max_graphs)
        forward, results = module.forward, {}

        def replay(*args):
            key = tuple(map(_hashed, args))
            if key not in results:
                if max_graphs is not None and len(results) >= max_graphs:
                    return forward(*args)
                results[key] = _captured(forward, args)
                record.note("captured")
                metrics.compiled()
                return results[key]
            if imitates("recompiles"):
                metrics.compiled()
            return results[key].copy_(forward(*args))

        module.forward = replay
        return module


def _captured(forward, args):
    """Runs what is captured; the host may read nothing of it meanwhile."""
    device.capturing.append(True)
    try:
        return forward(*args)
    finally:
        device.capturing.pop()


def _hashed(part):
    """Arrays by shape and by their place in what they are a view of, and not by type; everything else by value."""
    if not hasattr(part, "shape"):
        return part
    return tuple(part.shape), part.stride(), part.storage_offset()
