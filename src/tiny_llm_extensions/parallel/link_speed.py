"""How long the sums of a step take between the ranks, measured without the model."""

import time
from statistics import median
from typing import Any

from tiny_llm_engine.solutions.port import Port

from .groups import Group

ROUNDS = 5  # measured, after one that warms up


def seconds_per_sum(port: Port, ranks: Any, rows: int, width: int, count: int) -> float:
    """The median seconds of one sum, in runs of `count` of them, as rank 0 sees it.

    Args:
        ranks: the `Ranks` of an engine.
        rows, width: T and E of the arrays (1, T, E), in the port's type.

    Raises:
        RankError: a rank is gone.
    """
    ranks.send({"sums": {"rows": rows, "width": width, "count": count}})
    return median(run_sums(port, ranks.group, rows, width, count)[1:]) / count


def run_sums(port: Port, group: Group, rows: int, width: int, count: int) -> list[float]:
    """Sums arrays over the ranks; returns the seconds of each round. Every rank calls it at the same time."""
    seconds = []
    with port.backend_module.inference():
        for _ in range(1 + ROUNDS):
            x = port.backend_module.random_normal((1, rows, width), 1.0, 0.0, port.float_dtype, port.device)
            port.backend_module.evaluate(group.all_reduce(x))  # all ranks begin together
            start = time.perf_counter()
            for _ in range(count):
                x = group.all_reduce(x)
                port.backend_module.evaluate(x)
            port.backend_module.synchronize(port.device)
            seconds.append(time.perf_counter() - start)
    return seconds
