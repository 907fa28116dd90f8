"""The screen of Day 4.2: how a router loads its experts, how many a step reads, and how evenly ranks are loaded.

Loads are those of the shipped mixture, beside a router with random weights; the experts that a step reads are chosen by
random routers. Experts and counts come from the solution's own functions, and so do the times: a layer's products are
those of `grouped_product_by_expert`.
"""

from functools import partial
from itertools import chain

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array

from ..trace.tables import figures_table
from .routed_text import KINDS, RoutedText, routed_text

SHOWN_ON = "torch"
WIDTH = 64  # E of the tokens
BAR = 16  # the longest of a column
STEPS = (1, 4, 16, 128, 512)  # tokens of a step
REPEATED = 2048  # tokens that are routed for a mean, at least
SHAPES = {"Mixtral": (8, 2), "Qwen3-MoE": (128, 8)}  # X, k
LAYER = (128, 8, 256, 192)  # X, k, E and F of the layer that is measured
RANKS = (2, 4, 8)
ROUNDS = 9
MEASURED = (r"(?<=MB  )[ \d.]+", r"(?<=weights read) +(?=ms)")  # times, and their column


def show(b: Port, console: Console) -> None:
    """Bars of two routers, a table of tokens' kinds, then experts by tokens, then the load of ranks."""
    text = routed_text(b)
    _loads(b, text, console)
    _kinds(b, text, console)
    _experts_read(b, console)
    _times(b, console)
    _ranks(b, text, console)


# Tokens and routers.


def different_tokens(tokens: int, seed: int) -> np.ndarray:
    """(T, E): tokens that have nothing in common."""
    return np.random.RandomState(seed).standard_normal((tokens, WIDTH)).astype(np.float32)


def routed(b: Port, x: np.ndarray, num_experts: int, k: int) -> tuple[Array, Array]:
    """The experts (T, k) of tokens (T, E) by a router with random weights, and the tokens of each expert (X,)."""
    router = np.random.RandomState(0).standard_normal((num_experts, x.shape[1])).astype(np.float32)
    return chosen(b, x @ router.T, k)


def chosen(b: Port, logits: np.ndarray, k: int) -> tuple[Array, Array]:
    """The same for the logits (T, X) of a router."""
    experts, _ = b.route(b.array(logits), k)
    return experts, b.sort_by_expert(experts, logits.shape[1])[1]


def counts_of(b: Port, x: np.ndarray, num_experts: int, k: int) -> np.ndarray:
    return b.numpy(routed(b, x, num_experts, k)[1])


# Parts of the screen.


def _loads(b: Port, text: RoutedText, console: Console) -> None:
    """The tokens of each expert: in the last layer with a router that was not trained, then in each layer."""
    X, k = text.num_experts, text.k
    loads = {"not trained": counts_of(b, text.last_rows, X, k)}
    for layer, logits in enumerate(text.logits, 1):
        loads[f"trained, layer {layer}"] = b.numpy(chosen(b, logits, k)[1])
    console.print(f"{len(text.kinds)} tokens of a text, {X} experts, {k} of them per token\n")
    console.print(Text("expert  " + "".join(f"{name:{BAR + 6}}" for name in loads).rstrip(), style="dim"))
    most = max(counts.max() for counts in loads.values())
    for expert in range(X):
        bars = (_bar(counts[expert], most) for counts in loads.values())
        console.print(Text.assemble(f"{expert:6}  ", *bars))
    means = "".join(f"{f'{imbalance(counts):.2f} times the mean':{BAR + 6}}" for counts in loads.values())
    console.print(Text(f"most    {means}".rstrip()))


def _bar(count: int, most: int) -> Text:
    bar = "█" * round(BAR * count / most)
    return Text(f"{count:4} ").append(f"{bar:{BAR + 1}}", style="cyan")


def _kinds(b: Port, text: RoutedText, console: Console) -> None:
    """The part of the tokens of a kind that each expert of the last layer computes."""
    experts = b.numpy(chosen(b, text.logits[-1], text.k)[0])
    kinds = [experts[text.kinds == kind] for kind in range(len(KINDS))]
    heads = (f"{len(tokens)} {name}" for tokens, name in zip(kinds, KINDS, strict=True))
    shown = figures_table("expert", *heads)
    for expert in range(text.num_experts):
        shown.add_row(f"{expert:6}", *(f"{(tokens == expert).sum() / len(tokens):.0%}" for tokens in kinds))
    console.print("\nLayer 2: of the tokens of a kind, those that an expert computes\n")
    console.print(shown)


