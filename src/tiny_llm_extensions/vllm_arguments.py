"""Arguments of vLLM's `LLM` that this engine does not have: those that may be given anyway, and why others may not.

`vllm serve`'s further flags are here too.
"""

import warnings
from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from typing import Any

from tiny_llm_engine.known_arguments import no_argument, rows_of, table, without_known

from .engine_options import EngineOptions

# Arguments of `LLM`, and flags of `vllm serve` besides those of `LLM`.
ARGUMENTS, SERVER_ARGUMENTS = table("llm"), table("serve")
ALONE = frozenset(
    name.rstrip("!") for kind in ("llm", "serve") for name, *_ in rows_of(kind) if name.endswith("!")
)
OF_LLM = ("model", "quantization", "head_quantization", "backend", "device", "dtype")
RENAMED = {"num_gpu_blocks_override": "num_blocks"}
DTYPES = {"half": "float16", "float": "float32"}  # vLLM's shorter names


def without_vllms(model: str | PathLike[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of this engine among the arguments of a script for vLLM. None is an option's default, as in vLLM.

    Says once, in a warning, which arguments change nothing here.

    Args:
        model: what `LLM` was asked for; a `tokenizer` must be the same.

    Raises:
        TypeError: neither has an argument.
        ValueError: an argument of vLLM's has a value that would change something.
    """
    known = {**ARGUMENTS, "tokenizer": ((str(model),), "the tokenizer is the model's own")}
    kept = without_known(options, known)
    ours = {*OF_LLM, *RENAMED, *(each.name for each in fields(EngineOptions))}
    for name in kept.keys() - ours:
        raise no_argument(name, ours)
    if ignored := options.keys() - kept.keys():
        warnings.warn(f"LLM: no effect here: {', '.join(sorted(ignored))}", stacklevel=3)
    return {RENAMED.get(name, name): value for name, value in kept.items() if value is not None}


def plain_dtype(dtype: Any) -> str:
    """The name of a type by vLLM's names, or of PyTorch's own type."""
    name = str(dtype).removeprefix("torch.")
    return DTYPES.get(name, name)
