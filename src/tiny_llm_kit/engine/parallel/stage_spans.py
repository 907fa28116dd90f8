"""When each stage of an engine computed which micro-batch."""

from typing import Any


def take_spans(ranks: Any) -> list[list[tuple[float, float]]]:
    """For each stage, in order, the seconds at which it began and ended each micro-batch since the last call.

    Only while no micro-batch is in flight. Seconds are those of `time.perf_counter`, which is one clock for all
    processes of a machine on Linux and macOS.

    Args:
        ranks: the `Ranks` of an engine; rank 0 is the last stage.

    Raises:
        RankError: a rank is gone.
    """
    others = ranks.ask({"spans": True})
    return [*(others[rank] for rank in sorted(others)), ranks.group.take_spans()]
