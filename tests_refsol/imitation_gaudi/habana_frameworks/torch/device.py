"""A device "hpu" whose memory is the CPU's: tensors carry a tag, and a mode watches over every call of torch.

As on a real device, the two kinds do not mix (numbers, that is tensors without axes, do), and NumPy cannot look into
an hpu tensor. The mode belongs to the thread that loaded the plug-in.
"""

from collections.abc import Callable, Iterable
from types import FunctionType

import torch
from torch.overrides import TorchFunctionMode

from .. import record

HPU = torch.device("hpu", 0)
# These take tensors of two devices by their nature.
COPIES = {"to", "copy_", "cpu", "__setitem__", "set_"}
# With these the host waits for numbers, or for a shape that depends on them.
READS = {"item", "tolist", "cpu", "nonzero", "masked_select", "unique", "__bool__", "__int__", "__index__"}
capturing: list[bool] = []  # not empty while an HPU graph is captured


class HpuTensor(torch.Tensor):
    """A CPU tensor that says it is on an hpu."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    device = property(lambda self: HPU)
    is_cpu = property(lambda self: False)


class HpuMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inputs: list[torch.Tensor] = []
        asked_for = _look_through((*args, *kwargs.values()), inputs)
        on_hpu = [isinstance(tensor, HpuTensor) for tensor in inputs]
        if not asked_for and True not in on_hpu:
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if True in on_hpu:
            self._watch(name, inputs)
        elif asked_for.type == "hpu" and not kwargs.get("non_blocking"):
            record.blocking.append(name)
        if name == "matmul" and "out" in kwargs:
            return _multiply_into(kwargs["out"], *args)
        if asked_for or name == "cpu" or isinstance(function, FunctionType):  # built-in ones ignore the tag
            args, kwargs = _mapped(_to_plain, args), _mapped(_to_plain, kwargs)
        result = function(*args, **kwargs)
        if name == "cpu" or (asked_for and asked_for.type != "hpu"):
            return result
        return _mapped(_to_hpu, result) if asked_for or on_hpu[0] or name not in COPIES else result

    @staticmethod
    def _watch(name: str, inputs: list[torch.Tensor]) -> None:
        """Refuse what a device refuses; note what waits for it."""
        if name in ("numpy", "__array__"):
            raise TypeError("can't convert hpu tensor to numpy; use .cpu() first")
        if name in READS:
            record.waits.append(name)
            if capturing:
                raise RuntimeError(f"{name}: the host reads nothing while an HPU graph is captured")
        if name not in COPIES and any(not isinstance(x, HpuTensor) and x.dim() for x in inputs):
            raise RuntimeError(f"{name}: expected all tensors on the same device, found hpu and cpu")


def _multiply_into(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The device's product sums in float32 and rounds to the type of `out`, which may be wider than the factors'."""
    a, b = _to_plain(a), _to_plain(b)
    assert a.dtype == b.dtype and tuple(out.shape) == (*a.shape[:-1], b.shape[-1])
    _to_plain(out).copy_(a.float() @ b.float())
    return out


def _look_through(parts: Iterable, tensors: list[torch.Tensor]) -> torch.device | None:
    """Collect the tensors in tuples, lists and dicts at any depth, in one walk: most calls of torch are small.

    Returns the first device that is asked for by name, as `torch.zeros(3, device="hpu")` or `x.to("cpu")`.
    """
    asked_for = None
    for part in parts:
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        elif isinstance(part, (int, float, torch.dtype)) or part is None:
            continue
        elif isinstance(part, (tuple, list, dict)):
            inner = _look_through(part.values() if isinstance(part, dict) else part, tensors)
            asked_for = asked_for or inner
        elif isinstance(part, (torch.device, str)):
            asked_for = asked_for or _device_named(part)
    return asked_for


def _mapped(function: Callable, part):
    """The same containers, with `function` of each leaf."""
    if isinstance(part, (tuple, list)) and not isinstance(part, torch.Size):
        return type(part)([_mapped(function, inner) for inner in part])
    if isinstance(part, dict):
        return {key: _mapped(function, inner) for key, inner in part.items()}
    return function(part)


def _device_named(part) -> torch.device | None:
    if isinstance(part, str) and part.partition(":")[0] in ("hpu", "cpu", "meta"):
        return torch.device(part)
    return part if isinstance(part, torch.device) else None


def _to_plain(leaf):
    if isinstance(leaf, HpuTensor):
        return leaf.as_subclass(torch.Tensor)
    named = _device_named(leaf)
    return torch.device("cpu") if named and named.type == "hpu" else leaf


def _to_hpu(leaf):
    return leaf.as_subclass(HpuTensor) if type(leaf) is torch.Tensor else leaf
