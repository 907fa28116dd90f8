"""How large a step may be, and what it consists of. Given."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How large a step may be, and what it consists of.

    Args:
        max_num_batched_tokens: the budget, in tokens per step.
        max_num_seqs: how many requests run at the same time.
        enable_chunked_prefill: False computes whole prompts, in steps of their own, before anything decodes.
        mixed_steps: whether chunks and decodes are one call of the model. False computes the same plan in two calls,
            chunks and then decodes.
        long_prefill_token_threshold: maximum tokens of one chunk, so that several long prompts share a step; 0 is the
            budget.
    """

    max_num_batched_tokens: int = 512
    max_num_seqs: int = 16
    enable_chunked_prefill: bool = True
    mixed_steps: bool = True
    long_prefill_token_threshold: int = 0

    @property
    def longest_chunk(self) -> int:
        """Tokens of one chunk, at most."""
        return self.long_prefill_token_threshold or self.max_num_batched_tokens

    def check(self, max_model_len: int) -> None:
        """Raises a ValueError that names the fix when a number is out of range."""
        budget = f"max_num_batched_tokens is {self.max_num_batched_tokens}"
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs is {self.max_num_seqs}: give at least 1, or nothing runs")
        if self.long_prefill_token_threshold < 0:
            raise ValueError(
                f"long_prefill_token_threshold is {self.long_prefill_token_threshold}: give tokens of a chunk, or 0"
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"{budget} and max_num_seqs {self.max_num_seqs}: each running request needs a token of the budget, so"
                f" give at least {self.max_num_seqs} tokens"
            )
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise ValueError(
                f"{budget} and max_model_len {max_model_len}: without chunks the longest prompt is one step, so give"
                f" at least {max_model_len} tokens, or turn enable_chunked_prefill on"
            )
