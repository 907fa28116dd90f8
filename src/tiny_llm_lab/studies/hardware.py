"""The cost of steps on the paper's hardware, from published figures.

Yi-34B on two A100 with tensor parallelism, from the CSV files of Sarathi-Serve's artefact. Mistral-7B and LLaMA2-70B
from the times of single operators in another artefact, see `operator_times`. Falcon-180B from two figures of the paper.
None of the figures that the studies are compared with is used here. The costs on Gaudis are those on A100, by the
ratios of published peaks: no step of them has been published.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tiny_llm_course.trace.simulation.cost_fit import fit_line
from tiny_llm_course.trace.simulation.step_cost import RooflineCost, pairs

from .operator_times import A40_LLAMA2_70B, A100_LLAMA3_8B, LayerTimes

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
A40_BYTES, A40_BANDWIDTH = 48e9, 0.696e12
# Peaks in bf16, operations per second, from data sheets; of the Gaudis also bytes per second, and of memory.
A100_PEAK = 312e12
GAUDIS = {"gaudi2": (432e12, 2.46e12, 96e9), "gaudi3": (1835e12, 3.67e12, 128e9)}
BLOCK = 16  # tokens


@dataclass(frozen=True)
class Hardware:
    """A model on a device.

    Args:
        says: where its costs come from.
        cost: seconds of a step.
        num_blocks: KV blocks of `BLOCK` tokens.
        kv_bytes: bytes of a token's keys and values in all layers.
        targets: the paper's Table 3 and the artefact's budgets: name -> P99 of the time between tokens, in seconds, and
            tokens of a step of Sarathi-Serve. Empty where the paper does not have the model.
        stages: of the pipeline; each has its own requests.
        orca_seqs: requests that Orca runs at a time, in the artefact's configurations.
    """

    says: str
    cost: RooflineCost
    num_blocks: int
    kv_bytes: float
    targets: Mapping[str, tuple[float, int]]
    stages: int = 1
    orca_seqs: int = 16


def blocks_of(cards: int, card_bytes: float, weight_bytes: float, kv_bytes: float) -> int:
    """KV blocks in 90 % of the memory, with nothing for activations: the paper does not say how many there were."""
    return int((0.9 * cards * card_bytes - weight_bytes) / kv_bytes / BLOCK)


# Through whole prompts: T_math, and the overhead of a step.
MATH = fit_line([(tokens, pairs(tokens, 0), seconds) for tokens, seconds in PREFILL.items()], passes=1)


def by_step_times() -> RooflineCost:
    """T_math fitted to the measured prompts, T_mem to the measured decode steps."""
    memory = fit_line(
        [(0, requests * DECODE_CONTEXT, seconds) for requests, seconds in DECODE.items()], passes=1
    )
    return RooflineCost(MATH.a, MATH.b, MATH.c, memory.a - MATH.a, memory.c, TILE)


def by_bandwidth() -> RooflineCost:
    """T_math and the overhead fitted to the measured prompts; T_mem is what the cards' bandwidth allows."""
    bandwidth = CARDS * CARD_BANDWIDTH
    return RooflineCost(MATH.a, MATH.b, MATH.c, WEIGHT_BYTES / bandwidth, KV_BYTES / bandwidth, TILE)


# Operations per second of attention, as a share of those of the products, in the line of Yi-34B: a pair costs four
# operations per layer and hidden value, a token two per weight. No step of the other models has been published.
ATTENTION_SHARE = (60 * 4 * 7168 / MATH.c) / (2 * 34.4e9 / MATH.b)


def by_operators(times: LayerTimes, layers: int, kv_bytes: float, bandwidth: float) -> RooflineCost:
    """The cost of a step whose products were measured one by one.

    Without communication and without the work between operators, which are not in the file: so each step is faster
    than it was.

    Args:
        times: seconds that each product of a layer takes.
        layers: how many layers the model has.
        kv_bytes: bytes of a token's keys and values in all layers.
        bandwidth: bytes per second of the cards that hold a layer together.
    """
    line = fit_line([(tokens, 0, layers * each) for tokens, each in times.seconds.items()], passes=1)
    operations = 2 * times.weights * layers / line.b
    pair = layers * 4 * times.hidden_size / (ATTENTION_SHARE * operations)
    weights = max(0.0, layers * times.one_token - line.a)
    return RooflineCost(line.a, line.b, pair, weights, kv_bytes / bandwidth, TILE)


