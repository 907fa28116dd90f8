"""Loads a model by name: its weights on a device, a week's engine, the runner and the tokenizer.

Loading takes plain arguments. `course/capabilities.py` decides what a learner's code can do so far.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from ..model.checkpoint import Checkpoint
from ..model.config import ModelConfig
from ..model.expert_names import model_name
from ..model.files import CheckpointError
from ..model.hub import find_model
from ..model.quantization import QUANTIZATIONS, WeightQuantizer, in_a_layer
from ..model.quantized_head import HEAD, QuantizedHead
from ..model.quantized_tensors import check_quantized_parts
from ..model.safetensors_folder import TensorInfo
from ..model.tied_head import LINE as HEAD_LINE
from ..model.tied_head import with_saved_head
from ..model.tokenizer import Tokenizer, load_tokenizer
from .model_runner import ModelRunner
from .parallel.division import model_of_ranks, part_of
from .parallel.rank_part import RankPart
from .parallel.stage_part import StagePart
from .port import Port, load_backend
from .weights.parts_of_files import PartsOfFiles
from .weights.stored_weights import bytes_of, check_memory, read_weights

# Read from the vendor's sources, and not measured: nothing was run on a Gaudi.
QUANTIZED_ON_HPU = (
    "quantised weights on an HPU: outside of a compiled graph every product first writes its whole matrix in bf16, "
    "which is slower than bf16 weights. The engine of Week 3 compiles; those before it do not"
)


@dataclass(frozen=True)
class Engine:
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
    "week1": Engine("Qwen3ModelWeek1", "simple_generate", has_caches=False),
    "week2": Engine("Qwen3ModelWeek2", "simple_generate_with_kv_cache", has_caches=True),
    "week3": Engine("Qwen3ModelWeek3", None, has_caches=True, is_packed=True),
}


def load(
    model: str | PathLike[str] = "tiny-qwen3",
    *,
    solution: str = "ref",
    backend: str,
    device: str = "auto",
    dtype: str = "auto",
    loader: str = "auto",
    quantize: str | None = None,
    keep_quantized: bool = True,
    attention: str = "device",
    chunk_mask: bool = True,
    seed: int = 0,
    **options: Any,
) -> tuple[ModelRunner, Tokenizer]:
    """Load a runner and a tokenizer, which schedulers, `Request` and `batch_generate` take.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id; see `hub.find_model`.
        solution: the code that runs: "ref" or "tiny_llm".
        backend: "mlx" or "torch".
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        loader: "week2"; "auto" takes the newest one.
        quantize, keep_quantized, attention: see `load_network`.
        chunk_mask: whether the solution's own function makes the mask of a prompt's chunks; otherwise the cache does.
        seed: seed of the random draws.
        options: options of `ModelRunner`.

    Raises:
        CheckpointError: the model's files are missing or unusable.
        ValueError: this machine does not have the device, or the engine of that week has no cache.
    """
    fitting = [name for name, engine in ENGINES.items() if engine.has_caches and not engine.is_packed]
    loader = fitting[-1] if loader == "auto" else loader
    if loader not in fitting:
        with_caches = ", ".join(fitting)
        raise ValueError(f"loader {loader!r}: a runner needs an engine with caches: {with_caches}")
    port = Port(solution, backend, device, dtype)
    port.seed(seed)
    network, tokenizer = load_network(
        port, model, loader, quantize, keep_quantized=keep_quantized, attention=attention
    )
    port.given.use_products(network, "plain")
    if chunk_mask:
        options = {"chunk_mask": port.chunked_attention_mask, **options}
    return port.runner(network, **options), tokenizer


def load_network(
    port: Port,
    model: str | PathLike[str],
    loader: str,
    quantize: str | None = None,
    *,
    keep_quantized: bool = True,
    attention: str = "device",
    head_quantization: str | None = None,
    rounds_activations: Callable[[int], str] | None = None,
    group: Any = None,
    stages: bool = False,
    expert_parallel: bool = False,
) -> tuple[Any, Tokenizer]:
    """Load a week's model with its weights on the port's device, and its tokenizer.

    Args:
        quantize: "4bit" or "8bit" quantises the layers' weights at load; None leaves them as they are.
        keep_quantized: whether weights that are stored quantised stay quantised; otherwise they are dequantised.
            With an explicit float32 on a CPU they are dequantised too: the usual product with 4 bits computes in bf16.
        attention: "simple", "tiled" or "device", see `Qwen3ModelWeek2`. Not used by the engine of Week 1.
        head_quantization: "4bit" or "8bit" also quantises the output head at load, see `QuantizedHead`.
        rounds_activations: see `WeightQuantizer`.
        group: the ranks that compute the model together, for the engine of Week 3; this process alone when None.
        stages: whether these share the layers, and not every matrix.
        expert_parallel: whether these share the experts, and not every expert's matrices.

    Raises:
        CheckpointError: the model's files are missing or unusable.
        ValueError: `quantize` was given for an engine that reads only plain weights, or the head cannot be quantised.
    """
    week = ENGINES[loader]
    if quantize and not week.has_caches:
        raise ValueError(
            f"--quantize {quantize}: the engine of {loader} reads plain weights: choose --loader week2"
        )
    keeps = week.has_caches and (
        quantize
        or (keep_quantized and (not port.is_exact or bool(rounds_activations and rounds_activations(4))))
    )
    bits = QUANTIZATIONS.get(quantize or "")
    quantizer = WeightQuantizer(port, bits, rounds_activations) if keeps else None
    tokenizer = load_tokenizer(model)
    part = None if group is None else part_of(port, group, stages, expert_parallel)
    weights = load_checkpoint(model, port.name, port.device, port.float_dtype, quantizer, part)
    if head_quantization:
        bits = QUANTIZATIONS[head_quantization]
        weights = QuantizedHead(weights, WeightQuantizer(port, bits, rounds_activations))
    options = {"attention": attention} if week.has_caches and attention != "simple" else {}
    if week.has_caches:
        options |= mlp_options(port, weights.config, group, stages)
    if group is not None:
        network = model_of_ranks(port, stages)(weights, **options, group=group)
    else:
        network = getattr(port, week.model)(weights, **options)
    if week.is_packed and attention == "device":
        port.given.use_packed_kernels(network)
    return network, tokenizer


def mlp_options(port: Port, config: ModelConfig, group: Any = None, stages: bool = False) -> dict[str, Any]:
    """What a model with experts is given, so that its layers have mixtures: nothing for other models.

    Args:
        group: the ranks that compute it together; None is this process alone.
        stages: whether these share the layers, and not every matrix.
    """
    if config.mixture is None:
        return {}
    return {"make_mlp": partial(port.mlp_of, group=None if stages else group)}


def load_checkpoint(
    model: str | PathLike[str],
    backend: str,
    device: str = "auto",
    dtype: str = "auto",
    quantizer: WeightQuantizer | None = None,
    part: RankPart | StagePart | None = None,
) -> Checkpoint:
    """Read a model's weights onto a device, each moved and converted once.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id; see `hub.find_model`.
        backend: "mlx" or "torch". On a Gaudi, resolve the solution first: its hpu.py must precede torch.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        quantizer: keeps quantised weights quantised, and may quantise plain ones; None dequantises.
        part: what this rank reads and holds; the whole model when None.

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
    config, headers = model_files.config(), model_files.headers()
    tied, config = config, with_saved_head(config, headers, model_files.numbers)
    names = _weight_names(headers, config)
    parts = None
    if part is not None:
        names = [name for name in names if part.holds(name, config)]
        parts = PartsOfFiles(backend_module, model_files, headers, config, part)
        headers, config = parts.headers, part.config(config)
    _check_bits(model_files.path, config, quantizer)
    if device == "hpu" and quantizer and (quantizer.bits or config.quantization):
        print(QUANTIZED_ON_HPU, file=sys.stderr)
    if quantizer and quantizer.bits and not config.quantization:
        _warn_of_plain_matrices(quantizer, {name: headers[name].shape for name in names})
    lines = check_memory(headers, names, config, device, dtype, quantizer)
    lines += [HEAD_LINE] if tied.tie_word_embeddings and not config.tie_word_embeddings else []
    if part is None or part.rank == 0:  # the other ranks would say the same
        print(*lines, sep="\n", end="\n" * bool(lines), file=sys.stderr)
    stored = parts or model_files.arrays(backend_module)
    weights = read_weights(backend_module, stored, headers, names, config, device, dtype, quantizer)
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
