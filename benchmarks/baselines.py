"""Other engines on the same random weights: which there are, what each needs, and how it is made."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol

from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.trace.shapes import RandomCheckpoint
from tiny_llm_kit.trace.workload import Workload


@dataclass(frozen=True)
class Baseline:
    """What a baseline needs.

    Args:
        backend: whose weights it reads.
        file: of ours that makes it, imported when it is asked for.
        modules: what that imports.
        installing: how they are installed.
        device: the only one that it runs on; None is any.
    """

    backend: str
    file: str
    modules: tuple[str, ...]
    installing: str
    device: str | None = None


class Generates(Protocol):
    """An engine that answers a workload; returns when the host has every token."""

    def generate(self, workload: Workload) -> None: ...


PIP = "run `python -m pip install {}` in this project's environment"
LLAMA_CPP = PIP.format("llama-cpp-python gguf")
MLX_LM = Baseline("mlx", "mlx_lm_baseline", ("mlx_lm",), PIP.format("--no-deps mlx-lm"))
BASELINES = {
    "transformers": Baseline("torch", "transformers_baseline", ("transformers",), "run `pdm install`"),
    "llama.cpp": Baseline("torch", "llama_cpp_baseline", ("llama_cpp", "gguf"), LLAMA_CPP, "cpu"),
    "mlx-lm": MLX_LM,
    "mlx-lm-own-blas": MLX_LM,
}


def module_of(name: str, port: Port) -> ModuleType:
    """The file that makes a baseline.

    Raises:
        ValueError: it runs on the other port or another device, or is not installed; the message says what to do.
    """
    needed = BASELINES[name]
    if needed.backend != port.name:
        raise ValueError(
            f"--compare {name} needs the {needed.backend} port: choose --backend {needed.backend}"
        )
    if needed.device and needed.device != port.device:
        raise ValueError(f"--compare {name} runs on one device alone: add --device {needed.device}")
    if None in map(find_spec, needed.modules):
        raise ValueError(f"--compare {name}: not installed; {needed.installing}")
    return import_module(f"{__package__}.{needed.file}")


def callers(name: str, port: Port, checkpoint: RandomCheckpoint) -> dict[str, Any]:
    """A baseline whose single calls are timed, with each of its caches. It raises what `module_of` does."""
    return module_of(name, port).callers(checkpoint)


def generators(
    name: str, port: Port, checkpoint: RandomCheckpoint | None, **limits: Any
) -> dict[str, Generates]:
    """A baseline that answers workloads, in each way to use it that its users would try.

    Args:
        name: one of `BASELINES`.
        checkpoint: whose weights are all drawn already; None if the weights are not random.
        limits: `rows` that run at a time, `room` for the tokens of the longest request, `threads` of all calls, and
            `quantization`, "4bit", "8bit" or None.

    Raises:
        ValueError: the weights are not random, or the baseline cannot run here.
    """
    module = module_of(name, port)
    if checkpoint is None:
        raise ValueError(f"--compare {name} shares random weights: add --random-weights, or --config NAME")
    return module.generators(name, checkpoint, **limits)
