"""Makes calls, given as Python, and prints what becomes of each, as JSON; see `test_hpu.py`."""

import json
import sys

from tiny_llm_engine.solutions.port import Port

b = Port("ref", "torch")
import torch  # noqa: E402 (hpu.py precedes it)
from habana_frameworks.torch.hpex.kernels import FusedSDPA  # noqa: E402, F401


def made(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16, device="hpu")


told = []
for call in sys.argv[1:]:
    try:
        eval(call)
        told.append("accepted")
    except Exception as error:
        told.append(f"{type(error).__name__}: {error}")
print(json.dumps(told))
