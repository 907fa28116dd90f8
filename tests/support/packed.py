"""Packed batches for the tests of Day 3.3: a model served step by step, with the logits of every sampled row."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Buckets, PackedBatch, ServingPackage
from tiny_llm_extensions.runners import packed_runner

from .fake_model import ByteTokenizer
from .lockstep import LockstepRunner


class PackedServing:
    """A packed model and its blocks; batches are made by a test or by a scheduler.

    Args:
        b: the port.
        s: the names of `serving`.
        model: `Qwen3ModelWeek3`.
        num_blocks, block_size: the size of its pools.
        caching: whether requests share cached prefixes.
        buckets: what every call is padded to.
        runner_options: passed on to the runner.
    """

    def __init__(
        self,
        b: Port,
        s: ServingPackage,
        model: Any,
        num_blocks: int = 40,
        block_size: int = 4,
        caching: bool = False,
        buckets: Buckets | None = None,
        **runner_options: Any,
    ):
        self.b, self.s = b, s
        self.allocator = s.BlockAllocator(num_blocks, block_size, watermark=0, enable_prefix_caching=caching)
        self.runner: PackedRunner | LockstepRunner = packed_runner(
            b, model, num_blocks, block_size, on_logits=self._keep, buckets=buckets, **runner_options
        )
        self.rows: list[np.ndarray] = []  # of the last call
        self.logits: dict[int, dict[int, np.ndarray]] = defaultdict(dict)  # request -> position -> (V,)

    def _keep(self, rows: Sequence[int], logits: np.ndarray) -> None:
        self.rows = list(logits)

    def sequence(self, tokens: Sequence[int], number: int = 0, **sampling: Any) -> AnswerSequence:
        """A request whose blocks are reserved."""
        made = self.new_sequence(tokens, number, **sampling)
        made.block_table = self.s.BlockTable(self.allocator)
        made.block_table.reserve(len(tokens))
        return made

    def new_sequence(self, tokens: Sequence[int], number: int = 0, **sampling: Any) -> AnswerSequence:
        """A request for a scheduler."""
        params = self.s.SamplingParams(ignore_eos=True, **sampling)
        return self.s.Sequence(
            list(tokens), ByteTokenizer(), request_id=number, sampling=params, max_seq_len=10**6
        )

    def run(self, entries: Iterable[tuple[AnswerSequence, int, int]]) -> list[np.ndarray]:
        """Compute (sequence, start, size) in one call; return the logits of the rows that need a token."""
        plan = [Scheduled(*entry) for entry in entries]
        self.rows = []
        self.runner.run(self.s.pack(plan))
        needing = [entry for entry in plan if entry.needs_token]
        for entry, row in zip(needing, self.rows, strict=True):
            self.logits[entry.sequence.request_id][entry.stop - 1] = row
        return self.rows


def batch_with(s: ServingPackage, requests: Iterable[tuple[int, int]], page_size: int) -> PackedBatch:
    """A batch of requests of (context, rows), each with separate pages; the last row of each is sampled."""
    batch, page = s.PackedBatch(), 0
    for context, rows in requests:
        pages = -(-(context + rows) // page_size)
        table = list(range(page, page + pages))
        places = range(context, context + rows)
        batch.token_ids.extend([1] * rows)
        batch.positions.extend(places)
        batch.slots.extend(table[place // page_size] * page_size + place % page_size for place in places)
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(context)
        batch.block_tables.append(table)
        batch.sample_rows.append(len(batch.token_ids) - 1)
        batch.sampling.append(s.SamplingParams())
        page += pages
    return batch


def poison_padding(runner: PackedRunner) -> None:
    """Fill the pad page of every pool with NaN."""
    for pool in runner.pools:
        pool.keys[-pool.page_size :] = np.nan
        pool.values[-pool.page_size :] = np.nan
