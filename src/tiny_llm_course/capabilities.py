"""The capabilities of the learner's code, by port: a command checks them before it loads a model.

One table says which days a capability needs. Loading takes it as plain arguments (`load`); the commands take from it
the blank days that they can do without (`unused_days`).
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_llm_engine.machine.installation import backend_of_environment, default_port, installed_backends
from tiny_llm_engine.machine.repo import BACKENDS, PRIVATE, SETTINGS
from tiny_llm_engine.machine.terminal import ends_at
from tiny_llm_engine.solutions.solution import SOLUTIONS

from .address import Day, Task, task_of_label
from .answers import port_with_answers
from .tree import ANSWERS, PARTS

if TYPE_CHECKING:
    from tiny_llm_engine.chunked_prefill.model_runner import ModelRunner
    from tiny_llm_engine.models.tokenization import Tokenizer

# Capability -> the days or tasks that it is written in. The last of them switches it on.
CAPABILITIES: dict[str, tuple[Day | Task, ...]] = {
    "week1": (Day(1, 6),),  # simple_generate
    "week2": (Day(2, 1),),  # a cache
    "sampling": (Day(1, 7),),
    "quantization": (Day(2, 2), Day(2, 3)),
    "device attention": (Day(2, 4), Day(2, 5)),
    "chunk mask": (Task(2, 7, 6),),
    "week3": (Day(3, 3),),  # hybrid batches
    "buckets": (Day(3, 4),),
}
LOADERS = ("week1", "week2", "week3")
AUTO_LOADERS = LOADERS[:2]  # those that `auto` takes, the newest last


def learner_port() -> str:
    """The port this learner works on: `mlx`, `torch` or `both`; the environment's, if it names one.

    Of a learner who has chosen none, it is that with answers.
    """
    if (named := environment_port()) != "auto":
        return named
    try:
        port = json.loads(SETTINGS.read_text(encoding="utf-8"))["port"]
        if port not in (*BACKENDS, "both"):
            raise ValueError(port)
    except FileNotFoundError:
        return port_with_answers() or default_port()
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise SystemExit(f"{SETTINGS}: not a settings file; delete it to start with the defaults") from None
    return port


@ends_at(ValueError)
def environment_port() -> str:
    """The port that `TINY_LLM_BACKEND` names, or "auto"; a wrong name ends the command with one line.

    Raises:
        SystemExit: there is no such port.
    """
    return backend_of_environment()


def set_learner_port(port: str) -> None:
    PRIVATE.mkdir(exist_ok=True)
    SETTINGS.write_text(json.dumps({"port": port}) + "\n", encoding="utf-8")


def ports_of(choice: str) -> list[str]:
    """The ports that a name stands for: `both` is mlx and torch, `all` every port installed here."""
    if choice == "all":
        return installed_backends()
    return list(BACKENDS) if choice == "both" else [choice]


def tested_ports(choice: str | None) -> list[str]:
    """The ports of a command that runs on all of them, unless an option or the environment names one."""
    named = environment_port()
    return ports_of(choice or ("all" if named == "auto" else named))


def choose_backend(solution: str, wanted: str) -> str:
    """Resolve `auto` to the learner's port.

    The reference falls back to any installed port.
    """
    if wanted == "auto":
        wanted = environment_port()
    if wanted != "auto":
        return wanted
    port, installed = ports_of(learner_port())[0], installed_backends()
    must_be_theirs = SOLUTIONS[solution] == "tiny_llm" or port in installed or not installed
    return port if must_be_theirs else installed[0]


def blank_tasks(solution: str, backend: str) -> set[Task]:
    """The blank tasks of a solution; the reference has none."""
    if SOLUTIONS[solution] != "tiny_llm":
        return set()
    return {state.task for state in states([backend]) if state.status == "blank"}


def states(parts: Collection[str]) -> list:
    """The state of every task, see `learner.states`.

    Imported on first use, because it parses the learner's files.
    """
    from . import learner

    return learner.states(parts)


def has(capability: str, blank: Collection[Task]) -> bool:
    """Whether the last day, or the task, of a capability has no blank."""
    last = CAPABILITIES[capability][-1]
    return not any(last in (task, task.of_day) for task in blank)


def choose_loader(solution: str, backend: str, wanted: str) -> str:
    """Resolve `auto` to the newest engine whose own day is filled.

    It is Week 1's until the learner has filled Day 2.1.
    """
    if wanted != "auto":
        return wanted
    blank = blank_tasks(solution, backend)
    return next((name for name in reversed(AUTO_LOADERS) if has(name, blank)), LOADERS[0])


def load_options(solution: str, backend: str) -> dict[str, Any]:
    """Options of `engine.loading.load` for this solution, without what is still blank."""
    blank = blank_tasks(solution, backend)
    return {
        "keep_quantized": has("quantization", blank),
        "attention": "device" if has("device attention", blank) else "simple",
        "chunk_mask": has("chunk mask", blank),
    }


def network_options(solution: str, backend: str) -> dict[str, Any]:
    """Options of `engine.loading.load_network` for this solution."""
    options = load_options(solution, backend)
    return {name: value for name, value in options.items() if name != "chunk_mask"}  # of a runner of Week 2


def engine_options(solution: str, backend: str) -> dict[str, Any]:
    """Options of the engine for this solution: it compiles nothing before there are buckets."""
    return {} if has("buckets", blank_tasks(solution, backend)) else {"enforce_eager": True}


def check_filled(solution: str, backend: str, day: Day, option: str) -> None:
    """Raise ValueError if a task of a day is blank that an option needs: the engine would end at its first step."""
    blank = {task.of_day for part in (backend, "serving") for task in blank_tasks(solution, part)}
    if day in blank:
        raise ValueError(f"{option} is Day {day}, which has a blank task: fill it, or leave {option} out")


def load(
    model: str | PathLike[str] = "tiny-qwen3", *, solution: str = "ref", backend: str = "auto", **options: Any
) -> tuple[ModelRunner, Tokenizer]:
    """Load a model to be served by a solution, as far as that is filled. Public as `tiny_llm_course.load`.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id; see `hub.find_model`.
        solution: "ref" or "tiny_llm", whose code runs.
        backend: "mlx" or "torch"; "auto" is the learner's port, see `choose_backend`.
        options: see `loading.load`.

    Raises:
        CheckpointError: the model's files are missing or unusable.
        ValueError: no such device here.
    """
    from tiny_llm_extensions import loading

    backend = choose_backend(solution, backend)
    options = {**load_options(solution, backend), **options}
    return loading.load(model, solution=solution, backend=backend, **options)


def needed_day(*capabilities: str) -> Day:
    """The last day that these capabilities need."""
    return max(Day(*address[:2]) for name in capabilities for address in CAPABILITIES[name])


def unused_days(*used: str) -> list[Day]:
    """Days that a command does not need: those of capabilities that it can switch off."""
    optional = {"sampling", "quantization", "device attention"} - set(used)
    addresses = (address for name in CAPABILITIES if name in optional for address in CAPABILITIES[name])
    return [address for address in addresses if isinstance(address, Day)]


@contextmanager
def ends_at_a_blank(needs: Day, unused: Collection[Day] = ()) -> Iterator[None]:
    """End the command at a blank task with one line: the task, how to fill it, how to see the reference.

    Args:
        needs: the last day whose code the command runs.
        unused: earlier days that it does without; one may be blank and yet is not what stopped it.
    """
    try:
        yield
    except NotImplementedError as blank:
        found = task_of_label(str(blank))
        if found is None:
            raise
        fills, first = max(needs, found[0].of_day), _first_blank(_part_of(blank), unused)
        reference = (
            f"; `pdm run course skip --through {fills}` fills all that this command needs; `--solution ref` shows the "
            "reference instead"
        )
        has_reference = ANSWERS.is_dir()  # a copy that a teacher hands out may be without
        sys.exit(
            f"blank: {first or blank}. Its chapter is in `pdm run book`{reference if has_reference else ''}"
        )


def _part_of(blank: NotImplementedError) -> str | None:
    """The part of the solution whose file raised."""
    folder = Path(traceback.extract_tb(blank.__traceback__)[-1].filename).parent.name
    return {name: part for part, name in PARTS.items()}.get(folder)


def _first_blank(part: str | None, unused: Collection[Day]) -> str | None:
    """The address of the earliest blank task; a later one may be what stopped the command."""
    blanks = [state for state in states([part] if part else []) if state.status == "blank"]
    blanks = [state for state in blanks if state.task.of_day not in unused]
    return blanks[0].task.label(blanks[0].names[0]) if blanks else None
