"""Arguments of vLLM that have no effect here: the values that may be given anyway, and why others may not. Given.

The table is `vllm_arguments.txt`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

TABLES = Path(__file__).with_name("vllm_arguments.txt")
ANYTHING = (...,)
# For each argument the values that change nothing here (None never does), and the reason.
Table = Mapping[str, tuple[tuple[Any, ...], str]]


def check_argument(name: str, value: Any, values: tuple[Any, ...], reason: str) -> None:
    """Check that a value of an argument changes nothing.

    Raises:
        ValueError: it would; the line gives the reason.
    """
    value = str(value) if isinstance(value, PathLike) else value
    value = list(value) if isinstance(value, (tuple, set)) else value
    if (
        value is None
        or values is ANYTHING
        or any(type(value) is type(each) and value == each for each in values)
    ):
        return
    instead = f", or give {values[0]!r}" if values else ""
    raise ValueError(f"{name} is {repr(value)[:80]}: {reason}; leave it out{instead}")


def without_known(given: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The arguments that are not in the table; those that are change nothing.

    Raises:
        ValueError: one of them would.
    """
    for name in sorted(given.keys() & table.keys()):
        check_argument(name, given[name], *table[name])
    return {name: value for name, value in given.items() if name not in table}


def no_argument(name: str, known: Iterable[str]) -> TypeError:
    """The error for an argument that does not exist; it names the one that is most alike."""
    alike = get_close_matches(name, list(known), 1, cutoff=0.45)
    return TypeError(f"there is no argument {name}" + "".join(f": do you mean {each}?" for each in alike))


def rows_of(kind: str) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    """The rows of one kind of `vllm_arguments.txt`: each name, the values that change nothing, and the reason."""
    for line in TABLES.read_text(encoding="utf-8").splitlines():
        of, _, row = line.partition(" | ")
        if of == kind:
            names, values, reason = map(str.strip, row.split("|"))
            known = ANYTHING if values == "*" else tuple(json.loads(f"[{values}]"))
            yield from ((name, known, reason) for name in names.split())


def table(kind: str) -> Table:
    """The table of one kind of arguments."""
    return {name.rstrip("!"): (values, reason) for name, values, reason in rows_of(kind)}


def takes_known(of: Table) -> Callable[[type[T]], type[T]]:
    """Lets a class be made with the arguments of a table too, whose values change nothing."""

    def decorated(kind: type[T]) -> type[T]:
        made = kind.__init__

        @wraps(made)
        def init(self: T, *arguments: Any, **given: Any) -> None:
            kept, known = without_known(given, of), vars(kind)["__dataclass_fields__"]
            for name in kept.keys() - known.keys():
                raise no_argument(name, known)
            made(self, *arguments, **kept)

        kind.__init__ = init
        return kind

    return decorated


def check_call(given: Mapping[str, Any]) -> None:
    """Check further arguments of `generate` and `chat`.

    Raises:
        TypeError: vLLM has no such argument either.
        ValueError: its value would change something.
    """
    for name, value in given.items():
        if name not in CALL_ARGUMENTS:
            raise TypeError(f"there is no argument {name}: SamplingParams has what concerns an answer")
        check_argument(name, value, *CALL_ARGUMENTS[name])


OF_SAMPLING, OF_STRUCTURED_OUTPUTS, CALL_ARGUMENTS = map(table, ("sampling", "structured", "call"))
