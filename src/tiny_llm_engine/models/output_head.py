"""The output head: quantised while everything else stays as it is, or saved beside a tied table. Knows no arrays."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ..solutions.solution_types import Array
from .checkpoint import Checkpoint
from .config import ModelConfig
from .quantization import EMBEDDING, WeightQuantizer
from .quantized_tensors import parts
from .safetensors_folder import TensorInfo

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class QuantizedHead:
    """The weights of another checkpoint, with a head in 4 or 8 bits.

    The head of a tied model is a quantised copy of the embedding table, which itself stays plain: only its rows are
    read, and their error would pass through all layers. So memory grows by the copy, and a step reads less.

    Args:
        checkpoint: whose head is plain, or tied to the table.
        quantizer: quantises the head.
    """

    checkpoint: Checkpoint
    quantizer: WeightQuantizer

    @property
    def config(self) -> ModelConfig:
        """The configuration, with an untied head."""
        return replace(self.checkpoint.config, tie_word_embeddings=False)

    def weight(self, name: str, *shape: int) -> Array:
        """See `Checkpoint.weight`.

        Raises:
            ValueError: the head is quantised already, or its rows cannot be cut into groups.
        """
        if name != HEAD:
            return self.checkpoint.weight(name, *shape)
        plain = self.checkpoint.weight(
            EMBEDDING if self.checkpoint.config.tie_word_embeddings else HEAD, *shape
        )
        bits, group_size, port = self.quantizer.bits, self.quantizer.group_size, self.quantizer.port
        if hasattr(plain, "group_size"):
            raise ValueError(f"the head has {plain.bits} bits already: leave head_quantization out")
        if shape[1] % group_size:
            raise ValueError(
                f"a head in {bits} bits needs rows of a multiple of {group_size} numbers, and has {shape[1]}: "
                "leave head_quantization out"
            )
        return self.quantizer.quantize(HEAD, port.backend_module.place(plain, None, "cpu"), self.config)


ROWS = 4096  # compared at a time
HEAD_LINE = (
    "lm_head.weight differs from the table that config.json ties it to, and is used: write tie_word_embeddings false "
    "into config.json"
)


def with_saved_head(
    config: ModelConfig, headers: Mapping[str, TensorInfo], numbers: Callable[[str], np.ndarray]
) -> ModelConfig:
    """The configuration, not tied if the files have a head of its own, as after adapters were merged.

    transformers 5 uses such a head too.

    Args:
        headers: the header of each tensor, by its name.
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
