"""Reads the weights of a checkpoint: each is taken from its file, checked, quantised or converted, and placed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...machine.ram import free_ram
from ...solutions.backend import Backend
from ...solutions.solution_types import Array
from ..config import ModelConfig
from ..expert_names import model_name, place_of
from ..expert_tensors import stacks_of
from ..files import CheckpointError, shown
from ..formats import Stored
from ..quantization import WeightQuantizer
from ..quantized_tensors import parts as quantized_parts
from ..safetensors_folder import TensorInfo

LARGEST_FLOAT16 = 65504
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
SLOW = " (slow with MLX on a CPU: dtype float32 dequantises them)"
SMALL = 2**29  # bytes of weights for which no machine is asked how much memory it has


def bytes_of(headers: Mapping[str, TensorInfo], names: Iterable[str]) -> int:
    """Bytes of these weights in their files, scales and biases included."""
    tensors = (
        part for name in names for part in (quantized_parts(name) if headers[name].dtype == "U32" else [name])
    )
    return sum(math.prod(headers[tensor].shape) * BYTES[headers[tensor].dtype] for tensor in tensors)


def check_memory(
    headers: Mapping[str, TensorInfo],
    names: Iterable[str],
    config: ModelConfig,
    device: str,
    dtype: str,
    quantizer: WeightQuantizer | None,
) -> list[str]:
    """Check that the weights of a CPU fit into its free RAM. An accelerator's library says so itself.

    Args:
        headers, names, config, device, dtype, quantizer: as for `read_weights`.

    Returns:
        A line for each stored type that is dequantised, and one for those of a GGUF file that stay as they are.

    Raises:
        CheckpointError: they do not fit.
    """
    needed, dequantized, kept = 0, dict[str, int](), dict[str, str]()
    for name in names:
        info = headers[name]
        kind, size = info.stored_as, _numbers(name, headers, config) * DTYPE_BYTES[dtype]
        if is_kept(name, info, config, quantizer):
            size = bytes_of(headers, [name])
            kept |= {kind: _rounding(name, config, quantizer)} if kind else {}
        elif quantizer and info.dtype != "U32" and quantizer.applies_to(name, info.shape):
            size = math.prod(info.shape) * (quantizer.bits or 0) // 8  # and a little for the scales
        elif kind := kind or _bits_in_words(name, info, config):
            dequantized[kind] = dequantized.get(kind, 0) + size
        needed += size
    if device == "cpu" and needed > SMALL:
        _check_ram(needed, dtype)
    lines = [
        f"weights in {kind} are dequantised to {dtype}: {size / 1e6:,.0f} MB"
        for kind, size in dequantized.items()
    ]
    return lines + ([_kept_in_words(kept, quantizer.port)] if quantizer and kept else [])


def _bits_in_words(name: str, info: TensorInfo, config: ModelConfig) -> str | None:
    """Of a folder's quantised weight, "4 bits"; None of a plain one."""
    if info.dtype != "U32" or config.quantization is None:
        return None
    return f"{config.quantization.of(name).bits} bits"


def _rounding(name: str, config: ModelConfig, quantizer: WeightQuantizer | None) -> str:
    assert quantizer is not None and config.quantization is not None  # it is kept
    return quantizer.rounds(config.quantization.of(name).bits)


def _kept_in_words(kept: Mapping[str, str], port: Any) -> str:
    kinds = [f"{kind} with {rounded or 'float'} activations" for kind, rounded in sorted(kept.items())]
    is_slow = "" in kept.values() and (port.name, port.device) == ("mlx", "cpu")
    return f"weights stay as they are stored: {', '.join(kinds)}" + SLOW * is_slow


def _check_ram(needed: int, dtype: str) -> None:
    if needed > (free := free_ram()):
        raise CheckpointError(
            f"the weights take {needed / 2**30:,.1f} GiB in {dtype}, and {free / 2**30:,.1f} GiB are free: end other "
            "programs, or choose a smaller model or one with fewer bits"
        )


def is_kept(name: str, info: TensorInfo, config: ModelConfig, quantizer: WeightQuantizer | None) -> bool:
    """Whether a weight that is stored quantised stays quantised."""
    if info.dtype != "U32" or quantizer is None or config.quantization is None:
        return False
    return quantizer.keeps(name, config.quantization.of(name).bits)


def _numbers(name: str, headers: Mapping[str, TensorInfo], config: ModelConfig) -> int:
    info = headers[name]
    per_word = 1
    if info.dtype == "U32":
        assert config.quantization is not None  # `check_quantized_parts` has accepted the name
        per_word = 32 // config.quantization.of(name).bits
    return math.prod(info.shape) * per_word


