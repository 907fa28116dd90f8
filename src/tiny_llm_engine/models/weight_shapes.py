"""The weights of a model by Hugging Face name, with their shapes: what its layers ask a checkpoint for."""

from .config import ModelConfig
from .layer_weights import layer_weights
from .output_head import HEAD
from .quantization import EMBEDDING


class _Asked:
    """A checkpoint without weights: keeps the shapes that it is asked for, by name."""

    def __init__(self, config: ModelConfig):
        self.config, self.shapes = config, dict[str, tuple[int, ...]]()

    def weight(self, name: str, *shape: int) -> None:
        self.shapes[name] = shape


def weight_shapes(config: ModelConfig, layers: int | None = None) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of a model, in the order in which a token meets them; the experts of a layer are stacks.

    Args:
        layers: the number of layers to list, from the first one on; all of them when None.
    """
    E, V, asked = config.hidden_size, config.vocab_size, _Asked(config)
    asked.weight(EMBEDDING, V, E)
    for index in range(config.num_hidden_layers if layers is None else layers):
        layer_weights(asked, index, lambda weight, bias: None)
    asked.weight("model.norm.weight", E)
    if not config.tie_word_embeddings:
        asked.weight(HEAD, V, E)
    return asked.shapes
