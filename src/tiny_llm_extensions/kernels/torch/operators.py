"""Operators of our own: a compiler calls them as they are, and does not look into them."""

from collections.abc import Callable
from typing import Any

import torch

_library = torch.library.Library("tiny_llm", "FRAGMENT")


def operator(schema: str, run: Callable[..., torch.Tensor], shape: Callable[..., torch.Tensor]) -> Any:
    """An operator, defined once in this process.

    Args:
        schema: its name and arguments, as torch writes them.
        run: computes it.
        shape: takes the same arguments, and returns an array of the result's shape and type.
    """
    name = schema.partition("(")[0]
    if not hasattr(torch.ops.tiny_llm, name):
        _library.define(schema)
        _library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tiny_llm::{name}", shape, lib=_library)
    return getattr(torch.ops.tiny_llm, name).default
