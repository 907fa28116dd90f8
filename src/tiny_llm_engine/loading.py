"""Loads a model by name: its weights on a device, a week's network, and the tokenizer. Takes plain arguments."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

from tiny_llm_engine.solutions.port import Port

from .models.checkpoint import Checkpoint
from .models.config import ModelConfig
from .models.expert_names import model_name
from .models.files import CheckpointError
from .models.formats import ModelFiles, Stored
from .models.hub import find_model
from .models.output_head import HEAD, HEAD_LINE, QuantizedHead, with_saved_head
from .models.quantization import QUANTIZATIONS, RoundedProducts, WeightQuantizer, in_a_layer
from .models.quantized_tensors import check_quantized_parts
from .models.safetensors_folder import TensorInfo
from .models.tokenization import Tokenizer
from .models.tokenizer import load_tokenizer
from .models.used_tensors import unused_line, used_tensors
from .models.weights.stored_weights import bytes_of, check_memory, read_weights
from .solutions.backend import Backend, load_backend
from .solutions.solution_types import ServingPackage

# Read from the vendor's sources, and not measured: nothing was run on a Gaudi.
QUANTIZED_ON_HPU = (
    "quantised weights on an HPU: outside of a compiled graph every product first writes its whole matrix in bf16, "
    "which is slower than bf16 weights. The engine of Week 3 compiles; those before it do not"
)


@dataclass(frozen=True)
class WeekEngine:
    """The names of one week's engine in a solution.

    Args:
        model: name of its model.
        generate: name of its generator for one prompt, if it has one.
        has_caches: whether the model serves many prompts, and reads quantised weights.
        is_packed: whether it computes packed batches, with a `PackedRunner`.
    """

    model: str
    generate: str | None
    has_caches: bool
    is_packed: bool = False


# In the order of the course: "auto" takes the last one that fits.
ENGINES = {
    "week1": WeekEngine("Qwen3ModelWeek1", "simple_generate", has_caches=False),
    "week2": WeekEngine("Qwen3ModelWeek2", "simple_generate_with_kv_cache", has_caches=True),
    "week3": WeekEngine("Qwen3ModelWeek3", None, has_caches=True, is_packed=True),
}


class PartFiles(Stored, Protocol):
    """The tensors of a model's files, as far as a rank holds them."""

    headers: dict[str, TensorInfo]  # with the shapes of the parts
    bytes_read: int  # so far


class HeldPart(Protocol):
    """What one of several ranks holds of a model."""

    @property
    def rank(self) -> int: ...

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model's configuration with the sizes of this rank."""
        ...

    def holds(self, name: str, whole: ModelConfig) -> bool:
        """Whether this rank holds some of a weight."""
        ...

    def opened(
        self,
        backend_module: Backend,
        files: ModelFiles,
        headers: Mapping[str, TensorInfo],
        config: ModelConfig,
    ) -> PartFiles:
        """What it reads of a model's files."""
        ...


class Division(Protocol):
    """How ranks share a model of Week 3."""

    def part(self, names: ServingPackage) -> HeldPart:
        """What this rank holds."""
        ...

    def model(self, port: Port, weights: Any, options: dict[str, Any]) -> Any:
        """This rank's model around the weights of its part."""
        ...


@dataclass(frozen=True)
class Loading:
    """A plan of loading: how weights are stored, and who computes with them.

    Args:
        quantize: "4bit" or "8bit" quantises the layers' weights at load; None leaves them as they are.
        head_quantization: "4bit" or "8bit" also quantises the output head at load, see `QuantizedHead`.
        keep_quantized: whether weights that are stored quantised stay quantised; otherwise they are dequantised.
            With an explicit float32 on a CPU they are dequantised too: the usual product with 4 bits computes in bf16.
        attention: "simple", "tiled" or "device", see `Qwen3ModelWeek2`. Not used by the engine of Week 1.
        rounded: see `WeightQuantizer`.
        division: the ranks that share the model, for the engine of Week 3; this process alone when None.
        max_model_len: tokens that the model will read, and positions of RoPE's tables; its whole context when None.
    """

    quantize: str | None = None
    head_quantization: str | None = None
    keep_quantized: bool = True
    attention: str = "device"
    rounded: RoundedProducts | None = None
    division: Division | None = None
    max_model_len: int | None = None

    def quantizer(self, port: Port, quantization: str | None) -> WeightQuantizer:
        """Quantises plain matrices to "4bit" or "8bit", or leaves them as they are."""
        return WeightQuantizer(port, QUANTIZATIONS.get(quantization or ""), self.rounded)

    def has_quantized(self, port: Port) -> bool:
        """Whether matrices may be quantised: at load, or because they are stored so."""
        is_rounded = self.rounded is not None and bool(self.rounded.rounds(4))
        kept = self.keep_quantized and (not port.is_exact or is_rounded)
        return self.quantize is not None or kept

    def part(self, port: Port) -> HeldPart | None:
        """What this rank holds; None is all of the model."""
        return None if self.division is None else self.division.part(port.serving)

    def network(self, port: Port, loader: str, weights: Any) -> Any:
        """The solution's model of a week, or of one of several ranks, around these weights."""
        week = ENGINES[loader]
        if self.head_quantization:
            weights = QuantizedHead(weights, self.quantizer(port, self.head_quantization))
        if not week.has_caches:
            return getattr(port, week.model)(weights)
        options: dict[str, Any] = {} if self.attention == "simple" else {"attention": self.attention}
        if self.division is not None:
            return self.division.model(port, weights, options)
        return getattr(port, week.model)(weights, **options, **mlp_options(port, weights.config))


AS_STORED = Loading()


