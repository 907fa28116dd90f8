"""The arguments of an `LLM` as a message: what all ranks have to know before they compute anything."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .engine_options import EngineOptions, options_on


@dataclass(frozen=True)
class Job:
    """The arguments of an `LLM`, of JSON's types.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id.
        quantization: see `LLM`.
        load_options: further fields of `Loading`.
        engine_options: fields of `EngineOptions`, those that were given.
        random_weights: if not empty, weights are random; "config" and "layers" say in which shape.
    """

    solution: str
    backend: str
    device: str
    dtype: str
    model: str
    quantization: str | None
    load_options: Mapping[str, Any] = field(default_factory=dict)
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    random_weights: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> EngineOptions:
        return options_on(self.device, self.engine_options)

    def message(self) -> dict[str, Any]:
        """All of it as an object of JSON."""
        return asdict(self)
