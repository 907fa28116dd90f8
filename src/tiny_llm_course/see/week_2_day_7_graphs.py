"""`pdm run see 2.7 --graphs`: programs that a fixed-shape compiler makes of prompts up to 8,192 tokens.

The torch port runs the chunks of a very small model, and `record` writes down what torch is asked for. MLX has no such
screen: it compiles nothing unless it is asked to.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.solutions.port import Port

from ..grading.small_models import random_checkpoint, small_model

LIMIT, BLOCK, CHUNK = 8192, 128, 512
STEPS = tuple(range(BLOCK, CHUNK + 1, BLOCK))
ANY_BLOCK, ALIGNED = range(0, LIMIT, BLOCK), range(0, LIMIT, CHUNK)
BATCHES = (1, 2, 4)
CASE = small_model(
    0, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=LIMIT
)


@dataclass(frozen=True)
class Chunking:
    """One way to cut and to pad prompts."""

    name: str  # a line that says what it does
    contexts: Sequence[int]  # the numbers of tokens that may precede a chunk
    sizes: Sequence[int]  # what the tokens of a chunk are padded to; the largest is the chunk
    # how much of the cache a chunk reads: "block", up to its own end; "ours", what the port's cache hands out;
    # "all", also what is unwritten
    reads: str = "ours"

    @property
    def product(self) -> tuple[int, int]:
        """Numbers of sizes and of contexts with separate programs; their product is the number of programs."""
        return len(self.sizes), 1 if self.reads == "all" else len(self.contexts)

    @property
    def padding(self) -> float:
        """Padding tokens of the last chunk: the mean over all lengths."""
        rests = range(1, self.sizes[-1] + 1)
        return sum(next(size for size in self.sizes if size >= rest) - rest for rest in rests) / len(rests)

    @property
    def options(self) -> dict[str, Any]:
        """The runner's argument for it."""
        in_steps = tuple(self.sizes) == tuple(range(BLOCK, self.sizes[-1] + 1, BLOCK))
        return {"prompt_bucket": BLOCK} if in_steps else {"pad_last": "chunk", "chunk_sizes": self.sizes}

    def chunks(self) -> Iterator[tuple[int, int]]:
        """(context, tokens) of chunks: every size after every context.

        The tokens are fewer than a size by a varying number; padding must make them one program.
        """
        for context in self.contexts:
            for smaller, size in zip((0, *self.sizes), self.sizes, strict=False):
                if context + size <= LIMIT:
                    yield context, size - context // BLOCK % (size - smaller)


CHUNKINGS = {
    "whole": Chunking("whole prompts, in steps of 128", (0,), range(BLOCK, LIMIT + 1, BLOCK)),
    "any block": Chunking("chunks of 512 after any block of 128", ANY_BLOCK, STEPS, "block"),
    "aligned": Chunking("chunks of 512 after multiples of 512", ALIGNED, STEPS),
    "ladder": Chunking("  the last one in buckets 128, 256, 512", ALIGNED, (128, 256, 512)),
    "padded": Chunking("  the last one padded to 512", ALIGNED, (512,)),
    "static": Chunking("  and the whole cache is read, always", ALIGNED, (512,), "all"),
}


class RecordedLayer:
    """A layer that records its torch operations, and how many keys it reads."""

    def __init__(self, layer, record):
        self.layer, self.record = layer, record
        self.programs, self.host_reads, self.keys = set(), 0, 0

    def __call__(self, x, step, cache):
        out = []
        self.keys += cache.num_keys(x.shape[1])
        recording = self.record(lambda: out.append(self.layer(x, step, cache)))
        self.programs.add(recording.signature)
        self.host_reads += len(recording.host_reads)
        return out[0]


def cache_of(b: Port, reads: str):
    """The port's cache, or one that hands out as many keys as `reads` says."""

    class BlockCache(b.TinyKvFullCache):
        def num_keys(self, L: int) -> int:
            return self.offset + L

    class StaticCache(b.TinyKvFullCache):
        def _is_prompt(self, L: int) -> bool:
            return False

        def num_keys(self, L: int) -> int:
            return LIMIT

    return {"block": BlockCache, "ours": b.TinyKvFullCache, "all": StaticCache}[reads](LIMIT)


