"""A checkpoint whose output head is quantised, while everything else stays as it is. Knows no arrays."""

from dataclasses import dataclass, replace

from ..solution_types import Array
from .checkpoint import Checkpoint
from .config import ModelConfig
from .quantization import EMBEDDING, WeightQuantizer

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class QuantizedHead:
    """The weights of another checkpoint, with a head in 4 or 8 bits.

    The head of a tied model is a quantised copy of the embedding table, which itself stays plain: only its rows are
    read, and their error would pass through all layers. So memory grows by the copy, and a step reads less.

    Args:
        checkpoint: of a plain or a tied head.
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
