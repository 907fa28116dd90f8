"""A head that is saved beside a tied table: a copy of it, or another matrix. Knows no arrays of an engine."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from .config import ModelConfig
from .quantization import EMBEDDING
from .quantized_head import HEAD
from .quantized_tensors import parts
from .safetensors_folder import TensorInfo

ROWS = 4096  # compared at a time
LINE = (
    "lm_head.weight differs from the table that config.json ties it to, and is used: write tie_word_embeddings false "
    "into config.json"
)


def with_saved_head(
    config: ModelConfig, headers: Mapping[str, TensorInfo], numbers: Callable[[str], np.ndarray]
) -> ModelConfig:
    """The configuration, not tied if the files have a head of its own, as after adapters were merged.

    transformers 5 uses such a head too.

    Args:
        headers: of all tensors.
        numbers: reads a tensor, as `ModelFiles.numbers`.
    """
    both = HEAD in headers and EMBEDDING in headers
    if not config.tie_word_embeddings or not both or _is_copy(headers, numbers):
        return config
    return replace(config, tie_word_embeddings=False)


def _is_copy(headers: Mapping[str, TensorInfo], numbers: Callable[[str], np.ndarray]) -> bool:
    count = 3 if headers[HEAD].dtype == "U32" else 1
    return all(
        _are_equal(*pair, headers, numbers)
        for pair in list(zip(parts(HEAD), parts(EMBEDDING), strict=True))[:count]
    )


def _are_equal(
    one: str, other: str, headers: Mapping[str, TensorInfo], numbers: Callable[[str], np.ndarray]
) -> bool:
    if one not in headers or other not in headers:
        return False
    if (headers[one].shape, headers[one].dtype) != (headers[other].shape, headers[other].dtype):
        return False
    first, second = (numbers(name).view(np.uint8) for name in (one, other))  # as bytes: NaN is NaN
    return all(
        np.array_equal(first[row : row + ROWS], second[row : row + ROWS])
        for row in range(0, len(first), ROWS)
    )
