"""`pdm run doctor --model`: where the memory of an engine is, one line for each part."""

from functools import partial
from types import ModuleType
from typing import Any

from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.machine.ram import resident_bytes
from tiny_llm_engine.solutions.backend import load_backend
from tiny_llm_extensions.llm import LLM


def report(model: str, backend: str) -> list[str]:
    """The memory of an engine with default options, a line for each part, in MB; on CUDA also its attention.

    Raises:
        As `LLM`.
    """
    load_backend(backend)
    before = resident_bytes()
    with LLM(model, backend=backend) as llm:
        sizes = {"Python and libraries": before, **parts_of(llm.engine), "resident in all": resident_bytes()}
        growing, attention = map(llm.engine.extensions.get, ("growing", "attention"))
        about = {
            "KV pool": growing.in_words() if growing else "",
            "output head": "nothing if it is the embedding",
        }
    lines = [
        f"{name:22}{size / 1e6:9,.1f} MB  {about.get(name, '')}".rstrip()
        for name, size in sizes.items()
        if size is not None
    ]
    return lines if attention is None else [*lines, f"{'attention':22}{attention}"]


def parts_of(engine: LLMEngine) -> dict[str, int]:
    """Bytes of the arrays of each part. What two parts share counts for the first one."""
    model, seen = engine.network, set[int]()
    parts = {
        "RoPE's tables": model.rope,
        "embedding": model.embedding,
        "output head": model.w_lm_head,
        "layers": [model.layers, model.norm],
        "KV pool": [pool.arrays for pool in engine.runner.pools],
    }
    return {name: bytes_below(part, seen) for name, part in parts.items()}


def bytes_below(root: Any, seen: set[int]) -> int:
    """Bytes of all arrays that can be reached from an object, and were not seen before."""
    total, waiting = 0, [root]
    while waiting:
        each = waiting.pop()
        key = each.data_ptr() if hasattr(each, "data_ptr") else id(each)
        if key in seen or isinstance(each, type | ModuleType):
            continue
        seen.add(key)
        if hasattr(each, "nbytes") and hasattr(each, "dtype") and hasattr(each, "ndim"):
            total += each.nbytes
        elif isinstance(each, list | tuple):
            waiting.extend(each)
        elif isinstance(each, partial):  # a plain matrix, which is bound to its operation
            waiting.append(each.keywords)
        else:
            waiting.extend((each if isinstance(each, dict) else getattr(each, "__dict__", {})).values())
    return total
