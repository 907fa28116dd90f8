"""Pages in NumPy, the oracle of Day 3.2: a random pool, and the keys and values of each request."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .flash import Statistics, statistics64


@dataclass(frozen=True)
class Pages:
    """The pages of one layer and the tables of some requests."""

    keys: np.ndarray  # (num_blocks + 1, page_size, Hkv, D); the last page is padding
    values: np.ndarray
    tables: Sequence[Sequence[int]]  # for each request its pages in the order of its text
    lengths: Sequence[int]  # for each request its tokens

    @property
    def page_size(self) -> int:
        return self.keys.shape[1]

    @property
    def pad_block(self) -> int:
        return len(self.keys) - 1

    def text(self, request: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values of a request in the order of its text, (Hkv, S, D) each."""
        table, S = list(self.tables[request]), self.lengths[request]
        text = np.stack([self.keys[table], self.values[table]]).reshape(2, -1, *self.keys.shape[2:])
        keys, values = text[:, :S].swapaxes(1, 2)
        return keys, values

    def slots_in_use(self) -> np.ndarray:
        """(num_blocks + 1, page_size): whether any request has a token there."""
        used = np.zeros(self.keys.shape[:2], bool)
        for table, length in zip(self.tables, self.lengths, strict=True):
            for index, page in enumerate(table):
                used[page, : max(length - index * self.page_size, 0)] = True
        return used

    def poisoned(self, poison: float) -> "Pages":
        """The same pages with `poison` in every slot that no request has a token in."""
        unused = ~self.slots_in_use()[:, :, None, None]
        keys, values = (np.where(unused, poison, pages) for pages in (self.keys, self.values))
        return replace(self, keys=keys, values=values)


def random_pages(rng, lengths, page_size: int = 4, Hkv: int = 2, D: int = 8, num_blocks: int = 40) -> Pages:
    """Requests of `lengths` tokens in pages drawn at random, no page twice."""
    free = rng.permutation(num_blocks).tolist()
    tables = [[free.pop() for _ in range(-(-length // page_size))] for length in lengths]
    keys, values = rng.normal(size=(2, num_blocks + 1, page_size, Hkv, D))
    return Pages(keys, values, tables, list(lengths))


def decode64(query: np.ndarray, pages: Pages, scale=None, window: int | None = None) -> Statistics:
    """Attention of one token (H, D) per request over its text.

    Returns (o, m, l) of shapes (B, H, D), (B, H) and (B, H).
    """
    last = [length - 1 for length in pages.lengths]
    rows = (prompt64(query[None, b], pages, b, [last[b]], scale, window) for b in range(len(query)))
    o, m, l = (np.concatenate(part) for part in zip(*rows, strict=True))
    return o, m, l


def prompt64(query: np.ndarray, pages: Pages, request: int, positions, scale=None, window=None) -> Statistics:
    """Causal attention of one request's tokens (T, H, D) at `positions` over its text, in the window."""
    key, value = pages.text(request)
    T, H, D = query.shape
    if key.shape[1] == 0:
        return np.zeros((T, H, D)), np.full((T, H), -np.inf), np.zeros((T, H))
    places, keys = np.asarray(positions)[:, None], np.arange(key.shape[1])
    seen = (keys <= places) & (keys > places - (np.inf if window is None else window))
    o, m, l = statistics64(query.swapaxes(0, 1), key, value, scale, np.where(seen, 0, -np.inf))
    return o.swapaxes(0, 1), m.T, l.T
