"""The options of the benchmark commands: those that all have, and the fields of a plan."""

import argparse
import os
import re
from dataclasses import field, fields
from typing import Any, TypeVar

from tiny_llm_kit.engine.arguments import DEVICES, output_argument, whole_number
from tiny_llm_kit.engine.port import SOLUTIONS
from tiny_llm_kit.repo import BACKENDS
from tiny_llm_kit.trace import provenance

Plan = TypeVar("Plan")
COUNT, COUNTS = {"type": whole_number(1)}, {"type": whole_number(1), "nargs": "+"}


def option(default: Any, says: str = "", **argument: Any) -> Any:
    """A field of a plan that is an option of its command as well; `argument` is what argparse takes."""
    return field(default=default, metadata={"help": says, **argument})


def threads_option() -> Any:
    """Numbers of threads, each of which is measured."""
    return option(tuple(sorted({1, os.cpu_count() or 1})), "each is measured; the best is shown", **COUNTS)


def bench_parser(
    kind: str, description: str, plan: type, backends: tuple[str, ...] = ()
) -> argparse.ArgumentParser:
    """The options of `pdm run bench-KIND`.

    Args:
        plan: whose options there are.
        backends: choices of a port, the default first; none where no model runs.
    """
    top = argparse.ArgumentParser(prog=f"pdm run bench-{kind}", description=description, allow_abbrev=False)
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    if backends:
        add("--backend", default=backends[0], choices=sorted({*backends, *BACKENDS}))
        add("--device", default="auto", choices=DEVICES)
    for each in fields(plan):
        if each.metadata:
            default = list(each.default) if isinstance(each.default, tuple) else each.default
            add(f"--{each.name.replace('_', '-')}", default=default, **each.metadata)
    says = "keep the sealed result as benchmark_results/NAME.json"
    add("--save", type=result_argument, metavar="NAME", help=says)
    return top


def result_argument(text: str) -> str:
    """The name of a sealed result, whose file can be written."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: use letters, digits, and . _ - between them"
        )
    provenance.RESULTS.mkdir(exist_ok=True)
    output_argument(str(provenance.RESULTS / f"{text}.json"))
    return text


def check_context(tokens: int, longest: int) -> None:
    """Refuses what is longer than the model reads: some kernels would read past the end of their tables.

    Raises:
        ValueError: `tokens` are more than `longest`.
    """
    if tokens > longest:
        raise ValueError(
            f"{tokens:,} tokens with the answer: the model reads at most {longest:,}; choose fewer"
        )


def plan_of(plan: type[Plan], options: argparse.Namespace, **others: Any) -> Plan:
    """The plan that was asked for; `others` are fields that are no options, or not as they were typed."""
    typed = {each.name: getattr(options, each.name) for each in fields(plan) if hasattr(options, each.name)}
    values = {**typed, **others}
    return plan(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})
