"""Quantisation at load: which matrices, in which groups, and in which form a solution holds them. Knows no arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..solutions.solution_types import Array
from .expert_names import is_router

if TYPE_CHECKING:  # the options of every command read the names below, and `--help` needs no NumPy
    from .config import ModelConfig

QUANTIZATIONS = {"4bit": 4, "8bit": 8}
# Of the shipped model in 4 bits, groups of 32 answer 99 % of the training questions, and groups of 64 91 %.
GROUP_SIZES = {4: 32, 8: 64}
EMBEDDING = "model.embed_tokens.weight"


def in_a_layer(name: str, shape: Sequence[int]) -> bool:
    """Whether a weight is a matrix of a layer, without the routers of mixtures: they are small, and decide a lot."""
    return name.startswith("model.layers.") and len(shape) == 2 and not is_router(name)


class RoundedProducts(Protocol):
    """Packs quantised matrices for a kernel that rounds activations."""

    def rounds(self, bits: int) -> str:
        """What activations are rounded to for matrices of this many bits, in a word; "" if these are not packed."""
        ...

    def prepare(self, weights: Any) -> Any:
        """The packed matrix."""
        ...


@dataclass(frozen=True)
class WeightQuantizer:
    """Makes a solution's quantised weights from plain or from stored ones.

    Args:
        port: the solution on a backend; the code of its Days 2.2 and 2.3 does the work.
        bits: bits to which plain matrices are quantised at load; None keeps them as they are.
        rounded: a kernel that some matrices are packed for; None packs none.
    """

    port: Any
    bits: int | None = None
    rounded: RoundedProducts | None = None

    @property
    def group_size(self) -> int:
        """Numbers that share a scale. Raises ValueError where `bits` is None."""
        if self.bits is None:
            raise ValueError("this quantizer keeps plain matrices as they are: give it 4 or 8 bits")
        return GROUP_SIZES[self.bits]

    def applies_to(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a plain weight is quantised at load: a matrix of a layer whose rows are a multiple of the group size.

        Norms are small, and stay as they are. So do the head and the embedding, which may be the head as well: with the
        table in 4 bits the shipped model answers 62 % of the training questions, and 99 % without.
        """
        return self.bits is not None and in_a_layer(name, shape) and shape[1] % self.group_size == 0

    def quantize(self, name: str, array: Array, config: ModelConfig) -> Any:
        """Quantise a plain matrix, and convert it to the device's form."""
        return self._prepared(name, self.port.quantize_matrix(array, self.group_size, self.bits), config)

    def keeps(self, name: str, bits: int) -> bool:
        """Whether a stored weight stays quantised.

        Metal has kernels for 4 and 8 bits. Elsewhere 8 bits have none before that of Day 4.1, which is for CPUs: each
        step would dequantise the table, which is also the head, and on CUDA and a Gaudi every matrix of a layer.
        """
        device = self.port.device
        return (
            bits == 4 or device == "gpu" or bool(self.rounds(bits)) or (device == "cpu" and name != EMBEDDING)
        )

    def rounds(self, bits: int) -> str:
        """What activations are rounded to for matrices of this many bits: "int8", "int16", or "" for nothing."""
        return "" if self.rounded is None else self.rounded.rounds(bits)

    def keep(self, name: str, parts: Sequence[Any], config: ModelConfig, dtype: str) -> Any:
        """Convert words, scales and biases of a checkpoint to the device's form; none of them is rounded.

        Args:
            parts: in their stored types, on the CPU.
            dtype: the float type in which the model computes.

        Raises:
            ValueError: `config` has no quantization.
        """
        if config.quantization is None:
            raise ValueError(f"{name} has words and scales, and its model has no quantization")
        stored = config.quantization.of(name)
        sizes = stored.group_size, stored.bits
        kept = self.port.QuantizedWeights(*parts, *sizes, float_dtype=self.port.dtype(dtype))
        return self._prepared(name, kept, config)

    def _prepared(self, name: str, weights: Any, config: ModelConfig) -> Any:
        """The weights in the device's form; an embedding keeps its words, to look up rows.

        Packed for a kernel, every matrix has one form, in which rows can be looked up too.
        """
        if self.rounded is not None and self.rounded.rounds(weights.bits):
            return self.rounded.prepare(weights)
        form = "kernel"
        if name == EMBEDDING:
            form = "both" if config.tie_word_embeddings else "words"
        return self.port.backend_module.prepare(self.port.prepare_weights, weights, form, self.port.device)
