"""Types of command-line arguments. argparse shows the message of an ArgumentTypeError, and of no other error."""

import argparse
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

from tiny_llm_engine.machine.repo import BACKENDS, IN_CHECKOUT
from tiny_llm_engine.models.quantization import QUANTIZATIONS
from tiny_llm_engine.solutions.solution import SOLUTIONS, llm_class

if TYPE_CHECKING:
    from .llm import LLM

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "gpu", "cuda", "hpu")
WEEK_3 = ("enforce_eager", "activations", "tensor_parallel_size", "enable_expert_parallel")


def model_argument(text: str) -> str:
    """A model's name. An empty one would be the current folder.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("is empty: give a shipped name, a folder, a GGUF file or a hub id")
    return text


def text_argument(text: str) -> str:
    """A text. Bytes that are not UTF-8 become U+FFFD: as surrogates, no tokenizer would take them."""
    return os.fsencode(text).decode(errors="replace")


def stop_argument(text: str) -> str:
    """A stop string. An empty one would end every text before it begins.

    Raises:
        argparse.ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("is empty: every answer would end before it begins")
    return text_argument(text)


def output_argument(text: str) -> Path:
    """A file that the command will write.

    It is opened now, so that a wrong path does not lose the results at the command's end.

    Raises:
        argparse.ArgumentTypeError: it cannot be written.
    """
    file = Path(text)
    try:
        existed = file.exists()
        file.open("a").close()
        if not existed:
            file.unlink()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be written ({error.strerror})") from None
    return file


def positive_number(text: str) -> float:
    """A number above 0, and finite.

    Raises:
        argparse.ArgumentTypeError: the text is not such a number.
    """
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def add_port_arguments(parser: argparse.ArgumentParser, solution: str) -> None:
    """Add the options for the solution, the port and the device; `solution` is the default."""
    add = parser.add_argument
    add(
        "--solution",
        default=solution,
        choices=sorted(SOLUTIONS),
        help=f"whose code: tiny_llm is yours; default: {solution}" if IN_CHECKOUT else argparse.SUPPRESS,
    )
    add("--backend", default="auto", choices=["auto", *BACKENDS], help="auto: the port you work on")
    add("--device", default="auto", choices=DEVICES)


def add_model_arguments(parser: argparse.ArgumentParser, solution: str) -> None:
    """Add the options for the solution, the port, the device, the model and its numbers."""
    add_port_arguments(parser, solution)
    add_field_arguments(parser, ModelOptions)


def add_week3_arguments(parser: argparse.ArgumentParser) -> None:
    """Add some options of Week 3's engine alone, see `WEEK_3`."""
    from .engine_options import EngineOptions

    group = parser.add_argument_group("the engine of Week 3", "see the documentation of `LLM`")
    add_field_arguments(
        group, EngineOptions, [each.name for each in fields(EngineOptions) if each.name not in WEEK_3]
    )


def week3_options(options: argparse.Namespace) -> dict[str, Any]:
    """The values given for these options, and the seed."""
    return {name: getattr(options, name) for name in (*WEEK_3, "seed")}


