"""The shapes that are measured, with random weights made in memory: speed does not depend on what a model knows."""

from dataclasses import dataclass, field, replace
from typing import Any

from ...machine.repo import MODELS
from ...solutions.backend import Backend
from ..config import ModelConfig, read_config
from ..quantization import WeightQuantizer
from ..tokenization import StreamDetokenizer

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
        return quantizer.port.stack_experts(
            [quantizer.quantize(name, expert, self.config) for expert in array]
        )


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


def check_layers(config: str | None, random_weights: bool, layers: int | None) -> bool:
    """Whether random weights were asked for.

    Raises:
        ValueError: `layers` were, without these.
    """
    if layers and not (config or random_weights):
        raise ValueError("--layers needs random weights: add --config NAME or --random-weights")
    return bool(config or random_weights)
