"""Steps of few shapes, put on a runner: padding to buckets, captured forwards, and the warm-up of both."""

from collections.abc import Callable, Sequence
from typing import Any

from tiny_llm_engine.packed_model import PackedInputs
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import Array, Bucket, Buckets, PackedBatch

Progress = Callable[[int, int], object]


def put_buckets_on(runner: PackedRunner, buckets: Buckets, pad_inputs: Callable[..., Any]) -> None:
    """Pads every call of a runner to one of these buckets.

    Args:
        pad_inputs: the solution's function.
    """
    sizes, has_window = (runner.block_size, runner.num_blocks), runner.model.config.sliding_window is not None

    def pad(inputs: Any, bucket: Bucket | None) -> Any:
        return inputs if bucket is None else pad_inputs(inputs, bucket, *sizes, has_window)

    runner.buckets, runner.bucket_of, runner.pad = buckets, buckets.of, pad


def put_capture_on(
    runner: PackedRunner,
    capture: Callable[[Callable], Callable],
    is_captured: Callable[[Bucket | None], bool] = lambda bucket: True,
) -> None:
    """Captures the forwards of a runner, and replays them.

    Args:
        capture: turns a forward, which is a function of arrays alone, into one that is captured and replayed; see the
            solution's `capture_step`.
        is_captured: whether steps of a bucket are; the others run the model as it is.
    """
    plain = runner.plain_forward
    captured = capture(lambda *arrays: plain(PackedInputs.of(arrays)))

    def replayed(inputs: PackedInputs) -> Array | None:
        return captured(*inputs.flatten())

    runner.forward_of = lambda bucket: replayed if is_captured(bucket) else plain


def warm_up(
    runner: PackedRunner,
    on_progress: Progress = lambda done, total: None,
    others: Sequence[tuple[PackedBatch, Bucket]] = (),
) -> None:
    """Run every bucket that a load can need once, on a batch that writes only to the pad block.

    Each number of sampled rows also draws a token once: drawing has operations that the greedy choice has not.

    Args:
        on_progress: called as on_progress(done, total) after each bucket.
        others: batches that have a graph of their own in a bucket, with this bucket.

    Raises:
        ValueError: the runner has no buckets.
    """
    if runner.buckets is None:
        raise ValueError("this runner has no buckets: give `warm_up_on` batches")
    listed, drawn = runner.buckets.warm_up_list(), set()
    for done, bucket in enumerate(listed, start=1):
        temperatures = (0.0,) if bucket.rows in drawn else (0.0, 1.0)
        for temperature in temperatures:
            runner.compute(runner.buckets.padding_batch(runner.num_blocks, temperature), bucket)
        drawn.add(bucket.rows)
        on_progress(done, len(listed) + len(others))
    for done, (batch, bucket) in enumerate(others, start=len(listed) + 1):
        runner.compute(batch, bucket)
        on_progress(done, len(listed) + len(others))


def warm_up_on(
    runner: PackedRunner, batches: Sequence[PackedBatch], on_progress: Progress = lambda done, total: None
) -> None:
    """Run these batches once as they are, for an engine without buckets."""
    for done, batch in enumerate(batches, start=1):
        runner.compute(batch, runner.bucket_of(batch))
        on_progress(done, len(batches))
