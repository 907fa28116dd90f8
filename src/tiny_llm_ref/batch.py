"""Generation for many prompts at once, where learners of the public course look for it."""

from .serving import batch_generate

__all__ = ["batch_generate"]
