"""Registers `torch.hpu`; `mark_step` ends a graph of lazy mode and does nothing in the other modes."""

import torch

from .. import imitates, record
from . import hpu
from .device import HpuMode
from .hpu import metrics
from .utils.internal import is_lazy

torch._register_device_module("hpu", hpu)
if hpu.is_available():
    HpuMode().__enter__()  # for the rest of the process


# Some of the names in the plug-in's compile_backend/config.py; torch raises for others there as well.
OPTIONS = {"force_static_compile", "keep_input_mutations", "use_eager_fallback", "use_inplace_index_copy"}
_compile = torch.compile


def compile_for_hpu(model=None, *, backend="inductor", **options):
    """`torch.compile`; for "hpu_backend" the function itself, which finds `torch.compiler.is_compiling()` true."""
    if backend != "hpu_backend":
        return _compile(model, backend=backend, **options)
    record.note("compile", options)
    assert not is_lazy(), "lazy mode has no torch.compile"
    unknown = options.get("options", {}).keys() - OPTIONS
    assert not unknown, f"no such option of the compiler: {unknown}"

    shapes = set()

    def run(*args):
        key = tuple(tuple(part.shape) for part in args if isinstance(part, torch.Tensor))
        if key not in shapes or imitates("recompiles"):
            shapes.add(key)
            metrics.compiled()
        torch.compiler._is_compiling_flag = True
        try:
            return model(*args)
        finally:
            torch.compiler._is_compiling_flag = False

    return run


torch.compile = compile_for_hpu


def mark_step(device_str: str = "", sync: bool = False) -> None:
    record.note("mark_step", device_str, sync)
    assert is_lazy(), "hpu.py has to call this in lazy mode only"
