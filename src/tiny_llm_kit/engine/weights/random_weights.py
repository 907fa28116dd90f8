"""The shapes that are measured, with random weights made in memory: speed does not depend on what a model knows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ...model.config import ModelConfig, read_config
from ...model.detokenizer import StreamDetokenizer
from ...model.hub import find_model
from ...model.quantization import QUANTIZATIONS, WeightQuantizer
from ...model.quantized_head import QuantizedHead
from ...repo import MODELS
from ..backend import Backend
from ..loading import mlp_options
from ..parallel.division import model_of_ranks, part_of

# As its config.json on the hub says.
QWEN3_06B = ModelConfig(
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    vocab_size=151936,
    max_position_embeddings=40960,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    tie_word_embeddings=True,
)
SHAPES = ("qwen3-0.6b", "tiny-qwen3")


def shape(name: str, layers: int | None = None) -> ModelConfig:
    """The shape of that name; with fewer layers when a machine is too slow for all of them."""
    config = QWEN3_06B if name == SHAPES[0] else read_config(MODELS / name)
    return config if layers is None else replace(config, num_hidden_layers=layers)


@dataclass
class RandomCheckpoint:
    """A checkpoint whose weights are drawn when they are asked for, in the size that is asked for."""

    config: ModelConfig  # the shape
    backend_module: Backend  # `backend_mlx` or `backend_torch`
    dtype: str  # of the weights
    device: str  # of the weights
    weights: dict[str, Any] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> Any:
        """The weight of that name: ones for norms, all others normal with a deviation of 0.02."""
        if name not in self.weights:
            scale, mean = (0.02, 0.0) if len(shape) > 1 else (0.0, 1.0)
            self.weights[name] = self.backend_module.random_normal(
                shape, scale, mean, self.dtype, self.device
            )
        return self.weights[name]


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """The same weights, the layers' matrices quantised as `--quantize` does it."""

    plain: RandomCheckpoint
    quantizer: WeightQuantizer

    @property
    def config(self) -> ModelConfig:
        return self.plain.config

    def weight(self, name: str, *shape: int) -> Any:
        array, quantizer = self.plain.weight(name, *shape), self.quantizer
        if not quantizer.applies_to(name, shape[-2:]):
            return array
        if len(shape) == 2:
            return quantizer.quantize(name, array, self.config)
        return quantizer.port.stack_experts([quantizer.quantize(name, each, self.config) for each in array])


class BlankAnswers:
    """Reads texts as a model's tokenizer does; every token of an answer is a blank, and none ends it.

    For random weights, whose tokens mean nothing, and may not be in the vocabulary of that tokenizer.
    """

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(lambda token: b" ")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def random_network(
    port: Any,
    model: str,
    config: str | None,
    layers: int | None,
    quantization: str | None,
    head_quantization: str | None = None,
    rounds_activations: Callable[[int], str] | None = None,
    group: Any = None,
    stages: bool = False,
    expert_parallel: bool = False,
) -> tuple[Any, RandomCheckpoint]:
    """Week 3's network with random weights, and where they come from.

    Args:
        port: of the solution.
        model: whose shape, without `config`: a shipped name, a folder, a GGUF file or a hub id.
        config: one of `SHAPES`.
        layers: fewer than the shape has; None is all.
        quantization, head_quantization: "4bit" or "8bit" quantises the layers' weights, or the output head.
        rounds_activations: see `WeightQuantizer`.
        group: the ranks that compute the network together; None is this process alone.
        stages: whether these share the layers, and not every matrix.
        expert_parallel: whether these share the experts, and not every expert's matrices.
    """
    chosen = shape(config, layers) if config else find_model(model).config()
    chosen = replace(chosen, num_hidden_layers=layers or chosen.num_hidden_layers)
    if group is not None:
        chosen = part_of(port, group, stages, expert_parallel).config(chosen)
    checkpoint = RandomCheckpoint(chosen, port.backend_module, port.float_dtype, port.device)
    weights: Any = checkpoint
    if quantization:
        bits = QUANTIZATIONS[quantization]
        weights = QuantizedCheckpoint(checkpoint, WeightQuantizer(port, bits, rounds_activations))
    if head_quantization:
        bits = QUANTIZATIONS[head_quantization]
        weights = QuantizedHead(weights, WeightQuantizer(port, bits, rounds_activations))
    options = {"attention": "device", **mlp_options(port, chosen, group, stages)}
    if group is not None:
        return model_of_ranks(port, stages)(weights, **options, group=group), checkpoint
    return port.Qwen3ModelWeek3(weights, **options), checkpoint


def check_layers(config: str | None, random_weights: bool, layers: int | None) -> bool:
    """Whether random weights were asked for.

    Raises:
        ValueError: `layers` were, without these.
    """
    if layers and not (config or random_weights):
        raise ValueError("--layers needs random weights: add --config NAME or --random-weights")
    return bool(config or random_weights)
