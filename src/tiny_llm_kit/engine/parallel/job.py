"""What all ranks have to know before they compute anything: the model, the options, the solution's code."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ...model.config import ModelConfig
from ...model.hub import find_model
from ...model.tokenizer import load_tokenizer
from ..engine_options import EngineOptions
from ..loading import load_network
from ..port import Port
from ..profiling.quantized_choice import activation_choice
from ..weights.random_weights import BlankAnswers, random_network, shape


@dataclass(frozen=True)
class Job:
    """The arguments of an `LLM`, of JSON's types.

    Args:
        solution, backend, device, dtype: of the port.
        model: a shipped name, a folder, a GGUF file or a hub id.
        quantization: see `LLM`.
        load_options: further options of `load_network`.
        engine_options: the fields of `EngineOptions`.
        random_weights: if not empty, weights are random, and these are the further arguments of `random_network`.
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
        return EngineOptions(**self.engine_options)

    def port(self) -> Port:
        """The port that runs it.

        Raises:
            ValueError: this machine does not have the device.
        """
        return Port(self.solution, self.backend, self.device, self.dtype)

    @property
    def config(self) -> ModelConfig:
        """The whole model's configuration.

        Raises:
            CheckpointError: its file is unusable, or not here.
        """
        name = self.random_weights.get("config")
        chosen = shape(name) if name else find_model(self.model).config()
        return replace(
            chosen, num_hidden_layers=self.random_weights.get("layers") or chosen.num_hidden_layers
        )

    def rounds_activations(self, port: Port) -> Callable[[int], str] | None:
        """What activations are rounded to for weights of this many bits; None if no weight is quantised.

        Raises:
            ValueError: they are to be rounded, and no weight is quantised, or the kernel does not run here.
        """
        options = self.options
        head = {**self.load_options, **self.random_weights}.get("head_quantization")
        if not (self.quantization or head or self.config.quantization):
            if options.activations not in (None, "float"):
                raise ValueError(
                    f'activations is "{options.activations}", and no weight is quantised: quantise to 4bit or 8bit'
                )
            return None
        # Several ranks share the cores, so that what one of them measures says little.
        is_usual = options.num_ranks > 1 or options.cpu_products == "usual"
        is_exact = port.is_exact and self.config.quantization is not None
        return activation_choice(port, options.activations or ("float" if is_usual or is_exact else None))

    def network(self, port: Port, group: Any) -> tuple[Any, Any]:
        """This rank's part of the model, and the tokenizer; the whole model without a group.

        Raises:
            As `load_network`.
        """
        ranks = {"group": group, "stages": self.options.has_stages}
        ranks |= {"expert_parallel": self.options.enable_expert_parallel}
        ranks |= {"rounds_activations": self.rounds_activations(port)}
        if self.random_weights:
            given = {**self.random_weights, **ranks}
            network, _ = random_network(port, self.model, quantization=self.quantization, **given)
            return network, BlankAnswers(load_tokenizer(self.model))
        return load_network(port, self.model, "week3", self.quantization, **self.load_options, **ranks)

    def draft_network(self, port: Port) -> Any:
        """The draft model of `speculative_config`, as it is stored; None if there is none.

        Raises:
            As `load_network`.
        """
        speculation = self.options.speculation
        if speculation is None or speculation.model is None:
            return None
        options = {**self.load_options, "head_quantization": None}
        return load_network(port, speculation.model, "week3", **options)[0]

    def message(self) -> dict[str, Any]:
        """All of it as an object of JSON."""
        return asdict(self)
