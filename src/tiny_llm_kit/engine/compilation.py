"""Whether an engine compiles its model, and where the compiler keeps what it has made."""

import warnings

from tiny_llm_given.user_cache import user_cache

from ..solution_types import PackedBatch, ServingPackage
from .port import Port

BY_DEFAULT = ("hpu", "cuda")  # on a CPU and in MLX, compiling takes minutes and a C++ compiler

FREE_SHAPES = 4  # at most, of graphs that take any number of rows, see `shapes_without_buckets`


def will_compile(port: Port, enforce_eager: bool | None) -> bool:
    """Whether the engine compiles its model.

    Args:
        enforce_eager: True never compiles, False always, and None on the devices that gain most.

    Raises:
        ValueError: compilation is asked for, and something is missing on this machine. With None it warns instead.
    """
    if enforce_eager or (enforce_eager is None and port.device not in BY_DEFAULT):
        return False
    missing = port.given.cannot_compile(port.device)
    if missing is None:
        return True
    if enforce_eager is False:
        raise ValueError(f"enforce_eager=False: {missing}; or leave it out to run without compiling")
    warnings.warn(f"nothing is compiled, so steps take longer: {missing}", stacklevel=2)
    return False


def keep_compiled(port: Port) -> None:
    """Let the compiler keep its results from run to run in the user's cache folder, unless it has one already."""
    try:
        port.backend_module.keep_compiled(user_cache())
    except OSError:  # no home, or none that can be written: each run compiles again
        return


def shapes_without_buckets(
    names: ServingPackage, most: int, max_num_seqs: int, pad_block: int, block_size: int
) -> list[PackedBatch]:
    """Batches that warm up graphs for any number of rows: one row, several, and as many as a step has.

    Decodes have a context, so that the code that reads it is compiled as well. One row has a separate graph, and so
    have numbers of rows for which the model chooses another product, as it does for quantised weights.

    Args:
        names: of the solution's `serving`.
        most: tokens of a step.
        max_num_seqs: requests of a step.
    """
    decodes = [decodes_of_padding(names, count, pad_block, block_size) for count in {1, min(2, max_num_seqs)}]
    chunks = [rows_of_padding(names, count, pad_block * block_size) for count in {min(2, most), most}]
    return decodes + chunks


def decodes_of_padding(names: ServingPackage, count: int, pad_block: int, block_size: int) -> PackedBatch:
    """A warm-up batch: `count` decodes that read two tokens of the pad block, and write to it.

    Args:
        names: of the solution's `serving`.
    """
    context = 2  # three keys with the row itself: a compiler takes a size of 1 for a constant
    table = [pad_block] * -(-(context + 1) // block_size)
    return names.PackedBatch(
        [0] * count, [context] * count, [pad_block * block_size] * count, list(range(count + 1)), [context] * count,
        [table] * count, list(range(count)), [names.SamplingParams()] * count,
    )  # fmt: skip


def rows_of_padding(names: ServingPackage, count: int, pad_slot: int) -> PackedBatch:
    """A warm-up batch: one prompt of `count` tokens, whose keys and values go to the pad block.

    Args:
        names: of the solution's `serving`.
    """
    sampling = [names.SamplingParams()]
    return names.PackedBatch(
        [0] * count, list(range(count)), [pad_slot] * count, [0, count], [0], [[]], [count - 1], sampling
    )