def imbalance(counts: np.ndarray) -> float:
    """The largest load as a multiple of the mean one: as long as the others wait for it."""
    return float(counts.max() / counts.mean())


def expected_experts(tokens: int, num_experts: int, k: int) -> float:
    """How many experts a step reads, if every token takes k of them at random and for itself."""
    return num_experts * (1 - (1 - k / num_experts) ** tokens)


def experts_read(b: Port, tokens: int, num_experts: int, k: int) -> float:
    """The mean number of experts that have a token, over several steps."""
    texts = (different_tokens(tokens, step) for step in range(max(1, REPEATED // tokens)))
    return float(np.mean([(counts_of(b, text, num_experts, k) > 0).sum() for text in texts]))


def _experts_read(b: Port, console: Console) -> None:
    """Experts that a step reads and tokens that each of them gets, beside a formula."""
    headings = ((f"read of {X}", "formula", "rows each") for X, _ in SHAPES.values())
    shown = figures_table("tokens", *chain.from_iterable(headings))
    for tokens in STEPS:
        row = []
        for shape in SHAPES.values():
            read = experts_read(b, tokens, *shape)
            row += [read, expected_experts(tokens, *shape), tokens * shape[1] / read]
        shown.add_row(str(tokens), *(f"{figure:.1f}" for figure in row))
    names = ", then of ".join(f"{name}, {k} of {X}" for name, (X, k) in SHAPES.items())
    console.print(f"\nExperts that a step reads of {names}\n")
    console.print(shown)


def _times(b: Port, console: Console) -> None:
    """A layer's experts by the rows of a step: bytes of weights that it reads, and seconds."""
    num_experts, k, E, F = LAYER
    random, size = np.random.RandomState(3), 4 * 3 * E * F
    shapes = [(num_experts, 2 * F, E), (num_experts, E, F)]
    weights = [(random.standard_normal(shape) / 16).astype(np.float32) for shape in shapes]
    up, down = (tuple(b.linear_layer(b.array(matrix)) for matrix in matrices) for matrices in weights)
    shown = figures_table("tokens", "weights read", "ms", "ms per token")
    steps = {tokens: routed(b, different_tokens(tokens, tokens), num_experts, k)[1] for tokens in STEPS}
    timed = {tokens: partial(_multiply, b, up, down, counts) for tokens, counts in steps.items()}
    seconds = medians(timed, ROUNDS)
    for tokens, counts in steps.items():
        read = int((b.numpy(counts) > 0).sum()) * size
        ms = 1000 * seconds[tokens]
        shown.add_row(str(tokens), f"{read / 1e6:.0f} MB", f"{ms:.2f}", f"{ms / tokens:.3f}")
    console.print(
        f"\nThe products of a layer of {num_experts} experts, {num_experts * size / 1e6:.0f} MB in float32\n"
    )
    console.print(shown)


def _multiply(b: Port, up: tuple[Array, ...], down: tuple[Array, ...], counts: Array) -> None:
    x = b.array(np.ones((int(b.numpy(counts).sum()), up[0].shape[1]), np.float32))
    hidden = b.grouped_product_by_expert(x, up, counts)[:, : down[0].shape[1]]
    b.backend_module.evaluate(b.grouped_product_by_expert(hidden, down, counts))
    b.backend_module.synchronize(b.device)


def _ranks(b: Port, text: RoutedText, console: Console) -> None:
    """Rows that ranks compute when each has its share of the tokens of a text, by the plans of an exchange."""
    heads = "rows of a rank", "least", "most", "most / mean", "rows that leave their rank"
    shown = figures_table("ranks", *heads)
    for size in RANKS:
        parts = np.array_split(text.logits[-1], size)
        counts = [b.numpy(chosen(b, part, text.k)[1]).tolist() for part in parts]
        plans = [b.serving.exchange_plan(counts, rank) for rank in range(size)]
        received = np.array([sum(plan.received) for plan in plans])
        kept = sum(plan.sent[rank] for rank, plan in enumerate(plans))
        shown.add_row(
            str(size),
            f"{received.mean():.0f}",
            str(received.min()),
            str(received.max()),
            f"{imbalance(received):.2f}",
            f"{1 - kept / received.sum():.0%}",
        )
    console.print(f"\nThe {text.num_experts} experts of layer 2 on several ranks, for the same text\n")
    console.print(shown)
