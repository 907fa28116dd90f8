"""Batches of the pad block, which warm up, profile and time steps: no request's keys change."""

from collections.abc import Iterable

from tiny_llm_engine.solutions.solution_types import PackedBatch, ServingPackage


def pad_batch(
    names: ServingPackage,
    pad_block: int,
    block_size: int,
    requests: Iterable[tuple[int, int]],
    sampled: int = 1,
) -> PackedBatch:
    """A batch whose keys and values are all read from the pad block, and written to it.

    Args:
        names: the module `serving` of a solution.
        requests: the rows of each, and the tokens before them.
        sampled: rows of each request whose next token is wanted, the last ones.
    """
    batch = names.PackedBatch()
    for rows, past in requests:
        batch.positions.extend(range(past, past + rows))
        batch.query_start.append(stop := len(batch.positions))
        batch.context_lens.append(past)
        batch.block_tables.append([pad_block] * -(-(past + rows) // block_size))
        batch.sample_rows.extend(range(stop - sampled, stop))
    batch.token_ids.extend([0] * len(batch.positions))
    batch.slots.extend([pad_block * block_size] * len(batch.positions))
    batch.sampling.extend([names.SamplingParams()] * len(batch.sample_rows))
    return batch
