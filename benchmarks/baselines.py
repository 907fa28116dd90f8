"""Other engines on the same weights: which there are, what each needs, and where it is made.

A file of a baseline has `generators`, which makes engines that answer workloads on random weights, in each way to use
them that their users would try; or `readers`, which makes them on a GGUF file, in processes of their own; or both. And
perhaps `callers`, which makes engines whose single calls are timed.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.trace.workload import Workload
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.smollm2 import NAME, fetched_smollm2
from tiny_llm_engine.solutions.port import Port


@dataclass(frozen=True)
class Baseline:
    """The needs of a baseline."""

    backend: str | None  # whose random weights it shares; None is nobody's
    file: str  # of ours that makes it, imported when it is asked for
    modules: tuple[str, ...]  # what that imports
    installing: str  # how they are installed
    device: str | None = None  # the only one that it runs on; None is any
    reads_gguf: bool = True  # of `--model`


class Generates(Protocol):
    """An engine that answers a workload. It returns when the host has every token, perhaps with figures of its own."""

    def generate(self, workload: Workload) -> Mapping[str, Any] | None: ...


PIP = "run `python -m pip install {}` in this project's environment"
LLAMA_CPP = PIP.format("llama-cpp-python gguf")
MLX_LM = Baseline("mlx", "mlx_lm_baseline", ("mlx_lm",), PIP.format("--no-deps mlx-lm"), reads_gguf=False)
XLLAMACPP = Baseline(None, "xllamacpp_baseline", ("xllamacpp",), PIP.format("xllamacpp"), "cpu")
BASELINES = {
    "transformers": Baseline(
        "torch", "transformers_baseline", ("transformers",), f"run `{authors_tools.INSTALL}`"
    ),
    "llama.cpp": Baseline("torch", "llama_cpp_baseline", ("llama_cpp", "gguf"), LLAMA_CPP, "cpu"),
    "xllamacpp": XLLAMACPP,
    "xllamacpp-drafts": XLLAMACPP,
    "mlx-lm": MLX_LM,
    "mlx-lm-own-blas": MLX_LM,
}


def hub_shape(config: ModelConfig) -> dict[str, Any]:
    """The shape of a model by the names that configurations on the hub have."""
    names = """
        hidden_size num_hidden_layers num_attention_heads num_key_value_heads head_dim intermediate_size vocab_size
        max_position_embeddings rms_norm_eps tie_word_embeddings rope_theta
    """
    return {name: getattr(config, name) for name in names.split()}


def file_of(model: str) -> Path:
    """The GGUF file of a model.

    Raises:
        ValueError: it has none, or is not here.
    """
    file = fetched_smollm2() if model == NAME else Path(model)
    if file.suffix != ".gguf":
        raise ValueError(
            f"{model}: a baseline reads a GGUF file: choose --model {NAME}, FILE.gguf, or random weights"
        )
    return file


def units(system: str) -> str:
    """The parts of the processor and the libraries that a build of llama.cpp uses, by what it says of itself."""
    return ", ".join(re.findall(r"(\w+) = 1", system))


def is_installed(name: str) -> bool:
    """Whether a baseline could be imported."""
    return None not in map(find_spec, BASELINES[name].modules)


def module_of(name: str, port: Port, shares_weights: bool = True) -> ModuleType:
    """Import the file that makes a baseline, on weights of the port's or on a file.

    Raises:
        ValueError: it runs on the other port or another device, or is not installed; the message says what to do.
    """
    needed = BASELINES[name]
    if shares_weights and needed.backend not in (None, port.name):
        raise ValueError(
            f"--compare {name} needs the {needed.backend} port: choose --backend {needed.backend}"
        )
    if needed.device and needed.device != port.device:
        raise ValueError(f"--compare {name} runs on one device alone: add --device {needed.device}")
    if not is_installed(name):
        raise ValueError(f"--compare {name}: not installed; {needed.installing}")
    return import_module(f"{__package__}.{needed.file}")
