"""Which options of a `SlackScheduler` make sense. Given."""

from typing import Any


def check_slack_options(made: Any) -> None:
    """Raises a ValueError that names the fix when an option is out of range, or no prompt fits into the target."""
    if not made.enable_chunked_prefill:
        raise ValueError("the slack scheduler cuts prompts into chunks: leave enable_chunked_prefill on")
    if made.latency_target <= 0:
        raise ValueError(
            f"latency_target is {made.latency_target}: give seconds above 0, or None for no target"
        )
    if not 1 <= made.tile <= made.max_num_batched_tokens:
        raise ValueError(
            f"tile is {made.tile}: give 1 to {made.max_num_batched_tokens} tokens, the budget of a step"
        )
    if made.long_prefill_threshold < 1 or made.max_partial_prefills < 1 or made.max_preemptions < 0:
        raise ValueError(
            "long_prefill_threshold and max_partial_prefills are at least 1, and max_preemptions at least 0"
        )
    decodes = made.max_num_seqs
    if (seconds := made.profile.seconds(decodes + made.tile, decodes)) > made.latency_target:
        raise ValueError(
            f"latency_target is {made.latency_target}, but {decodes} decodes and {made.tile} tokens of a prompt take"
            f" {seconds:.4f} seconds: give a higher target, a smaller tile or a smaller max_num_seqs"
        )