def read_weights(
    backend_module: Backend,
    stored: Stored,
    headers: Mapping[str, TensorInfo],
    names: list[str],
    config: ModelConfig,
    device: str,
    dtype: str,
    quantizer: WeightQuantizer | None,
) -> dict[str, Any]:
    """Read one weight after the other, so that only one is in memory in its stored and in its final form.

    The experts of a layer are one weight.

    Args:
        stored: the tensors, of the shapes in `headers`.
        headers: of the tensors, by name.
        names: the weights that are wanted; a quantised one has two further tensors.
        device, dtype, quantizer: see `load_checkpoint`.

    Raises:
        CheckpointError: a weight is not finite, or too large for float16.
    """
    reader = _Reader(backend_module, stored, headers, config, device, dtype, quantizer)
    plain = {model_name(name): name for name in names if place_of(name) is None}
    stacks = stacks_of(names, headers)
    shown_names = _with_progress if quantizer and quantizer.bits else list
    weights = {name: reader.matrix([plain[name]]) for name in shown_names(list(plain))}
    return weights | {name: reader.stack(stacks[name]) for name in shown_names(list(stacks))}


@dataclass(frozen=True)
class _Reader:
    """Reads weights; the arguments are those of `read_weights`."""

    backend_module: Backend
    stored: Stored
    headers: Mapping[str, TensorInfo]
    config: ModelConfig
    device: str
    dtype: str
    quantizer: WeightQuantizer | None

    def stack(self, experts: list[list[str]]) -> Any:
        """One matrix per expert, each of several parts, as one weight."""
        found = [self.matrix(parts) for parts in experts]
        if self.quantizer is not None and hasattr(found[0], "group_size"):
            return self.quantizer.port.stack_experts(found)
        stack = self.backend_module.concatenate([each[None] for each in found], 0)
        self.backend_module.evaluate(stack)
        return stack

    def matrix(self, parts: list[str]) -> Any:
        """A weight whose parts follow each other along its outputs."""
        info, quantizer = self.headers[parts[0]], self.quantizer
        if info.dtype == "U32":
            return self._quantized(parts)
        array = self._joined([self._taken(each) for each in parts])
        if quantizer and quantizer.applies_to(parts[0], info.shape):
            placed = self.backend_module.place(array, self.dtype, "cpu")
            return quantizer.quantize(parts[0], placed, self.config)
        return self.backend_module.place(array, self.dtype, self.device)

    def _quantized(self, names: list[str]) -> Any:
        """Words, scales and biases as the solution's quantised matrix, or dequantised to one array."""
        triples = [
            [self.stored.pop(words), *map(self._taken, numbers)]
            for words, *numbers in map(quantized_parts, names)
        ]
        triple = [self._joined(list(arrays)) for arrays in zip(*triples, strict=True)]
        assert (
            self.config.quantization is not None
        )  # `check_quantized_parts` has accepted the names of these parts
        kind, place = self.config.quantization.of(names[0]), self.backend_module.place
        if self.quantizer and self.quantizer.keeps(names[0], kind.bits):
            kept = [place(part, None, "cpu") for part in triple]
            return self.quantizer.keep(names[0], kept, self.config, self.dtype)
        words, scales, biases = triple
        sizes = kind.group_size, kind.bits
        array = self.backend_module.dequantize(words, scales, biases, *sizes, self.device)
        return place(array, self.dtype, self.device)

    def _joined(self, arrays: list[Array]) -> Array:
        return arrays[0] if len(arrays) == 1 else self.backend_module.concatenate(arrays, 0)

    def _taken(self, name: str) -> Array:
        """The stored array, after a check that its numbers are finite and fit the type.

        Raises:
            CheckpointError: NaN or infinity, which would spread to every answer; or too large for float16.
        """
        array, info = self.stored.pop(name), self.headers[name]
        low, high = self.backend_module.extremes(array) if math.prod(info.shape) else (0.0, 0.0)
        if not math.isfinite(low) or not math.isfinite(high):
            raise CheckpointError(
                f"{info.file}: tensor {shown(name)} holds NaN or infinity; download the model again"
            )
        if self.dtype == "float16" and max(-low, high) > LARGEST_FLOAT16:
            raise CheckpointError(
                f"{info.file}: tensor {shown(name)} holds {max(-low, high):g}, and float16 ends at 65504: choose "
                "bfloat16 or float32"
            )
        return array


def _with_progress(names: list[str]) -> Iterable[str]:
    """The names, with a progress bar on a terminal: quantising takes longer than reading."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    return track(names, "quantising weights", console=console, transient=True, disable=quiet)
