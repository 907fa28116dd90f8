"""Steps that are one prompt without a past: the kernel knows their causality, so no bias is made. Not run on a Gaudi.

A whole prompt is such a step, and so is the first chunk of a longer one. A chunk with a past keeps its bias: upstream
merged `is_causal` for it (vllm-gaudi, pull request 1413) and took it back three weeks later (1481, 1482).
"""

from dataclasses import replace

from tiny_llm_engine.packed_model import PackedInputs
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.solution_types import Bucket, Buckets


def rows_of_lone_prompt(inputs: PackedInputs) -> list[int] | None:
    """The number of rows if a step is one prompt without a past, in a list; None for other steps.

    Args:
        inputs: lists, before they are padded.
    """
    reads = inputs.chunks, inputs.decodes, inputs.window_decodes
    rows, segments = len(inputs.token_ids), inputs.segments
    return [rows] if rows > 1 and segments[0] == segments[-1] and reads == (None, None, None) else None


def put_lone_prompts_on(runner: PackedRunner) -> None:
    """Tells the model of a runner which steps are one prompt without a past."""
    pad = runner.pad

    def pad_and_tell(inputs: PackedInputs, bucket: Bucket | None) -> PackedInputs:
        return replace(pad(inputs, bucket), lone_prompt=rows_of_lone_prompt(inputs))

    runner.pad = pad_and_tell


def buckets_of_lone_prompts(buckets: Buckets | None) -> list[Bucket]:
    """The buckets that have a second graph, for a prompt alone: those of steps with chunks where nothing is read."""
    listed = [] if buckets is None else buckets.warm_up_list()
    return [bucket for bucket in listed if (bucket.chunk_pages, bucket.decode_pages) == (0, 0)]
