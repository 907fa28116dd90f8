"""Torch operations of a run in order, and the numbers that the host reads, as a graph compiler sees them.

MLX has no twin of it: it compiles nothing unless it is asked to.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Recording:
    """The operations of torch in one run.

    Args:
        signature: each operation in order, with the shapes, strides and types of its arrays and with the numbers that
            Python passed to it. A compiler for fixed shapes makes one graph per signature.
        host_reads: the operations that copied a number to Python; each makes the host wait for the device. `.cpu()` and
            `.tolist()` are not among them; on the `meta` device they raise.
    """

    signature: tuple
    host_reads: tuple[str, ...]


# The operations that .item(), int(t), bool(t) and `if t:` call.
HOST_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.calls.append((operation.name(), _described(args), _described(kwargs or {})))
        return operation(*args, **(kwargs or {}))


def _described(part):
    """An argument of an operation as a compiler sees it: shape and type of an array, the value of anything else."""
    if isinstance(part, torch.Tensor):
        return ("array", tuple(part.shape), part.stride(), str(part.dtype))
    if isinstance(part, list | tuple):
        return tuple(map(_described, part))
    if isinstance(part, dict):
        return tuple((name, _described(value)) for name, value in sorted(part.items()))
    return repr(part)  # 1, 1.0 and True are three different things


def record(run: Callable[[], object]) -> Recording:
    """Run `run()` and record every operation of torch in it."""
    with _Recorder() as recorder:
        run()
    operations = (name for name, *_ in recorder.calls)
    reads = tuple(name for name in operations if name.split(".")[0] in HOST_READS)
    return Recording(tuple(recorder.calls), reads)
