"""Types of options that vLLM's `bench serve` has: what they are typed as, and what they mean."""

import json
from argparse import ArgumentTypeError
from collections.abc import Iterable
from typing import Any

from .report import METRICS


def pair(text: str) -> tuple[str, str]:
    """A header as NAME=VALUE. Raises ArgumentTypeError without a name."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    return name, value


def headers_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by name; of the same name the last one counts."""
    return dict(pairs)


def json_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises ArgumentTypeError for other texts."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text!r}: give a JSON object")
    return found


def share(text: str) -> float:
    """A number from 0 to below 1. Raises ArgumentTypeError for others."""
    found = number(text)
    if not 0 <= found < 1:
        raise ArgumentTypeError(f"{text!r}: give a number from 0 to below 1")
    return found


def metric_names(text: str) -> tuple[str, ...]:
    """Names of latencies between commas. Raises ArgumentTypeError for another name."""
    names = tuple(text.split(","))
    if not set(names) <= METRICS.keys():
        raise ArgumentTypeError(f"{text!r}: choose from {','.join(METRICS)}")
    return names


def percentiles(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 100 between commas. Raises ArgumentTypeError for others."""
    found = tuple(map(number, text.split(",")))
    if not all(0 <= each <= 100 for each in found):
        raise ArgumentTypeError(f"{text!r}: give numbers from 0 to 100 between commas")
    return found


def number(text: str) -> float:
    """A number. Raises ArgumentTypeError for other texts."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: give a number") from None
