"""Counts since the start of the process: graphs that were compiled, and operators that ran on the CPU instead."""

from collections import Counter

_compiled, _fallbacks = Counter(), Counter()


class _Metric:
    def __init__(self, stats):
        self.stats = stats  # a list of (name, value)


def compiled() -> None:
    _compiled["graphs"] += 1


def fell_back(operator: str) -> None:
    _fallbacks[operator] += 1


def metric_global(name: str):
    """None for a name that is not registered, as `recipe_cache` is without its variable."""
    return {
        "graph_compilation": _Metric(lambda: [("TotalNumber", _compiled["graphs"]), ("TotalTime", 0)]),
        "cpu_fallback": _Metric(
            lambda: [("TotalNumber", _fallbacks.total()), ("FallbackOps", dict(_fallbacks))]
        ),
    }.get(name)
