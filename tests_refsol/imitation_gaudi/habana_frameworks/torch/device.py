"""A device "hpu" whose memory is the CPU's: tensors carry a tag, and a mode watches over every call of torch.

As on a real device, the two kinds do not mix (numbers, that is tensors without axes, do), and NumPy cannot look into
an hpu tensor. The mode belongs to the thread that loaded the plug-in.
"""

from collections.abc import Callable, Iterable, Iterator

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
        leaves = [*_leaves(args), *_leaves(kwargs.values())]
        name = getattr(function, "__name__", "")
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        on_hpu = [isinstance(tensor, HpuTensor) for tensor in inputs]
        asked_for = _device_named(leaves)
        if not asked_for and not any(on_hpu):
            return function(*args, **kwargs)
        if name in ("numpy", "__array__") and any(on_hpu):
            raise TypeError("can't convert hpu tensor to numpy; use .cpu() first")
        if any(on_hpu) and name in READS:
            record.waits.append(name)
        if capturing and any(on_hpu) and name in READS:
            raise RuntimeError(f"{name}: the host reads nothing while an HPU graph is captured")
        if any(on_hpu) and name not in COPIES:
            self._forbid_mixing(name, inputs)
        if asked_for and asked_for.type == "hpu" and not any(on_hpu) and not kwargs.get("non_blocking"):
            record.blocking.append(name)
        if name == "matmul" and "out" in kwargs:
            return _multiply_into(kwargs["out"], *args)
        result = function(*_mapped(_to_plain, args), **_mapped(_to_plain, kwargs))
        if name == "cpu" or (asked_for and asked_for.type != "hpu"):
            return result
        first_is_hpu = bool(on_hpu) and (on_hpu[0] if name in COPIES else any(on_hpu))
        return _mapped(_to_hpu, result) if asked_for or first_is_hpu else result

    @staticmethod
    def _forbid_mixing(name: str, inputs: list[torch.Tensor]) -> None:
        if any(not isinstance(tensor, HpuTensor) and tensor.dim() for tensor in inputs):
            raise RuntimeError(f"{name}: expected all tensors on the same device, found hpu and cpu")


def _multiply_into(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The device's product sums in float32 and rounds to the type of `out`, which may be wider than the factors'."""
    a, b = _to_plain(a), _to_plain(b)
    assert a.dtype == b.dtype and tuple(out.shape) == (*a.shape[:-1], b.shape[-1])
    _to_plain(out).copy_(a.float() @ b.float())
    return out


def _leaves(parts: Iterable) -> Iterator:
    """What tuples, lists and dicts hold, at any depth. torch's own trees do more and take most of a small call."""
    for part in parts:
        if isinstance(part, tuple | list):
            yield from _leaves(part)
        elif isinstance(part, dict):
            yield from _leaves(part.values())
        else:
            yield part


def _mapped(function: Callable, part):
    """The same containers, with `function` of each leaf."""
    if isinstance(part, tuple | list):
        return type(part)([_mapped(function, inner) for inner in part])
    if isinstance(part, dict):
        return {key: _mapped(function, inner) for key, inner in part.items()}
    return function(part)


def _device_named(leaves: list) -> torch.device | None:
    """The device that a call asks for by name, as `torch.zeros(3, device="hpu")` or `x.to("cpu")`."""
    for leaf in leaves:
        if isinstance(leaf, torch.device):
            return leaf
        if isinstance(leaf, str) and leaf.partition(":")[0] in ("hpu", "cpu", "meta"):
            return torch.device(leaf)
    return None


def _to_plain(leaf):
    if isinstance(leaf, HpuTensor):
        return leaf.as_subclass(torch.Tensor)
    named = _device_named([leaf])
    return torch.device("cpu") if named and named.type == "hpu" else leaf


def _to_hpu(leaf):
    return leaf.as_subclass(HpuTensor) if isinstance(leaf, torch.Tensor) else leaf
