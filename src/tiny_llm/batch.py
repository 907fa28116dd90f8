"""Generation for many prompts at once, where learners of the public course look for it."""

from .serving import batch_generate, batch_generate_with_chunked_prefill

__all__ = ["batch_generate", "batch_generate_with_chunked_prefill"]
