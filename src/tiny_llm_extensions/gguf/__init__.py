"""Models in GGUF files: their weights, shape and tokenizer."""

from pathlib import Path

from tiny_llm_engine.models.formats import ModelFiles


def open_gguf_model(path: Path) -> ModelFiles:
    """A model in a GGUF file, of which the header was read.

    Raises:
        CheckpointError: it is not a GGUF file, or a broken one.
    """
    from .gguf_model import GgufModel  # now: it imports the library of that format

    return GgufModel(path)
