"""Attention of packed steps by the device's own kernels, and its largest error against float64."""

from dataclasses import dataclass, replace

import numpy as np

from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_engine.solutions.port import Port

b = Port("ref", "torch")
from tiny_llm_extensions.gaudi.lone_prompts import rows_of_lone_prompt  # noqa: E402
from tiny_llm_extensions.kernels.torch.packed_kernels import kernels_of_device  # noqa: E402
from tiny_llm_ref.serving import PackedBatch, flat_blocks, pad_inputs  # noqa: E402

PAGE, BLOCKS, HEADS, KV_HEADS, D = 16, 40, 4, 2, 128
MIXES = {  # (tokens in pages, rows of the step) of each request
    "decodes": [(200, 1), (37, 1), (16, 1)],
    "prompts": [(0, 40), (0, 7)],
    "alone": [(0, 43)],
    "hybrid": [(200, 1), (150, 40), (37, 1), (0, 9), (0, 1)],
}
SCORES = (1, 10, 20, 41, 80)


@dataclass(frozen=True)
class Step:
    """Rows of some requests, the pages of their past, and the same numbers as texts; all are bf16 numbers."""

    batch: PackedBatch
    query: np.ndarray  # (T, H, D)
    fresh: np.ndarray  # (2, T, Hkv, D)
    pages: np.ndarray  # (2, BLOCKS + 1, PAGE, Hkv, D)
    texts: list[np.ndarray]  # (2, S, Hkv, D) of each request

    def expected(self, window: int | None = None) -> np.ndarray:
        """(T, H, D) in float64: each request over its own text."""
        requests = zip(self.batch.spans, self.texts, strict=True)
        parts = [alone(self.query[first:last], text, window) for (first, last), text in requests]
        return np.concatenate([out for out, _ in parts])

    def largest_score(self) -> float:
        spans = zip(self.batch.spans, self.texts, strict=True)
        return max(alone(self.query[first:last], text)[1] for (first, last), text in spans)


def alone(query: np.ndarray, text: np.ndarray, window: int | None = None) -> tuple[np.ndarray, float]:
    """Attention of the last rows of one text, (L, H, D), and the largest |score| that any of them sees."""
    L, S = len(query), text.shape[1]
    key, value = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in text)
    scores = np.einsum("lhd,shd->hls", query, key) * D**-0.5
    behind = np.arange(S - L, S)[:, None] - np.arange(S)
    hidden = (behind < 0) | (behind >= (window or S))
    weights = np.exp(
        np.where(hidden, -np.inf, scores) - scores.max(-1, keepdims=True, where=~hidden, initial=-1e9)
    )
    out = np.einsum("hls,shd->lhd", weights / weights.sum(-1, keepdims=True), value)
    return out, np.abs(np.where(hidden, 0, scores)).max()


def rounded(numbers: np.ndarray) -> np.ndarray:
    return b.numpy(b.array(numbers, "bfloat16")).astype(float)


def make_step(requests: list[tuple[int, int]], score: float, seed: int = 0) -> Step:
    """A step whose largest |score| is about `score`."""
    rng, batch = np.random.default_rng(seed), PackedBatch()
    texts = [rounded(rng.normal(size=(2, sum(request), KV_HEADS, D))) for request in requests]
    blocks, pages = rng.permutation(BLOCKS).tolist(), np.zeros((2, (BLOCKS + 1) * PAGE, KV_HEADS, D))
    for (context, size), text in zip(requests, texts, strict=True):
        table = [blocks.pop() for _ in range(-(-(context + size) // PAGE))]
        places = [table[p // PAGE] * PAGE + p % PAGE for p in range(context + size)]
        pages[:, places[:context]] = text[:, :context]
        batch.token_ids.extend([0] * size)
        batch.positions.extend(range(context, context + size))
        batch.slots.extend(places[context:])
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(context)
        batch.block_tables.append(table)
    fresh = [text[:, context:] for (context, _), text in zip(requests, texts, strict=True)]
    query = rounded(rng.normal(size=(len(batch.token_ids), HEADS, D)))
    arrays = np.concatenate(fresh, axis=1), pages.reshape(2, BLOCKS + 1, PAGE, KV_HEADS, D), texts
    query = rounded(query * score / Step(batch, query, *arrays).largest_score())
    return Step(batch, query, *arrays)


def attend(step: Step, window: int | None = None, bucket=None, dtype: str = "bfloat16") -> np.ndarray:
    """(T, H, D) by the device's kernels; rows of padding are dropped."""
    kernels = kernels_of_device(b.solution, "hpu")
    inputs = inputs_of(step.batch, PAGE, BLOCKS, window, flat_blocks)
    alone = rows_of_lone_prompt(inputs)
    if bucket is not None:
        inputs = pad_inputs(inputs, bucket, PAGE, BLOCKS, window is not None)
    inputs = replace(inputs, lone_prompt=alone).map(b.array)
    mask = kernels.mask(inputs, PAGE, window)
    T = len(inputs.token_ids)
    rows = [(part, np.zeros((T - len(part), *part.shape[1:]))) for part in (step.query, *step.fresh)]
    padded = [np.concatenate(both) for both in rows]
    arrays = (b.array(part, dtype) for part in (*padded, *step.pages))
    return b.numpy(kernels.attend(*arrays, mask))[: len(step.query)]


def error(step: Step, **options) -> float:
    return float(abs(attend(step, **options) - step.expected(options.get("window"))).max())