def started(b: Port, chunking: Chunking):
    """A model, its runner, and a cache whose arrays are allocated."""
    model = b.Qwen3ModelWeek2(random_checkpoint(b, CASE), attention="device")
    runner = b.runner(model, chunk_mask=b.chunked_attention_mask, **{"prompt_bucket": 1, **chunking.options})
    cache = cache_of(b, chunking.reads)
    runner.prefill([1], 0, [cache], sample=False)
    return model, runner, cache


def run(b: Port, chunking: Chunking, chunks: Iterable[tuple[int, int]]) -> RecordedLayer:
    """Run (context, tokens) chunks; the tokens before a chunk are only counted, never computed."""
    from ..recorded_operations import record  # imports torch

    model, runner, cache = started(b, chunking)
    [layer] = model.layers = [RecordedLayer(layer, record) for layer in model.layers]
    for context, tokens in chunks:
        cache.offset = context
        runner.prefill([1] * tokens, context, [cache], sample=True)
    return layer


def whole_steps(b: Port, chunking: Chunking) -> int:
    """Number of programs for whole steps, from the ids to the token.

    A chunk that ends no prompt skips the head, which makes another program.
    """
    from ..recorded_operations import record  # imports torch

    _, runner, cache = started(b, chunking)
    programs = set()
    for context, tokens in chunking.chunks():
        for sample in (True, False)[: 1 + (context + chunking.sizes[-1] < LIMIT)]:
            cache.offset = context
            step = partial(runner.prefill, [1] * tokens, context, [cache], sample=sample)
            programs.add(record(step).signature)
    return len(programs)


def keys_read(b: Port, chunking: Chunking, tokens: int) -> int:
    """The number of keys that the chunks of one prompt read in total."""
    chunk = chunking.sizes[-1]
    return run(b, chunking, [(start, min(chunk, tokens - start)) for start in range(0, tokens, chunk)]).keys


def show_graphs(b: Port, console: Console) -> None:
    """Show the counted programs of every chunking beside the arithmetic."""
    console.print(f"Prompts of up to {LIMIT:,} tokens, one row; attention up to the chunk's end.")
    console.print("Programs that a compiler for fixed shapes would make of the layers:\n")
    console.print(f"{'':43}{'sizes × contexts':>19}{'counted':>9}{'padding':>9}", style="bold")
    for chunking in CHUNKINGS.values():
        (sizes, contexts), counted = chunking.product, len(run(b, chunking, chunking.chunks()).programs)
        product = f"{sizes} × {contexts} = {sizes * contexts}"
        line = Text.assemble(f"{chunking.name:43}{product:>19}", (f"{counted:>9}", "bold"))
        console.print(line.append(f"{chunking.padding:>9.1f}"))
    console.print("\npadding: tokens that the last chunk computes for nothing, mean of all lengths.")
    _notes(b, console)


def _notes(b: Port, console: Console) -> None:
    """Print why a count is not the product, what was not counted, and what the one program costs."""
    sizes, contexts = CHUNKINGS["any block"].product
    beyond = sizes * contexts - len(list(CHUNKINGS["any block"].chunks()))
    steps = whole_steps(b, CHUNKINGS["padded"])
    rows = [LIMIT // BLOCK // batch for batch in BATCHES]
    pairs = f"Of the {sizes * contexts} pairs of size and context"
    console.print(f"{pairs}, {beyond} exceed {LIMIT:,} tokens: {sizes * contexts - beyond} remain.")
    console.print(f"Whole steps, padded to 512: {steps}. A chunk that ends no prompt skips the head.")
    console.print(
        f"Whole prompts in batches of {', '.join(map(str, BATCHES))}, not counted here: "
        f"{' + '.join(map(str, rows))} = {sum(rows)}."
    )
    for tokens in (CHUNK, LIMIT):
        whole, needed = (keys_read(b, CHUNKINGS[name], tokens) for name in ("static", "padded"))
        times = f"{whole / needed:.1f} × as many keys"
        console.print(f"The one program reads {times} for a prompt of {tokens:,} tokens.")
