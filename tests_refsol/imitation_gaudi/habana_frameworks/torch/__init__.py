"""The plug-in itself: checks torch as the real one does, then registers the device."""

import torch

from .. import imitates, record
from .utils.internal import is_lazy

record.note("load plug-in", record.environment())
assert not imitates("other-torch"), f"built for PyTorch 2.11.0,\nbut the run-time one is {torch.__version__}"
if is_lazy():
    assert imitates("fork") or "+git" in torch.__version__, "Stock PyTorch is not supported in Lazy mode."

from . import core, hpu, ops  # noqa: E402, F401
