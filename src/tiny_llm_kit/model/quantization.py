"""Weights in few bits at load: which matrices, in which groups, and what a solution makes of them. Knows no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the options of every command read the names below, and `--help` needs no NumPy
    from .config import ModelConfig, Quantization

QUANTIZATIONS = {"4bit": 4, "8bit": 8}
# Of the shipped model in 4 bits, groups of 32 answer 99 % of the training questions, and groups of 64 91 %.
GROUP_SIZES = {4: 32, 8: 64}
EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class WeightQuantizer:
    """How a solution holds quantised weights.

    Args:
        port: the solution on a backend; its Days 2.2 and 2.3 do the work.
        bits: to how many bits plain matrices are quantised at load; None keeps them as they are.
    """

    port: Any
    bits: int | None = None

    def applies_to(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a plain weight is quantised at load: the matrices of the layers, where a row is a number of groups.

        Norms are few numbers. The embedding, which may be the head as well, and the head stay too: with the table in
        4 bits the shipped model answers 62 % of the training questions, and 99 % without.
        """
        in_a_layer = name.startswith("model.layers.") and len(shape) == 2
        return self.bits is not None and in_a_layer and shape[1] % GROUP_SIZES[self.bits] == 0

    def quantize(self, name: str, array: Any, config: ModelConfig) -> Any:
        """A plain matrix, quantised and then brought into the device's form."""
        group_size = GROUP_SIZES[self.bits]
        return self._prepared(name, self.port.quantize_matrix(array, group_size, self.bits), config)

    def keep(self, name: str, parts: Sequence[Any], config: ModelConfig) -> Any:
        """Words, scales and biases of a checkpoint, brought into the device's form."""
        stored: Quantization = config.quantization
        return self._prepared(
            name, self.port.QuantizedWeights(*parts, stored.group_size, stored.bits), config
        )

    def _prepared(self, name: str, weights: Any, config: ModelConfig) -> Any:
        """Rows are picked from the words; the table of a tied model is multiplied by as well."""
        form = "kernel"
        if name == EMBEDDING:
            form = "both" if config.tie_word_embeddings else "words"
        return self.port.kit.prepare(self.port.prepare_weights, weights, form, self.port.device)
