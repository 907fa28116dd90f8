"""Registers `torch.hpu`; `mark_step` ends a graph of lazy mode and does nothing in the other modes."""

import torch

from .. import record
from . import hpu
from .device import HpuMode
from .utils.internal import is_lazy

torch._register_device_module("hpu", hpu)
if hpu.is_available():
    HpuMode().__enter__()  # for the rest of the process


def mark_step(device_str: str = "", sync: bool = False) -> None:
    record.note("mark_step", device_str, sync)
    assert is_lazy(), "hpu.py has to call this in lazy mode only"
