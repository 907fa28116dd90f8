"""The screen of Day 3.2: a pool and its flat list, the bytes that a decode step gathers, and poison."""

from collections.abc import Callable, Sequence

import numpy as np
from rich.console import Console

from tiny_llm_engine.solutions.port import Port

from ..grading.pages import Pages, decode64, random_pages

DRAWN, DRAWN_PAGE, DRAWN_BLOCKS, COUNT = (5, 9, 4), 4, 10, 8
NAMES, FREE, PAD = "ABC", "·", "-"
PAGE, H, HKV, D = 16, 4, 2, 32
BATCHES = {
    "16 × 136": [136] * 16,
    "1 × 1,024 and 15 × 40": [1024, *[40] * 15],
    "1 × 4,096 and 15 × 40": [4096, *[40] * 15],
}
MIB = 2**20
SHOWN_ON = "torch"
MEASURED = (r"(mlx|torch) on \w+", r" *\d+\.\d MiB at the peak")


def show(b: Port, console: Console) -> None:
    """Draw a pool and its flat list, count and measure what is gathered, then poison all unused slots."""
    serving = b.serving
    pages = random_pages(np.random.default_rng(1), DRAWN, DRAWN_PAGE, num_blocks=DRAWN_BLOCKS)
    blocks = _flat(serving, pages, COUNT)
    console.print(f"A pool of {DRAWN_BLOCKS} pages of {DRAWN_PAGE} slots. A holds 5 tokens, B 9, C 4.\n")
    _pool(console, pages)
    compiler = f"A compiler sees the number {COUNT}, nothing else."
    console.print(f"\nThe flat list, padded to {COUNT} pages. {compiler}\n")
    _lists(console, blocks)
    console.print("\nOne decode step of 16 requests in pages of 16: what it gathers of one layer,")
    held = f"what it held (measured, {b.name} on {b.device})"
    console.print(f"{HKV} heads of {D} float32 numbers, and {held}.\n")
    for title, lengths in BATCHES.items():
        _gathered(b, serving, console, title, lengths)
    _poison(b, serving, console, pages)


def _flat(serving, pages: Pages, count: int | None = None):
    padding = {"pad_block": pages.pad_block, "count": count}
    return serving.flat_blocks(pages.tables, pages.lengths, pages.page_size, **padding)


def _pool(console: Console, pages: Pages) -> None:
    """Draw the pool, a letter for each slot with a token."""
    cells = [[FREE] * pages.page_size for _ in range(pages.pad_block)] + [[PAD] * pages.page_size]
    for name, table, length in zip(NAMES, pages.tables, pages.lengths, strict=True):
        for position in range(length):
            cells[table[position // pages.page_size]][position % pages.page_size] = name
    console.print("page  " + "".join(f"{page:^6}" for page in range(len(cells))).rstrip(), style="bold")
    console.print("      " + "".join(f" {''.join(cell)} " for cell in cells).rstrip())


def _lists(console: Console, blocks) -> None:
    for name, column in zip(blocks._fields, blocks, strict=True):
        shown = [(NAMES + PAD)[group] for group in column] if name == "block_groups" else column
        console.print(f"{name:>16}" + "".join(f"{cell!s:>4}" for cell in shown))


def _gathered(b: Port, serving, console: Console, title: str, lengths: list[int]) -> None:
    """Compare the flat list with a batch padded to its longest row, for one mix of lengths."""
    num_blocks = sum(-(-length // PAGE) for length in lengths)
    pages = random_pages(np.random.default_rng(0), lengths, PAGE, HKV, D, num_blocks)
    arrays = [b.array(x) for x in (np.ones((len(lengths), H, D)), pages.keys, pages.values)]
    console.print(f"{title} tokens", style="bold")
    for name, columns in (("flat", _flat(serving, pages)), ("padded", _padded(pages))):
        decode = _decode(b, columns, PAGE)
        peak = b.peak_bytes(lambda decode=decode: decode(*arrays)[0])
        bytes_gathered = 2 * len(columns[0]) * PAGE * HKV * D * 4
        console.print(
            f"{name:>8}{len(columns[0]):>7,} pages{bytes_gathered / MIB:>8.2f} MiB gathered"
            f"{peak / MIB:>9.1f} MiB at the peak"
        )


def _decode(b: Port, columns: Sequence[Sequence[int]], page_size: int) -> Callable:
    """A decode step over lists of pages, their requests and slots in use: of a query, keys and values."""
    block_list, groups, usage, starts = (b.array(list(column)) for column in columns[:4])
    mask = b.block_mask(usage, page_size, starts)
    return lambda query, keys, values: b.paged_decode_statistics(
        query, keys, values, block_list, groups, mask
    )


def _padded(pages: Pages) -> list[list[int]]:
    """The lists of a batch padded to its longest request."""
    longest = max(map(len, pages.tables))
    rows = [
        (page, group, max(min(length - index * pages.page_size, pages.page_size), 0), 0)
        for group, (table, length) in enumerate(zip(pages.tables, pages.lengths, strict=True))
        for index, page in enumerate([*table, *[pages.pad_block] * (longest - len(table))])
    ]
    return [list(column) for column in zip(*rows, strict=True)]


def _poison(b: Port, serving, console: Console, pages: Pages) -> None:
    """Put NaN where no request has a token, and list the outputs that this changes."""
    query = np.random.default_rng(2).normal(size=(len(DRAWN), H, 8))
    poisoned = pages.poisoned(np.nan)
    decode = _decode(b, _flat(serving, pages, COUNT), DRAWN_PAGE)
    statistics = decode(*map(b.array, (query, poisoned.keys, poisoned.values)))
    out = b.numpy(b.finish_attention(statistics, b.dtype("float32")))
    o, _, l = decode64(query, pages)
    ruined = "".join(name for name, row in zip(NAMES, out, strict=True) if np.isnan(row).any())
    pairs = zip(out, o / l[..., None], strict=True)
    close = [np.allclose(row, right, atol=1e-4) for row, right in pairs]
    wrong = "".join(name for name, is_right in zip(NAMES, close, strict=True) if not is_right)
    console.print("\nNaN in the pad page and in every free slot of the pool above:")
    differ = f"outputs that differ from dense attention: {wrong or 'none'}"
    console.print(f"  outputs with NaN: {ruined or 'none'}      {differ}")
