"""Options of the benchmark commands: those that all have, and the fields of a plan."""

import argparse
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from tiny_llm_course.trace.provenance import result_argument
from tiny_llm_engine.machine.repo import BACKENDS
from tiny_llm_engine.solutions.solution import SOLUTIONS
from tiny_llm_extensions.arguments import DEVICES, output_argument, whole_number

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Plan = TypeVar("Plan", bound="DataclassInstance")


def option(default: Any, help: str = "", **argument: Any) -> Any:
    """A field of a plan that is also an option of its command.

    `argument` is what argparse takes, and `also`, further names of the option.
    """
    return field(default=default, metadata={"help": help, **argument})


def count(default: int | None, help: str = "", least: int = 1, **argument: Any) -> Any:
    """An option that is a number of at least 1, or of at least `least`."""
    return option(default, help, type=whole_number(least), metavar="N", **argument)


def counts(default: tuple[int, ...], help: str) -> Any:
    """An option that takes several such numbers."""
    return option(default, help, type=whole_number(1), nargs="+", metavar="N")


def flag(help: str) -> Any:
    """An option that is False unless it is given."""
    return option(False, help, action="store_true")


def switch(default: bool | None, help: str) -> Any:
    """An option with its opposite, `--no-…`."""
    return option(default, help, action=argparse.BooleanOptionalAction)


def bench_parser(
    kind: str,
    description: str | None,
    plan: type,
    *parents: argparse.ArgumentParser,
    has_model: bool = True,
    backend_option: str = "--backend",
) -> argparse.ArgumentParser:
    """The options of `pdm run bench-KIND`: those of `parents`, of all benchmarks, and the fields of `plan`."""
    top = argparse.ArgumentParser(
        prog=f"pdm run bench-{kind}", description=description, parents=parents, allow_abbrev=False
    )
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    if has_model:
        add(backend_option, dest="backend", default="auto", choices=["auto", *BACKENDS])
        add("--device", default="auto", choices=DEVICES)
    for each in fields(plan):
        if each.metadata:
            argument = dict(each.metadata)
            names = f"--{each.name.replace('_', '-')}", *argument.pop("also", ())
            add(*names, dest=each.name, default=each.default, **argument)
    add("--json", type=output_argument, metavar="FILE", help="also write every figure there")
    add("--save", type=result_argument, metavar="NAME", help="keep the result, sealed, in benchmark_results/")
    return top


def plan_of(plan: type[Plan], options: argparse.Namespace, **others: Any) -> Plan:
    """The plan that was asked for; `others` are fields that are not options, or not as they were typed."""
    typed = {each.name: getattr(options, each.name) for each in fields(plan) if hasattr(options, each.name)}
    values = typed | others
    return plan(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def plain(plan: Any) -> dict[str, Any]:
    """The fields of a plan as JSON has them."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(plan).items()}


def check_context(tokens: int, longest: int) -> None:
    """Refuse what is longer than the model reads: some kernels would read past the end of their tables.

    Raises:
        ValueError: `tokens` are more than `longest`.
    """
    if tokens > longest:
        raise ValueError(
            f"{tokens:,} tokens with the answer: the model reads at most {longest:,}; choose fewer"
        )
