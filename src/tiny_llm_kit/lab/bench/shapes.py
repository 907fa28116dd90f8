"""The shapes that are measured, with random weights made in memory: speed does not depend on what a model knows."""

from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from ...model.config import ModelConfig, read_config
from ...model.quantization import WeightQuantizer
from ...repo import MODELS

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
    """A checkpoint whose weights are drawn when they are asked for, in the size that is asked for.

    Args:
        config: the shape.
        kit: `backend_mlx` or `backend_torch`.
        dtype, device: of the weights.
    """

    config: ModelConfig
    kit: ModuleType
    dtype: str
    device: str
    weights: dict[str, Any] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> Any:
        """Norms are ones; all other weights are normal with a deviation of 0.02."""
        if name not in self.weights:
            scale = 0.02 if len(shape) > 1 else 0.0
            self.weights[name] = self.kit.random_normal(
                shape, scale, 1.0 - bool(scale), self.dtype, self.device
            )
        return self.weights[name]


@dataclass(frozen=True)
class QuantizedCheckpoint:
    """The same weights, the layers' matrices quantised as `--quantize` does it.

    Args:
        plain: whose weights.
        quantizer: to which bits.
    """

    plain: RandomCheckpoint
    quantizer: WeightQuantizer

    @property
    def config(self) -> ModelConfig:
        return self.plain.config

    def weight(self, name: str, *shape: int) -> Any:
        array = self.plain.weight(name, *shape)
        return (
            self.quantizer.quantize(name, array, self.config)
            if self.quantizer.applies_to(name, shape)
            else array
        )


def random_runner(port: Any, name: str, layers: int | None = None) -> Any:
    """A runner of a shape with random weights."""
    checkpoint = RandomCheckpoint(shape(name, layers), port.kit, port.float_dtype, port.device)
    model = port.Qwen3ModelWeek2(checkpoint, attention="device")
    return port.runner(model, chunk_mask=port.chunked_attention_mask)
