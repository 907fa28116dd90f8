"""The screen of Day 4.5: what rounding keys and values costs, and where the blocks of conversations wait.

The learner's code rounds, puts blocks away and brings them back; the shipped model computes.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.cold_blocks.block_folder import BlockFolder
from tiny_llm_extensions.cold_blocks.cold_store import ColdStore
from tiny_llm_extensions.cold_blocks.moves import BlockCosts
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.make_loop import make_loop

from ..trace.tables import figures_table
from .shared import MODEL, run_all, shipped

SIZE, BLOCKS = 16, 7  # tokens of a block, and blocks of the pool
MEMORY, FOLDER = 4, 12  # blocks of the other levels
COLOURS = {"A": "cyan", "B": "green", "C": "magenta"}
NOTES = {
    "A": "Say in one short sentence what a KV cache holds, and on which day of the course it is built. " * 2,
    "B": "You explain attention to people who know Python and no machine learning, in one short sentence. "
    * 2,
    "C": "Answer as a librarian would: name the chapter of the course, then say what stands in it, shortly. "
    * 2,
}
TURNS = (
    ("A", "What is a KV cache?"),
    ("B", "What is attention?"),
    ("A", "What is a block table?"),
    ("C", "What is RoPE?"),
    ("B", "What is a softmax?"),
)
KINDS = {"as computed": "auto", "int8": "int8", "e4m3": "fp8_e4m3"}
CHAT = (
    "What is a KV cache?",
    "A KV cache keeps the keys and values of past tokens, so each new token is computed once instead of the whole "
    "text again.",
    "Why do we need a KV cache?",
    "Without a KV cache every step would process the whole text again. With it, a step processes one token and reads "
    "the past.",
)
BITS = {8: 127, 4: 7}


class Conversations:
    """Conversations that take turns on one engine with levels of blocks."""

    def __init__(self, b: Port, folder: Path):
        self.b, self.tokenizer, s = b, load_tokenizer(MODEL), b.serving
        self.runner = b.packed_runner(b.Qwen3ModelWeek3(shipped(b)), BLOCKS, SIZE)
        pages = given_of(b).host_pages(self.runner.pools, MEMORY)
        files = BlockFolder(folder, MODEL, pages.row_bytes)
        self.store = ColdStore(pages, files, None, BlockCosts(None, {}), SIZE, FOLDER)
        parts = self.store.parts(s)
        self.cold: Any = parts.blocks
        self.allocator = s.BlockAllocator(BLOCKS, SIZE, watermark=0)
        self.allocator.prefix_cache = s.KeepingCache(self.cold)
        self.runner.before.append(lambda batch: self.store.make(batch.moves))
        self.loop = make_loop(s, "hybrid", self.runner, self.allocator, cold=parts)
        self.messages = {name: [{"role": "system", "content": note}] for name, note in NOTES.items()}
        self.owner: dict[bytes, str] = {}

    def ask(self, name: str, question: str) -> tuple[int, int]:
        """A turn of a conversation: tokens of its prompt, and how many of them need not be computed."""
        messages = self.messages[name]
        messages.append({"role": "user", "content": question})
        ids = self.tokenizer.encode(self.tokenizer.apply_chat_template(messages))
        sampling = self.b.serving.SamplingParams(max_tokens=12)
        request = self.b.serving.Sequence(ids, self.tokenizer, sampling=sampling, max_seq_len=BLOCKS * SIZE)
        run_all(self.loop, [request])
        messages.append({"role": "assistant", "content": request.text})
        table = self.b.serving.BlockTable(self.allocator)  # an empty one, to name the blocks
        self.owner |= dict.fromkeys(table.digests_after([*request.known_tokens, 0]), name)
        return len(ids), request.num_cached

    def map(self) -> Text:
        """All levels as text, a cell per block."""
        cache = self.allocator.prefix_cache
        rows = [[self._cell(cache.digest_of.get(block)) for block in range(BLOCKS)]]
        for level in self.cold.levels:
            texts = {slot: digest for digest, slot in level.slots.items()}
            rows.append([self._cell(texts.get(slot)) for slot in range(level.capacity)])
        return Text("   ").join(Text().join(row) for row in rows)

    def _cell(self, digest: bytes | None) -> Text:
        name = self.owner.get(digest or b"")
        return Text(f"{name} ", COLOURS[name]) if name else Text("· ", "dim")


def show(b: Port, console: Console) -> None:
    """Tables of what rounding costs, then a map of the levels after each turn of some conversations."""
    show_bytes(b, console)
    show_rounding(b, console)
    console.print(f"Three conversations: where their full blocks of {SIZE} tokens are after each turn\n")
    with tempfile.TemporaryDirectory() as folder:
        conversations = Conversations(b, Path(folder))
        widths = (2 * BLOCKS + 3, 2 * MEMORY + 3)
        console.print(
            f"{'turn':6}{'pool':{widths[0]}}{'memory':{widths[1]}}{'folder':{2 * FOLDER}} cached",
            style="bold",
        )
        for name, question in TURNS:
            size, cached = conversations.ask(name, question)
            console.print(
                Text.assemble(f"{name:6}", conversations.map(), f" {cached:3} of {size}"), soft_wrap=True
            )
        conversations.store.close()


def show_bytes(b: Port, console: Console) -> None:
    """Bytes per token against what the model thinks of a text."""
    ids = chat_ids()
    model = b.Qwen3ModelWeek2(shipped(b, "float32"))
    table = figures_table("keys and values", "bytes per token", "perplexity", "same best token")
    runs = {name: logits_of(b, model, ids, kind) for name, kind in KINDS.items()}
    best = runs["as computed"][0].argmax(axis=-1)
    for name, (logits, size) in runs.items():
        same = np.mean(logits.argmax(axis=-1) == best)
        table.add_row(name, f"{size:,}", f"{perplexity(logits, ids):.1f}", f"{same:.1%}")
    console.print(f"{MODEL}, float32, a text of {len(ids)} tokens\n")
    console.print(table)


def chat_ids() -> list[int]:
    """A chat of which the model knows the answers."""
    tokenizer, roles = load_tokenizer(MODEL), ("user", "assistant") * 2
    messages = [{"role": role, "content": text} for role, text in zip(roles, CHAT, strict=True)]
    return tokenizer.encode(tokenizer.apply_chat_template(messages))


def logits_of(b: Port, model: Any, ids: Sequence[int], kind: str) -> tuple[np.ndarray, int]:
    """(S, V) of a text whose keys and values are kept in some way, and the bytes that a token of it needs."""
    pools, caches = pools_of(b, model, ids, kind)
    logits = b.numpy(model(b.array([[*ids]]), 0, caches))[0].astype(np.float64)
    slots = (pools[0].num_blocks + 1) * SIZE
    return logits, sum(array.nbytes for pool in pools for array in pool.arrays) // slots


def pools_of(b: Port, model: Any, ids: Sequence[int], kind: str) -> tuple[list[Any], list[Any]]:
    """Pools for one text, and its caches."""
    allocator = b.serving.BlockAllocator(-(-len(ids) // SIZE), SIZE)
    pools = b.create_kv_pools(model, allocator.num_blocks, SIZE, kind)
    return pools, b.TinyKvPagedCache.of_layers(pools, b.serving.BlockTable(allocator), 0)


def perplexity(logits: np.ndarray, ids: Sequence[int]) -> float:
    """Of each token of a text after those before it."""
    largest = logits.max(axis=-1, keepdims=True)
    logs = logits - largest - np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True))
    return float(np.exp(-np.mean(logs[np.arange(len(ids) - 1), ids[1:]])))


def show_rounding(b: Port, console: Console) -> None:
    """The relative error of keys and of values, by the direction of the scales and by bits; mean of the layers."""
    ids = chat_ids()
    model = b.Qwen3ModelWeek2(shipped(b, "float32"))
    pools, caches = pools_of(b, model, ids, "auto")
    b.numpy(model(b.array([[*ids]]), 0, caches, logits_to_keep=1))
    columns = [(bits, name, axis) for bits in BITS for name, axis in (("token", -1), ("channel", 0))]
    table = figures_table("", "largest channel", *(f"{bits} bits, {name}" for bits, name, _ in columns))
    for part in ("keys", "values"):
        layers = [getattr(pool, part)[: len(ids)] for pool in pools]
        errors = (
            np.mean([b.rounding_error(x, axis, BITS[bits]) for x in layers]) for bits, _, axis in columns
        )
        table.add_row(part, f"{largest_channel(b, layers):.1f} ×", *(f"{error:.2%}" for error in errors))
    console.print("\nRelative error of rounding, with a scale per token or per channel\n")
    console.print(table)
    error = np.mean([attention_error(b, pool.keys[: len(ids)], pool.values[: len(ids)]) for pool in pools])
    console.print(f"Attention over codes and scales, 8 bits: {error:.2%} from that over the numbers\n")


def attention_error(b: Port, keys: Any, values: Any) -> float:
    """The relative error of the output for random queries, one per K/V head."""
    query = b.array(np.random.default_rng(0).normal(size=keys.shape[1:]), "float32")
    slots, heads = b.array(list(range(len(keys)))), [part.swapaxes(0, 1) for part in (keys, values)]
    found = b.numpy(b.attend_quantized(query, b.quantize_rows(keys), b.quantize_rows(values), slots))
    exact = b.numpy(b.scaled_dot_product_attention_grouped(query[:, None], heads[0], heads[1]))[:, 0]
    return float(np.linalg.norm(found - exact) / np.linalg.norm(exact))


def largest_channel(b: Port, layers: Sequence[Any]) -> float:
    """How many times the median channel's mean size the largest one has; the mean of all layers and heads."""
    sizes = np.stack([np.abs(b.numpy(x)).mean(axis=0) for x in layers])  # (layers, Hkv, D)
    return float(np.mean(sizes.max(axis=-1) / np.median(sizes, axis=-1)))
