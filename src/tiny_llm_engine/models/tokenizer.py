"""The tokenizer of a model, by the model's name, folder or file."""

import os

from .hub import find_model
from .tokenization import Tokenizer


def load_tokenizer(model: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a model, see `find_model`.

    Raises:
        CheckpointError: there is no such model, or a file of its tokenizer is absent, damaged or contradicts another.
    """
    return find_model(model).tokenizer()
