"""An imitation of Intel's Gaudi plug-in, to be put on PYTHONPATH: the calls of `hpu.py`, recorded and checked.

    PYTHONPATH=tests_refsol/imitation_gaudi pdm run doctor

It stands in for package, entry point, device and the few functions that the course calls, with the arguments and the
demands that the plug-in's public source has. Its "hpu" tensors live on the CPU. It proves what is called, when and
with what; it proves nothing about a Gaudi's arithmetic, speed or graph compiler.

The environment variable IMITATION_GAUDI may name, separated by commas: `no-card`, `other-torch` (the plug-in was
built for another torch), `fork` (torch passes for Intel's own build, which lazy mode demands), `recompiles` (every
call is compiled again), `fallback` (RMSNorm runs on the CPU), `wrong-rope` (RoPE turns the other way).
"""

import os


def imitates(what: str) -> bool:
    return what in os.environ.get("IMITATION_GAUDI", "").split(",")