def check_engine_arguments(options: argparse.Namespace) -> None:
    """Raise ValueError if the chosen engine does not have these options."""
    from .engine_options import EngineOptions

    for name in WEEK_3:
        if options.loader != "week3" and getattr(options, name) != getattr(EngineOptions, name):
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"{flag} is an option of Week 3's engine: add --loader week3")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for drawing tokens and for their number."""
    add = parser.add_argument
    add("--max-tokens", type=whole_number(1), default=256, metavar="N", help="maximum tokens per answer")
    add("--temperature", type=float, default=0.0, help="0 is greedy")
    add("--top-p", type=float, help="with a temperature: draw from the nucleus of this probability")
    add("--top-k", type=int, help="with a temperature: draw from this many tokens")
    add("--seed", type=whole_number(0), default=0, help="seed of the random draws")


def add_engine_arguments(parser: argparse.ArgumentParser, **defaults: Any) -> None:
    """Add an option for each field of `EngineOptions`, which checks the values; `defaults` replace its own."""
    from .engine_options import EngineOptions

    group = parser.add_argument_group("engine", "the options of `LLM`; see its documentation")
    add_field_arguments(group, EngineOptions, **defaults)


def add_field_arguments(
    group: argparse._ActionsContainer, kind: type, apart: Sequence[str] = (), **defaults: Any
) -> None:
    """Add an option for each field of a dataclass: its documentation is the help.

    Args:
        kind: the dataclass.
        apart: names of fields that are left out.
        defaults: instead of those of the fields.
    """
    for each in fields(kind):
        if each.name in apart:
            continue
        default, about = defaults.get(each.name, each.default), described(kind, each.name)
        shown = " ".join(map(str, default)) or None if isinstance(default, tuple) else default
        if default is not None or "None" in about:
            about += f"; default: {shown}"
        more = {"default": default, "help": about} | argument_kind(each.type)
        group.add_argument(f"--{each.name.replace('_', '-')}", **more)


def described(kind: type, name: str) -> str:
    """What the documentation of a dataclass says about a field, for `--help`."""
    documents = "\n\nRaises\n".join(filter(None, (each.__doc__ for each in kind.__mro__)))
    found = re.search(rf"^        {name}: (.+?)(?=^        \w+: |^ {{0,4}}\w)", documents, re.M | re.S)
    about = " ".join(found[1].split()) if found else ""
    return about.removesuffix(".").replace("%", "%%")


def argument_kind(annotation: Any) -> dict[str, Any]:
    """How argparse reads an option, by the annotation of its field: `int | None`, or `Annotated` with what it takes."""
    if get_origin(annotation) is Annotated:
        return annotation.__metadata__[0]
    name = str(annotation)
    if "bool" in name:
        return {"action": argparse.BooleanOptionalAction}
    if "tuple" in name:
        return {"nargs": "+", "type": json_texts, "metavar": "TEXT"}
    if "Mapping" in name:
        return {"type": json_object}
    return {"type": whole_number(0) if "int" in name else float if "float" in name else str}


def json_texts(text: str) -> list[str]:
    """Texts: a list in JSON, as vLLM has it, or one text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else [text]


def json_object(text: str) -> dict[str, Any]:
    """An object in JSON.

    Raises:
        argparse.ArgumentTypeError: the text is not a JSON object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no object in JSON, such as \'{{"method": "ngram"}}\'')
    return value


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """The values given for the options of `add_engine_arguments`.

    Raises:
        ValueError: a value is out of range.
    """
    from .engine_options import EngineOptions  # here, because `--help` of other commands needs none of it

    chosen = {each.name: getattr(options, each.name) for each in fields(EngineOptions)}
    EngineOptions(**chosen)  # checks them, before a model is loaded
    return chosen


def open_llm(options: argparse.Namespace, **engine: Any) -> "LLM":
    """The `LLM` that a command's options ask for; `engine` are the engine's own options."""
    return llm_class(SOLUTIONS[options.solution])(
        options.model,
        quantization=options.quantize,
        backend=options.backend,
        device=options.device,
        dtype=options.dtype,
        **engine,
    )


def whole_number(smallest: int, largest: int = 2**63 - 1) -> Callable[[str], int]:
    """The type of a whole number within these bounds; the integers of array libraries end at 2⁶³ - 1.

    Raises:
        argparse.ArgumentTypeError: raised by the type for any other text.
    """

    def parse(text: str) -> int:
        digits = text.isdecimal() and len(text) <= len(str(largest))  # Python refuses to convert 5000 digits
        if not digits or not smallest <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {smallest} to {largest}")
        return int(text)

    return parse


# Annotations of options, with what argparse takes for them.
Count = Annotated[int, {"type": whole_number(1), "metavar": "N"}]
OptionalCount = Annotated[int | None, {"type": whole_number(1), "metavar": "N"}]
OutputFile = Annotated[Path | None, {"type": output_argument, "metavar": "FILE"}]
Texts = Annotated[list[str] | None, {"type": text_argument, "action": "append", "metavar": "TEXT"}]


@dataclass
class ModelOptions:
    """What is loaded.

    Args:
        model: a shipped name, a folder, a GGUF file or a hub id.
        dtype: of the numbers that are computed.
        quantize: quantise the layers' weights to few bits while loading (Day 2.3).
    """

    model: Annotated[str, {"type": model_argument}] = "tiny-qwen3"
    dtype: Annotated[str, {"choices": DTYPES}] = "auto"
    quantize: Annotated[str | None, {"choices": QUANTIZATIONS}] = None
