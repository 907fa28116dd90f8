"""The screen of Day 4.2: how a router loads its experts, how many a step reads, and how evenly ranks are loaded.

Routers have random weights. Experts and counts come from the solution's own functions, and so do the times: a layer's
products are those of `grouped_product_by_expert`.
"""

from functools import partial
from itertools import chain

import numpy as np
from rich.console import Console
from rich.text import Text

from ...engine.port import Port
from ...solution_types import Array
from ...trace.samples import medians
from ...trace.tables import figures_table

SHOWN_ON = "torch"
WIDTH = 64  # E of the tokens
EXPERTS, PER_TOKEN, TOKENS = 16, 2, 512  # of the bars
VOCABULARY = 8000  # different tokens of a text
BAR, UNIT = 22, 8  # the longest bar, and tokens per place of it
STEPS = (1, 4, 16, 128, 512)  # tokens of a step
REPEATED = 2048  # tokens that are routed for a mean, at least
SHAPES = {"Mixtral": (8, 2), "Qwen3-MoE": (128, 8)}  # X, k
LAYER = (128, 8, 256, 192)  # X, k, E and F of the layer that is measured
RANKS = (2, 4, 8)
ROUNDS = 9
MEASURED = (r"(?<=MB  )[ \d.]+",)  # the times of a line


def show(b: Port, console: Console) -> None:
    """Bars of two kinds of tokens, then experts by tokens, then the load of ranks."""
    _loads(b, console)
    _experts_read(b, console)
    _times(b, console)
    _ranks(b, console)


# Tokens and routers.


def different_tokens(tokens: int, seed: int) -> np.ndarray:
    """(T, E): tokens that have nothing in common."""
    return np.random.RandomState(seed).standard_normal((tokens, WIDTH)).astype(np.float32)


def text_tokens(tokens: int, seed: int) -> np.ndarray:
    """(T, E): as a text repeats its words, the n-th most frequent of them 1 / n times as often as the first (Zipf)."""
    random = np.random.RandomState(seed)
    frequencies = 1 / np.arange(1, VOCABULARY + 1)
    ids = random.choice(VOCABULARY, tokens, p=frequencies / frequencies.sum())
    return different_tokens(VOCABULARY, 1)[ids]


def routed(b: Port, x: np.ndarray, num_experts: int, k: int) -> tuple[Array, Array]:
    """The experts (T, k) of tokens by a router with random weights, and the tokens of each expert (X,)."""
    router = np.random.RandomState(0).standard_normal((num_experts, WIDTH)).astype(np.float32)
    experts, _ = b.route(b.array(x @ router.T), k)
    return experts, b.sort_by_expert(experts, num_experts)[1]


def counts_of(b: Port, x: np.ndarray, num_experts: int, k: int) -> np.ndarray:
    return b.numpy(routed(b, x, num_experts, k)[1])


# Parts of the screen.


def _loads(b: Port, console: Console) -> None:
    different, text = (
        counts_of(b, make(TOKENS, 2), EXPERTS, PER_TOKEN) for make in (different_tokens, text_tokens)
    )
    console.print(
        f"{TOKENS} tokens, {EXPERTS} experts, {PER_TOKEN} of them per token: tokens of each expert\n"
    )
    console.print(Text(f"expert  {'different tokens':{BAR + 6}}tokens of a text", style="dim"))
    for expert in range(EXPERTS):
        console.print(
            Text(f"{expert:6}  ").append_text(_bar(different[expert])).append_text(_bar(text[expert]))
        )
    most = (f"{imbalance(counts):.2f} times the mean" for counts in (different, text))
    console.print(Text(f"most    {next(most):{BAR + 6}}{next(most)}"))


def _bar(count: int) -> Text:
    bar = "█" * min(BAR, round(count / UNIT))
    return Text(f"{count:4} ").append(f"{bar:{BAR + 1}}", style="cyan")


def imbalance(counts: np.ndarray) -> float:
    """The largest load as a multiple of the mean one: as long as the others wait for it."""
    return float(counts.max() / counts.mean())


