"""A step as integers, for the ranks that did not plan it."""

from collections.abc import Mapping
from typing import Any

from ...solution_types import Bucket, PackedBatch, ServingPackage

# What a model computes from; how tokens are drawn concerns rank 0 alone.
FIELDS = ("token_ids", "positions", "slots", "query_start", "context_lens", "block_tables", "sample_rows")


def step_message(batch: PackedBatch, bucket: Bucket | None) -> dict[str, Any]:
    """A batch, and the bucket that every rank pads it to."""
    step = {name: getattr(batch, name) for name in FIELDS}
    return {"step": step, "bucket": None if bucket is None else vars(bucket)}


def step_of(names: ServingPackage, message: Mapping[str, Any]) -> tuple[PackedBatch, Bucket | None]:
    """The batch and the bucket of a message."""
    bucket = message["bucket"]
    return names.PackedBatch(**message["step"]), None if bucket is None else names.Bucket(**bucket)
