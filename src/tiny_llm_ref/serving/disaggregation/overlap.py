"""When keys and values arrive that are sent while the next tokens are computed."""

from collections.abc import Iterable

from tiny_llm_extensions.kv_transfer.transfers import Computed


def arrivals(computed: Iterable[Computed], seconds: float) -> dict[int, float]:
    """When the last keys and values of each request arrive.

    An engine sends to one other engine at a time, and receives from one at a time. So what is computed waits until both
    ends are free. Nobody waits for a link to compute.

    Args:
        computed: what steps have computed, in the order of time.
        seconds: that the keys and values of a token take on a link.

    Returns:
        Seconds on the clock of `Computed.time`, by request.
    """
    # TASK 4.6.3: a link is free from some time on, at both ends. Sending begins at the latest of three times.
    free: dict[str, float] = {}
    arrived: dict[int, float] = {}
    for each in computed:
        begins = max(each.time, free.get(each.sender, 0.0), free.get(each.receiver, 0.0))
        arrived[each.request] = free[each.sender] = free[each.receiver] = begins + each.tokens * seconds
    return arrived