def expected_experts(tokens: int, num_experts: int, k: int) -> float:
    """How many experts a step reads, if every token takes k of them at random and for itself."""
    return num_experts * (1 - (1 - k / num_experts) ** tokens)


def experts_read(b: Port, tokens: int, num_experts: int, k: int) -> float:
    """The mean number of experts that have a token, over several steps."""
    steps = max(1, REPEATED // tokens)
    return float(
        np.mean(
            [
                (counts_of(b, different_tokens(tokens, step), num_experts, k) > 0).sum()
                for step in range(steps)
            ]
        )
    )


def _experts_read(b: Port, console: Console) -> None:
    """Experts that a step reads and tokens that each of them gets, beside a formula."""
    headings = ((f"read of {X}", "formula", "rows each") for X, _ in SHAPES.values())
    shown = figures_table("tokens", *chain.from_iterable(headings))
    for tokens in STEPS:
        row = []
        for shape in SHAPES.values():
            read = experts_read(b, tokens, *shape)
            row += [
                f"{read:.1f}",
                f"{expected_experts(tokens, *shape):.1f}",
                f"{tokens * shape[1] / read:.1f}",
            ]
        shown.add_row(str(tokens), *row)
    names = ", then of ".join(f"{name}, {k} of {X}" for name, (X, k) in SHAPES.items())
    console.print(f"\nExperts that a step reads of {names}\n")
    console.print(shown)


def _times(b: Port, console: Console) -> None:
    """A layer's experts by the rows of a step: bytes of weights that it reads, and seconds."""
    num_experts, k, E, F = LAYER
    random, size = np.random.RandomState(3), 4 * 3 * E * F
    up, down = (
        tuple(b.array((random.standard_normal(shape) / 16).astype(np.float32)) for _ in range(num_experts))
        for shape in ((2 * F, E), (E, F))
    )
    shown = figures_table("tokens", "weights read", "ms", "ms per token")
    steps = {tokens: routed(b, different_tokens(tokens, tokens), num_experts, k)[1] for tokens in STEPS}
    seconds = medians(
        {tokens: partial(_multiply, b, up, down, counts) for tokens, counts in steps.items()}, ROUNDS
    )
    for tokens, counts in steps.items():
        read = int((b.numpy(counts) > 0).sum()) * size
        milliseconds = 1000 * seconds[tokens]
        shown.add_row(
            str(tokens), f"{read / 1e6:.0f} MB", f"{milliseconds:.2f}", f"{milliseconds / tokens:.3f}"
        )
    console.print(
        f"\nThe products of a layer of {num_experts} experts, {num_experts * size / 1e6:.0f} MB in float32\n"
    )
    console.print(shown)


def _multiply(b: Port, up: tuple[Array, ...], down: tuple[Array, ...], counts: Array) -> None:
    x = b.array(np.ones((int(b.numpy(counts).sum()), up[0].shape[1]), np.float32))
    hidden = b.grouped_product_by_expert(x, up, counts)[:, : down[0].shape[1]]
    b.backend_module.evaluate(b.grouped_product_by_expert(hidden, down, counts))
    b.backend_module.synchronize(b.device)


def _ranks(b: Port, console: Console) -> None:
    """Rows that ranks compute when each has its share of the tokens of a text, by the plans of an exchange."""
    shown = figures_table(
        "ranks", "rows of a rank", "least", "most", "most / mean", "rows that leave their rank"
    )
    x = text_tokens(TOKENS, 2)
    for size in RANKS:
        counts = [counts_of(b, part, EXPERTS, PER_TOKEN).tolist() for part in np.split(x, size)]
        plans = [b.serving.exchange_plan(counts, rank) for rank in range(size)]
        received = np.array([sum(plan.received) for plan in plans])
        kept = sum(plan.sent[rank] for rank, plan in enumerate(plans))
        shown.add_row(
            str(size), f"{received.mean():.0f}", str(received.min()), str(received.max()),
            f"{imbalance(received):.2f}", f"{1 - kept / received.sum():.0%}",
        )  # fmt: skip
    console.print(f"\n{EXPERTS} experts on several ranks, for {TOKENS} tokens of a text\n")
    console.print(shown)
