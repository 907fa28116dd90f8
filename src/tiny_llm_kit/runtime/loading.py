"""From the options of a command to a model that runs: which port, which week's engine, the weights, the tokenizer."""

from dataclasses import dataclass
from os import PathLike
from typing import Any

from ..course.address import Day, Task
from ..course.learner import states
from ..model.checkpoint import load_checkpoint
from ..model.quantization import QUANTIZATIONS, Packing
from ..model.tokenizer import Tokenizer, load_tokenizer
from ..repo import installed_backends, learner_port, ports_of
from .model_runner import ModelRunner
from .port import Port
from .solution import SOLUTIONS


@dataclass(frozen=True)
class Loader:
    """The engine of one week.

    Args:
        model: the name of its model.
        generate: the name of its generator for one prompt.
        last_day: the last day whose code a greedy answer needs.
        has_caches: whether the model can be given to a runner, which serves many prompts.
    """

    model: str
    generate: str
    last_day: Day
    has_caches: bool


# The newest last.
LOADERS = {
    "week1": Loader("Qwen3ModelWeek1", "simple_generate", Day(1, 6), has_caches=False),
    "week2": Loader("Qwen3ModelWeek2", "simple_generate_with_kv_cache", Day(2, 1), has_caches=True),
}


PACKED_WEIGHTS, FUSED_ATTENTION = Day(2, 3), Day(2, 5)
CHUNK_MASK = Task(2, 7, 6)


def choose_backend(solution: str, wanted: str) -> str:
    """`auto` is the learner's port; the reference takes any other that is installed, where that one is not."""
    if wanted != "auto":
        return wanted
    port, installed = ports_of(learner_port())[0], installed_backends()
    must_be_theirs = SOLUTIONS[solution] == "tiny_llm" or port in installed or not installed
    return port if must_be_theirs else installed[0]


def choose_loader(solution: str, backend: str, wanted: str) -> str:
    """`auto` is the newest engine whose own day is filled: of the learner's code, until Day 2.1, that of Week 1."""
    if wanted != "auto":
        return wanted
    blank = blank_days(solution, backend)
    return next(
        (name for name in reversed(LOADERS) if LOADERS[name].last_day not in blank), next(iter(LOADERS))
    )


def blank_days(solution: str, backend: str) -> set[Day]:
    """The days of which a task is blank; of the reference, none."""
    return {task.of_day for task in blank_tasks(solution, backend)}


def blank_tasks(solution: str, backend: str) -> set[Task]:
    """The tasks that are blank; of the reference, none."""
    if SOLUTIONS[solution] != "tiny_llm":
        return set()
    return {state.task for state in states([backend]) if state.status == "blank"}


def load_network(
    port: Port, model: str | PathLike[str], loader: str, quantize: str | None = None
) -> tuple[Any, Tokenizer]:
    """A week's model with its weights on the port's device, and the tokenizer that belongs to it.

    Of Week 2 on, packed weights stay packed once Day 2.3 is filled, and attention is the device's once Day 2.5 is.

    Raises:
        CheckpointError: the model's files are unusable, or not here.
        ValueError: `quantize`, and an engine that reads plain weights only.
    """
    week = LOADERS[loader]
    if quantize and not week.has_caches:
        raise ValueError(
            f"--quantize {quantize}: the engine of {loader} reads plain weights: choose --loader week2"
        )
    blank = blank_days(port.solution.__name__.split(".")[0], port.name)
    keeps_packed = week.has_caches and (quantize or PACKED_WEIGHTS not in blank)
    packing = Packing(port, QUANTIZATIONS.get(quantize)) if keeps_packed else None
    tokenizer = load_tokenizer(model)
    weights = load_checkpoint(model, port.name, port.device, port.float_dtype, packing)
    fused = {"attention": "device"} if week.has_caches and FUSED_ATTENTION not in blank else {}
    return getattr(port, week.model)(weights, **fused), tokenizer


def load(
    model: str | PathLike[str] = "tiny-qwen3",
    *,
    solution: str = "ref",
    backend: str = "auto",
    device: str = "auto",
    dtype: str = "auto",
    loader: str = "auto",
    quantize: str | None = None,
    seed: int = 0,
    **options: Any,
) -> tuple[ModelRunner, Tokenizer]:
    """A model ready to be served: what schedulers, `Request` and `batch_generate` take.

    The mask of a prompt's chunks is the solution's own once Task 2.7.6 is filled; until then, the cache's.

    Args:
        model: a shipped name, a folder or a hub id; see `hub.model_folder`.
        solution: "ref" or "tiny_llm", whose code runs.
        backend: "mlx" or "torch"; "auto" is the learner's port, see `choose_backend`.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        loader: "week2"; "auto" is the newest one.
        quantize: "4bit" or "8bit": packs the layers' weights at load; None leaves them as they are.
        seed: of the random draws.
        options: of the runner, as `ModelRunner` has them.

    Raises:
        CheckpointError: the model's files are unusable, or not here.
        ValueError: no such device here, or the engine of that week keeps no cache.
    """
    loader = next(reversed(LOADERS)) if loader == "auto" else loader
    if not (loader in LOADERS and LOADERS[loader].has_caches):
        with_caches = ", ".join(name for name in LOADERS if LOADERS[name].has_caches)
        raise ValueError(f"loader {loader!r}: a runner needs an engine with caches: {with_caches}")
    port = Port(SOLUTIONS[solution], choose_backend(solution, backend), device, dtype)
    port.seed(seed)
    network, tokenizer = load_network(port, model, loader, quantize)
    if CHUNK_MASK not in blank_tasks(solution, port.name):
        options = {"chunk_mask": port.chunked_attention_mask, **options}
    return port.runner(network, **options), tokenizer
