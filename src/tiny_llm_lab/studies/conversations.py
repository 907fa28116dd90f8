"""A day of conversations whose users come back: where their keys and values are by then, and when the first token is.

The blocks are real ones: the allocator, the block table, the prefix cache, the levels and the choice between copies and
computing are the solution's. A block is one token here, so that no text is looked at token by token.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any, NamedTuple, cast

import numpy as np

from tiny_llm_course.trace.text import counted
from tiny_llm_course.trace.trace import percentile
from tiny_llm_extensions.cold_blocks.moves import FOLDER, MEMORY, POOL, QUANTIZED, BlockCosts
from tiny_llm_extensions.cold_blocks.returns import ColdParts

from ..arrivals import arrival_times
from .served import StudyPlan
from .study import Study

DAY, RATE = 10_000, 10_000 / 86_400  # conversations of a day, and a second
PER_USER, TURNS, THINK = 5, 4, 60.0  # conversations, turns of one, and seconds between two, on average
MESSAGE, ANSWER = 100, 300  # tokens on average
LONGEST = 4096  # tokens of a text, after which its user begins another one
BLOCK = 128
INT8 = 3.88  # blocks in the bytes of one of float32
POOLS, IN_MEMORY, IN_FOLDER = (256, 1024, 4096), 4096, 32768  # blocks, with the conversations of a day
LEVELS, COMPUTED = (QUANTIZED, MEMORY, FOLDER), "computed"
SOURCES = COMPUTED, "int8", "memory", "folder"
COLUMNS = ("blocks", "and", "pool", *SOURCES[1:], COMPUTED, "P50 s", "P99 s", "busy %")


class Turn(NamedTuple):
    """A message of a user.

    Args:
        text: number of the text that it goes on.
        prompt, total: tokens of the text with the message, and with its answer.
    """

    text: int
    prompt: int
    total: int


def turns_of_day(conversations: int, seed: int) -> Iterator[Turn]:
    """The messages of all users, in the order of time. A few users begin most conversations (Zipf)."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, max(1, conversations // PER_USER) + 1)
    users = rng.choice(len(weights), conversations, p=weights / weights.sum())
    lengths = rng.geometric(1 / TURNS, conversations)
    think = rng.exponential(THINK, lengths.sum()).cumsum()
    begins = np.array(arrival_times(conversations, RATE, rng=rng)) - think[lengths.cumsum() - lengths]
    order = (think + begins.repeat(lengths)).argsort(kind="stable")
    tokens = 1 + rng.exponential((MESSAGE, ANSWER), (len(order), 2)).astype(int)
    known = dict[int, tuple[int, int]]()  # of each user the text and its tokens
    for number, (user, (message, answer)) in enumerate(
        zip(users.repeat(lengths)[order].tolist(), tokens.tolist(), strict=True)
    ):
        text, before = known.get(user, (number, 0))
        if before + message + answer > LONGEST:
            text, before = number, 0
        prompt, total = before + message, min(before + message + answer, LONGEST)
        known[user] = text, total
        yield Turn(text, prompt, total)


def serve(
    plan: StudyPlan, costs: BlockCosts, pool: int, levels: Mapping[str, int], seed: int
) -> tuple[Counter[str], list[float]]:
    """Serve a day, each message alone: tokens of prompts by where they came from, and seconds to first tokens.

    Args:
        costs: seconds per block.
        pool: its blocks.
        levels: blocks of each level outside it, the fastest first.
    """
    names, tokens, ttfts = plan.names, Counter[str](), list[float]()
    cold = names.ColdBlocks([names.Level(*level) for level in levels.items()])
    allocator = names.BlockAllocator(pool, 1)
    allocator.prefix_cache = names.KeepingCache(cold)
    parts = ColdParts(cold, cast(Any, None), costs, names.blocks_to_bring_back)
    for turn in turns_of_day(plan.requests, seed):
        blocks = range(turn.text * LONGEST, turn.text * LONGEST + -(-turn.total // BLOCK))
        prompt, table = blocks[: 1 + (turn.prompt - 1) // BLOCK], names.BlockTable(allocator)
        places = [POOL] * table.share(prompt)
        table.reserve(len(blocks))
        for digest in parts.wanted(table, prompt):
            places.append(cold.level_of(digest) or POOL)
            cold.bring_back(digest, table.adopt(digest))
        table.register(blocks, turn.total // BLOCK)
        table.release()
        cold.take_moves()
        computed = turn.prompt - BLOCK * len(places)
        tokens.update(
            {COMPUTED: computed}, **{place: BLOCK * count for place, count in Counter(places).items()}
        )
        seconds = costs.back | {POOL: 0.0}
        ttfts.append(computed / BLOCK * (costs.compute or 0.0) + sum(seconds[place] for place in places))
    return tokens, ttfts


def ways(pool: int, scale: float) -> dict[str, tuple[int, dict[str, int]]]:
    """Levels by name: blocks of the pool, and of each level outside it."""
    memory, folder = {MEMORY: int(IN_MEMORY * scale)}, {FOLDER: int(IN_FOLDER * scale)}
    in_int8 = pool - pool // 2, {QUANTIZED: int(pool // 2 * INT8)}
    return {
        "–": (pool, {}),
        "int8": in_int8,
        "memory": (pool, memory),
        "folder": (pool, memory | folder),
    }


def run(plan: StudyPlan) -> Study:
    """Serve the day from pools of several sizes, with and without levels; `plan.hardware` does not count."""
    costs = BlockCosts(
        plan.block_ms[0] / 1000, {n: ms / 1000 for n, ms in zip(LEVELS, plan.block_ms[1:], strict=True)}
    )
    scale, rows = plan.requests / DAY, []
    for pool in POOLS:
        blocks = max(2 * LONGEST // BLOCK, int(pool * scale))
        for name, way in ways(blocks, scale).items():
            found = [figures(*serve(plan, costs, *way, seed), plan.requests / RATE) for seed in plan.seeds]
            rows.append([blocks, name, *map(median, zip(*found, strict=True))])
    kinds = ", ".join(f"{ms:g} {kind}" for ms, kind in zip(plan.block_ms, SOURCES, strict=True))
    return Study(
        "conversations",
        f"{counted(plan.requests, 'conversation')} of users who come back\nms per block of {BLOCK} tokens: {kinds}",
        COLUMNS,
        rows,
        (
            f"On average {TURNS} messages of {MESSAGE} tokens, answers of {ANSWER}, {THINK:g} s between them, and "
            f"{PER_USER} conversations of a user; Zipf. A text goes on up to {LONGEST:,} tokens.",
            "Where tokens of prompts come from, in %; P50 and P99 of the TTFT. int8: in half of the pool's bytes.",
            "Each message is served alone. Busy: the share of the day that prompts and copies take; above 100 %, first "
            "tokens are later.",
        ),
    )


def figures(tokens: Counter[str], ttfts: list[float], day: float) -> list[float]:
    """Where the tokens came from in percent, TTFTs in seconds, and the percentage of the day spent on prompts."""
    shares = [round(100 * tokens[place] / tokens.total()) for place in (POOL, *LEVELS, COMPUTED)]
    return [*shares, percentile(ttfts, 50), percentile(ttfts, 99), round(100 * sum(ttfts) / day)]
