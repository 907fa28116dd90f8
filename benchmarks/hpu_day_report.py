"""A result of `bench-latency --hpu-day` as tables, each with what it decides."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from .report import Report, header, noise, results_table

# By measurement: its heading, and what its numbers decide.
MEANS = {
    "ladders": (
        "opening, warm-up included",
        "the default of bucketing_strategy; the first one also loads the compiler",
    ),
    "chunks": ("a prompt", "how much slower chunks are; the smallest chunk that costs little is the default"),
    "causality": ("attention of one prompt", "whether a prompt alone should lose its bias, as it does"),
    "tiles": ("attention in tiles of queries", "what a bias of 2 GiB and more costs beside one call"),
    "packing": ("two prompts, the second a quarter as long", "whether one row with a bias beats padding"),
    "buckets": ("a decode step", "whether a step costs what its rows cost or what their bucket costs"),
    "fp8 pages": ("a decode step over pages", "whether pages in E4M3 pay in time as well as in memory"),
    "host gap": ("a step of an answer", "whether async_scheduling should be on by default"),
    "fused": ("attention, fused or operator by operator", "whether FusedSDPA earns its eleven arguments"),
    "copies": (
        "the blocks of a prompt, one layer",
        "whether cold blocks are copied faster than computed again",
    ),
}


def report(result: Mapping[str, Any]) -> Report:
    """A table per measurement: the first way, and the others beside it."""
    yield header(result)
    if not result["provenance"]["device"].startswith("hpu,"):
        yield "Not a Gaudi, or no hl-smi that names one: these times say nothing about a card."
    for name, samples in result["samples"].items():
        heading, means = MEANS[name]
        first = median(next(iter(samples.values())))
        rows = (
            (
                way + (f", {result['shapes'][way]} shapes" if name == "ladders" else ""),
                f"{1e3 * median(seconds):,.3f}",
                noise(seconds),
                f"{median(seconds) / first:.2f} ×",
            )
            for way, seconds in samples.items()
        )
        yield results_table((heading, "ms", "spread", "of the first"), rows)
        yield f"decides: {means}"