def on_gaudi(gaudi: str, model: Hardware, cards: int, weight_bytes: float) -> Hardware:
    """A model on as many Gaudis as it has A100, by the ratios of published peaks: nothing of it was measured.

    So its products reach the share of the peak that those of the A100 reach, and a step has the same overhead.

    Args:
        gaudi: one of `GAUDIS`.
        model: the model on A100.
        cards: how many.
        weight_bytes: of all weights.
    """
    peak, bandwidth, card_bytes = GAUDIS[gaudi]
    was, compute, read = model.cost, peak / A100_PEAK, bandwidth / CARD_BANDWIDTH
    faster = {"token": was.token / compute, "pair": was.pair / compute}
    cost = replace(was, **faster, weights=was.weights / read, read=was.read / read)
    blocks = blocks_of(cards, card_bytes, weight_bytes, model.kv_bytes)
    says = f"{model.says.partition(',')[0]}, {cards} × Gaudi {gaudi[-1]}: as on A100, by the ratio of published peaks"
    return Hardware(says, cost, blocks, model.kv_bytes, {})


def by_two_steps(prompt: float, decodes: float, stages: int) -> RooflineCost:
    """The cost of a step from two published ones, of a stage: a prompt of 4,096 tokens, and decodes alone.

    The contexts of the decodes are not published, so all their time is that of reading the weights.
    """
    return RooflineCost(0.0, stages * prompt / 4096, 0.0, stages * decodes, 0.0, TILE)


# The two sources of Yi-34B agree about one decode: 46 and 49 ms, where 47 were measured. About many they do not: with
# 32 requests of 4,096 tokens a step takes 52 or 203 ms, and the paper's rule for its targets (5 and 25 such steps) says
# 40. The artefact's measured steps are of code with slower attention kernels than the paper's, it seems.
YI_BLOCKS = blocks_of(CARDS, CARD_BYTES, WEIGHT_BYTES, KV_BYTES)
YI_TARGETS = {"strict": (0.2, 512), "relaxed": (1.0, 2048)}
MISTRAL_BYTES = 2 * 7.24e9
SMALL_KV, LARGE_KV, FALCON_KV = 32 * 2 * 8 * 128 * 2, 80 * 2 * 8 * 128 * 2, 80 * 2 * 8 * 64 * 2
HARDWARE = {
    "yi-34b": Hardware(
        "Yi-34B, 2 × A100: prompts as measured, decodes by bandwidth",
        by_bandwidth(),
        YI_BLOCKS,
        KV_BYTES,
        YI_TARGETS,
    ),
    "yi-34b-steps": Hardware(
        "Yi-34B, 2 × A100: prompts and decodes as measured", by_step_times(), YI_BLOCKS, KV_BYTES, YI_TARGETS
    ),
    # Its layers have the shapes of those of Llama-3-8B. The vocabulary is another one, but the head is not counted.
    "mistral-7b": Hardware(
        "Mistral-7B, 1 × A100: products as measured, attention by rate and bandwidth",
        by_operators(A100_LLAMA3_8B, 32, SMALL_KV, CARD_BANDWIDTH),
        blocks_of(1, CARD_BYTES, MISTRAL_BYTES, SMALL_KV),
        SMALL_KV,
        {"strict": (0.1, 512), "relaxed": (0.5, 2048)},
    ),
    "llama2-70b": Hardware(
        "LLaMA2-70B, 8 × A40, TP4-PP2: products as measured, attention by rate and bandwidth",
        by_operators(A40_LLAMA2_70B, 80, LARGE_KV, 4 * A40_BANDWIDTH),
        blocks_of(8, A40_BYTES, 2 * 69e9, LARGE_KV),
        LARGE_KV,
        {"strict": (1.0, 512), "relaxed": (5.0, 1536)},
        stages=2,
        orca_seqs=8,
    ),
    # The paper: a prompt of 4k tokens takes about 1,150 ms, a step of 32 decodes about 200. Here these are of a stage,
    # since a whole step in 1,150 ms would be more than four A100 can compute at their peak.
    "falcon-180b": Hardware(
        "Falcon-180B, 2 × 4 × A100, TP4-PP2: two published steps",
        by_two_steps(1.15, 0.2, stages=2),
        blocks_of(8, CARD_BYTES, 2 * 180e9, FALCON_KV),
        FALCON_KV,
        {"strict": (1.0, 512), "relaxed": (5.0, 2048)},
        stages=2,
        orca_seqs=8,
    ),
    "llama-3-8b": Hardware(
        "Llama-3-8B, 1 × A100: products as measured, attention by rate and bandwidth",
        by_operators(A100_LLAMA3_8B, 32, SMALL_KV, CARD_BANDWIDTH),
        blocks_of(1, CARD_BYTES, 2 * 8.03e9, SMALL_KV),
        SMALL_KV,
        {},
    ),
}
for gaudi in GAUDIS:
    HARDWARE[f"{gaudi}-mistral-7b"] = on_gaudi(gaudi, HARDWARE["mistral-7b"], 1, MISTRAL_BYTES)
    HARDWARE[f"{gaudi}-yi-34b"] = on_gaudi(gaudi, HARDWARE["yi-34b"], CARDS, WEIGHT_BYTES)
