"""The cost of steps on the paper's hardware, from published figures.

Yi-34B on two A100 with tensor parallelism, from the CSV files of Sarathi-Serve's artefact and from the paper's targets.
None of the figures that the studies are compared with is used here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tiny_llm_kit.trace.simulation.cost_fit import fit_line
from tiny_llm_kit.trace.simulation.step_cost import Line, RooflineCost, pairs

# osdi-experiments/figure-2/prefill.csv: tokens -> seconds. The prompt of 256 tokens is left out: it was the first batch
# of its run, and took longer (0.121) than one of 512. The one of 128 is bound by memory, as a decode step is.
PREFILL = {512: 0.1056, 1024: 0.2143, 2048: 0.3660, 4096: 0.7576, 8192: 1.8633, 16384: 4.4075}
# osdi-experiments/figure-2/decode.csv: requests -> seconds; prompts of 1,020 tokens, answers of 4.
DECODE = {1: 0.0468, 2: 0.0475, 4: 0.0488, 8: 0.0697, 16: 0.0773, 32: 0.0879, 64: 0.1278, 128: 0.1893}
DECODE_CONTEXT = 1022
# A chunk of 257 tokens takes 32 % longer than one of 256, says the paper. Of the powers of two, 128 is nearest to that.
TILE = 128
# Yi-34B's published shape, and two cards of 80 GB that read 1.935 TB/s each.
WEIGHT_BYTES, KV_BYTES = 2 * 34.4e9, 60 * 2 * 8 * 128 * 2
CARDS, CARD_BYTES, CARD_BANDWIDTH = 2, 80e9, 1.935e12
BLOCK = 16  # tokens
# With 90 % of the memory, and nothing for activations. The paper does not say how many blocks there were.
NUM_BLOCKS = int((0.9 * CARDS * CARD_BYTES - WEIGHT_BYTES) / KV_BYTES / BLOCK)


@dataclass(frozen=True)
class Hardware:
    """A model on a device: where its costs come from, the cost of a step, and KV blocks of `BLOCK` tokens."""

    says: str
    cost: RooflineCost
    num_blocks: int = NUM_BLOCKS


def prefill_line(seconds: Mapping[int, float] = PREFILL) -> Line:
    """The line through whole prompts: T_math, and the overhead of a step."""
    return fit_line([(tokens, pairs(tokens, 0), taken) for tokens, taken in seconds.items()], passes=1)


def by_step_times(tile: int = TILE) -> RooflineCost:
    """T_math fitted to the measured prompts, T_mem to the measured decode steps."""
    math = prefill_line()
    memory = fit_line(
        [(0, requests * DECODE_CONTEXT, seconds) for requests, seconds in DECODE.items()], passes=1
    )
    return RooflineCost(math.a, math.b, math.c, memory.a - math.a, memory.c, tile)


def by_bandwidth(tile: int = TILE) -> RooflineCost:
    """T_math and the overhead fitted to the measured prompts; T_mem is what the cards' bandwidth allows."""
    math, bandwidth = prefill_line(), CARDS * CARD_BANDWIDTH
    return RooflineCost(math.a, math.b, math.c, WEIGHT_BYTES / bandwidth, KV_BYTES / bandwidth, tile)


# They agree about one decode: 46 and 49 ms, where 47 were measured. About many they do not: with 32 requests of
# 4,096 tokens a step takes 52 or 203 ms, and the paper's rule for its targets (5 and 25 such steps) says 40. The
# artefact's measured steps are of code with slower attention kernels than the paper's, it seems.
HARDWARE = {
    "yi-34b": Hardware("Yi-34B, 2 × A100: prompts as measured, decodes by bandwidth", by_bandwidth()),
    "yi-34b-steps": Hardware("Yi-34B, 2 × A100: prompts and decodes as measured", by_step_times()),
}
