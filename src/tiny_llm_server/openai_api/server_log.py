"""What the server writes into its log: the form of its lines, and a periodic one about throughput."""

import asyncio
import logging
import time
from collections.abc import Callable

from tiny_llm_engine.models.files import Json

LOG = logging.getLogger("tiny_llm.server")
SECONDS = 10.0  # between two lines about throughput
TIMED = {"timed": {"format": "%(asctime)s %(levelname)s %(message)s"}}
HANDLERS = {
    name: {"class": "logging.StreamHandler", "formatter": "timed", "stream": f"ext://sys.{name}"}
    for name in ("stderr", "stdout")
}
LOGGERS = {
    "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
    "asyncio": {"handlers": ["stderr"], "level": "WARNING"},
    "tiny_llm": {"handlers": ["stderr"], "level": "INFO"},
    "tiny_llm.access": {"handlers": ["stdout"], "level": "INFO", "propagate": False},
}
CONFIG: Json = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": TIMED,
    "handlers": HANDLERS,
    "loggers": LOGGERS,
}


class ThroughputLog:
    """Writes a line every few seconds, as vLLM does, while requests are open or tokens were computed.

    Args:
        value: returns a metric by its name without "vllm:".
        clock: seconds.
    """

    def __init__(self, value: Callable[[str], float], clock: Callable[[], float] = time.monotonic):
        self._value, self._clock = value, clock
        self._before = self._now()

    def _now(self) -> dict[str, float]:
        names = "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits"
        return {"time": self._clock(), **{f"{name}_total": self._value(f"{name}_total") for name in names}}

    def line(self) -> str | None:
        """What happened since the last call; None if nothing did."""
        before, now = self._before, self._now()
        self._before = now
        grown = {name: now[name] - before[name] for name in now}
        running, waiting = (round(self._value(f"num_requests_{name}")) for name in ("running", "waiting"))
        if not (running or waiting or grown["prompt_tokens_total"] or grown["generation_tokens_total"]):
            return None
        rates = [
            grown[f"{name}_tokens_total"] / max(grown["time"], 1e-9) for name in ("prompt", "generation")
        ]
        line = (
            f"Avg prompt throughput: {rates[0]:.1f} tokens/s, Avg generation throughput: {rates[1]:.1f} tokens/s, "
            f"Running: {running} reqs, Waiting: {waiting} reqs, "
            f"KV cache usage: {100 * self._value('kv_cache_usage_perc'):.1f}%"
        )
        asked = now["prefix_cache_queries_total"]
        hits = f"{100 * now['prefix_cache_hits_total'] / asked:.1f}%" if asked else "-"
        return f"{line}, Prefix cache hit rate: {hits}"

    async def run(self) -> None:
        """Write lines until it is cancelled."""
        while True:
            await asyncio.sleep(SECONDS)
            if (line := self.line()) is not None:
                LOG.info(line)
