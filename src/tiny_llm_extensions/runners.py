"""The runner of an engine: with steps in flight, ranks, buckets and captured steps, as far as they are asked for."""

from collections.abc import Callable
from typing import Any

from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Bucket, Buckets

from .asynchronous.async_runner import AsyncRunner
from .gaudi.lone_prompts import put_lone_prompts_on
from .graphs.padded_steps import put_buckets_on, put_capture_on
from .parallel.other_ranks import OtherRanks, put_ranks_on
from .parallel.pipelined_runner import PipelinedRunner


def packed_runner(
    port: Port,
    model: Any,
    num_blocks: int,
    block_size: int = 128,
    *,
    async_scheduling: bool = False,
    buckets: Buckets | None = None,
    capture: Callable[[Callable], Callable] | None = None,
    is_captured: Callable[[Bucket | None], bool] = lambda bucket: True,
    ranks: OtherRanks | None = None,
    **options: Any,
) -> PackedRunner:
    """A runner for `Qwen3ModelWeek3` of a port, see `Port.packed_runner`.

    Args:
        block_size: tokens per block.
        async_scheduling: whether the next step is planned while this one computes.
        buckets: every call is padded to one of them; None pads nothing.
        capture, is_captured: see `put_capture_on`; None captures nothing.
        ranks: the others that compute every batch too, if any.
        options: of the runner.
    """
    kind = PackedRunner
    if ranks is not None and ranks.has_stages:
        kind, options["ranks"] = PipelinedRunner, ranks
    elif async_scheduling:
        kind, options["fill_placeholders"] = AsyncRunner, port.fill_placeholders
    runner = port.packed_runner(model, num_blocks, block_size, kind=kind, **options)
    if buckets is not None:
        put_buckets_on(runner, buckets, port.serving.pad_inputs)
    if port.device == "hpu":
        put_lone_prompts_on(runner)
    if capture is not None:
        put_capture_on(runner, capture, is_captured)
    if ranks is not None and ranks.size > 1 and kind is not PipelinedRunner:
        put_ranks_on(runner, ranks)
    return runner