def read_network(
    port: Port, model: str | PathLike[str], loader: str, plan: Loading = AS_STORED
) -> tuple[Any, Tokenizer]:
    """Load a week's model with its weights on the port's device, and its tokenizer.

    Raises:
        CheckpointError: the model's files are missing or unusable.
        ValueError: an engine that reads only plain weights should quantise, or the head cannot be quantised.
    """
    has_caches = ENGINES[loader].has_caches
    if plan.quantize and not has_caches:
        raise ValueError(
            f"--quantize {plan.quantize}: the engine of {loader} reads plain weights: choose --loader week2"
        )
    quantizer = plan.quantizer(port, plan.quantize) if has_caches and plan.has_quantized(port) else None
    tokenizer = load_tokenizer(model)
    where = port.name, port.device, port.float_dtype
    weights = load_checkpoint(model, *where, quantizer, plan.part(port), plan.max_model_len)
    return plan.network(port, loader, weights), tokenizer


def mlp_options(port: Port, config: ModelConfig, group: Any = None) -> dict[str, Any]:
    """What a model with experts is given, so that its layers have mixtures: nothing for other models.

    Args:
        group: the ranks that share every layer; None is this process alone.
    """
    return {} if config.mixture is None else {"make_mlp": partial(port.mlp_of, group=group)}


def load_checkpoint(
    model: str | PathLike[str],
    backend: str,
    device: str = "auto",
    dtype: str = "auto",
    quantizer: WeightQuantizer | None = None,
    part: HeldPart | None = None,
    max_model_len: int | None = None,
) -> Checkpoint:
    """Read a model's weights onto a device, each moved and converted once.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id; see `hub.find_model`.
        backend: "mlx" or "torch". On a Gaudi, resolve the solution first: `hpu.py` must precede torch.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        quantizer: keeps quantised weights quantised, and may quantise plain ones; None dequantises.
        part: what this rank reads and holds; the whole model when None.
        max_model_len: see `Loading`.

    Raises:
        CheckpointError: the folder is unusable, or the weights have other bits than `quantizer` asks for; every header
            is checked before the first weight is read.
        ValueError: this machine does not have the device, `dtype` is unknown, or the model cannot be divided.
    """
    backend_module = load_backend(backend)
    device = backend_module.pick_device(device)
    dtype = backend_module.default_dtype(device) if dtype == "auto" else dtype
    if dtype not in backend_module.DTYPES:
        raise ValueError(f"dtype {dtype!r}: choose auto, {', '.join(backend_module.DTYPES)}")
    model_files = find_model(model)
    config, found = replace(model_files.config(), max_model_len=max_model_len), model_files.headers()
    headers = used_tensors(found, config)
    lines = unused_line(model_files.path, [name for name in found if name not in headers])
    tied, config = config, with_saved_head(config, headers, model_files.numbers)
    names = _weight_names(headers, config)
    parts = None
    if part is not None:
        names = [name for name in names if part.holds(name, config)]
        parts = part.opened(backend_module, model_files, headers, config)
        headers, config = parts.headers, part.config(config)
    _check_bits(model_files.path, config, quantizer)
    if device == "hpu" and quantizer and (quantizer.bits or config.quantization):
        print(QUANTIZED_ON_HPU, file=sys.stderr)
    if quantizer and quantizer.bits and not config.quantization:
        _warn_of_plain_matrices(quantizer, {name: headers[name].shape for name in names})
    lines += check_memory(headers, names, config, device, dtype, quantizer)
    lines += [HEAD_LINE] if tied.tie_word_embeddings and not config.tie_word_embeddings else []
    if part is None or part.rank == 0:  # the other ranks would say the same
        print(*lines, sep="\n", end="\n" * bool(lines), file=sys.stderr)
    stored = parts or model_files.arrays(backend_module, headers)
    weights = read_weights(backend_module, stored, headers, names, config, device, dtype, quantizer)
    model_files.close()
    files = {model_name(name): headers[name].file.name for name in names}
    read = parts.bytes_read if parts else bytes_of(headers, names)
    return Checkpoint(config, weights, model_files.folder, files, read)


def _weight_names(headers: Mapping[str, TensorInfo], config: ModelConfig) -> list[str]:
    names = check_quantized_parts(headers, config.quantization)
    if config.tie_word_embeddings:
        # Some files contain a copy of the tied head, which is the largest tensor of a small model.
        names = [name for name in names if name != HEAD]
    return list(names)


def _check_bits(folder: Path, config: ModelConfig, quantizer: WeightQuantizer | None) -> None:
    if (
        quantizer
        and quantizer.bits
        and config.quantization
        and config.quantization.all_bits != {quantizer.bits}
    ):
        bits = " and ".join(map(str, sorted(config.quantization.all_bits)))
        raise CheckpointError(
            f"{folder}: its weights have {bits} bits already: leave --quantize out, or take the model that they were "
            "made from"
        )


def _warn_of_plain_matrices(quantizer: WeightQuantizer, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Print on standard error how many matrices of the layers cannot be quantised.

    Raises:
        ValueError: none can be.
    """
    matrices = [name for name, shape in shapes.items() if in_a_layer(name, shape)]
    fitting = [name for name in matrices if quantizer.applies_to(name, shapes[name])]
    why = f"quantising to {quantizer.bits} bits takes rows of a multiple of {quantizer.group_size} numbers"
    if not fitting:
        raise ValueError(f"{why}, and no matrix of the layers has them: load the model without it")
    if len(fitting) < len(matrices):
        stay = len(matrices) - len(fitting)
        print(f"{why}: {stay} of the layers' {len(matrices)} matrices stay as they are", file=sys.stderr)
