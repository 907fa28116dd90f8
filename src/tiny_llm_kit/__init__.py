"""Given code: everything in the course that learners do not write.

Loading, tokenizer, commands, screens and the tooling of the course. Kit code never imports a solution;
it reaches one by name through `port.resolve`.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine.llm import LLM

# Threads that wait for each other spin by default, and on busy cores they spin away the time of those that they wait
# for: two commands at once on two cores took 20 times as long as one. They sleep soon instead; at once would cost a
# lone command 5 % of a prompt. All are read when the libraries load, so they are set before torch or MLX is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # of PyTorch
os.environ.setdefault(
    "GOMP_SPINCOUNT", "1000"
)  # of PyTorch on Linux: 300,000 without the line above, 0 with it
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # of MLX on Linux: spins for 2**4 cycles


def llm_class(solution: str) -> "type[LLM]":
    """`LLM` of a solution. A learner's knows what is still blank."""
    if solution == "tiny_llm":
        from .course.learner_llm import LearnerLLM as LLM
    else:
        from .engine.llm import LLM
    return LLM


def __getattr__(name: str):
    """Import `load` on first use: `doctor` must start where nothing is installed yet."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .course.capabilities import load

    return load
