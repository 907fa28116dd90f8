"""How large a chunk should be, by a rule of thumb: who waits, how long the prompt is, what memory is left."""

from collections.abc import Sequence
from typing import Protocol

SIZES = (32, 64, 128, 256, 512)


def check_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """A ladder of chunk sizes, from small to large, each a multiple of the first: so every offset is one too. Given.

    Raises:
        ValueError: it is no such ladder.
    """
    steps = tuple(sizes)
    if not steps or steps[0] < 1 or list(steps) != sorted(set(steps)):
        raise ValueError(f"sizes are {steps}: give at least one, each larger than the one before it")
    if any(size % steps[0] for size in steps):
        raise ValueError(f"sizes are {steps}: each must be a multiple of the first, {steps[0]}")
    return steps


# GIVEN: both policies of this day look sizes up.
def largest_size(sizes: Sequence[int], tokens: float) -> int:
    """The largest of the sizes that is not above `tokens`; 0 when all are."""
    return max((size for size in sizes if size <= tokens), default=0)


def select_optimal_chunk_size(
    sequence_length: int,
    available_memory: int,
    active_decode_requests: int,
    batch_size: int,
    sizes: Sequence[int] = SIZES,
) -> int:
    """The size of a prompt's next chunk. Small chunks keep gaps short; large ones compute the prompt sooner.

    With more than 80 % of the slots decoding 64 tokens, else for a prompt of more than 2,048 tokens 256, else 128; the
    next smaller size where the ladder has no such, or its smallest. With nothing decoding the largest: nobody waits.

    Args:
        sequence_length: tokens of the prompt that are not computed yet.
        available_memory: tokens whose keys and values can still be kept; none is left at 0 and below.
        active_decode_requests: requests that wait for their next token while the chunk runs.
        batch_size: how many there can be.
        sizes: the ladder, see `check_sizes`; on a Gaudi (128, 256, 512).

    Returns:
        A size of the ladder, never above `available_memory`; 0 when the prompt has to wait for memory. Only the end of
        a prompt that fits where no size does comes back as it is: `sequence_length`.

    Raises:
        ValueError: a number is out of range, or the prompt can never fit: nothing decodes that would give memory back.
    """
    sizes = check_sizes(sizes)
    _check(sequence_length, active_decode_requests, batch_size)
    # TASK 2.7.4: what can never fit is refused; then the rule of thumb, on the ladder; then what memory allows.
    # In whole numbers, 80 % of the slots is exact. A prompt that waits while nothing decodes would wait for ever.
    if active_decode_requests == 0 and sequence_length > available_memory:
        raise ValueError(
            f"{sequence_length} tokens of a prompt never fit into {max(available_memory, 0)}, and nothing decodes"
            " that would give memory back: shorten the prompt"
        )
    if active_decode_requests == 0:
        wanted = sizes[-1]
    elif 5 * active_decode_requests > 4 * batch_size:
        wanted = 64
    else:
        wanted = 256 if sequence_length > 2048 else 128
    if sequence_length <= available_memory < sizes[0]:
        return sequence_length
    return largest_size(sizes, min(available_memory, max(wanted, sizes[0])))


def _check(sequence_length: int, active_decode_requests: int, batch_size: int) -> None:
    """The numbers that mean nothing. Given."""
    if sequence_length < 1:
        raise ValueError(f"sequence_length is {sequence_length}: there is no token to compute")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: there must be at least 1 slot")
    if not 0 <= active_decode_requests <= batch_size:
        raise ValueError(f"active_decode_requests is {active_decode_requests}: give 0 to {batch_size}")


class Chunker(Protocol):
    """What chooses the size of every chunk while a scheduler serves; `AdaptiveChunker` is one. Given."""

    sizes: tuple[int, ...]

    def observe(self, chunk_size: int, seconds: float) -> None: ...

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int: ...


def chunker_step(chunker: Chunker, prompt_left: int, memory: int, running: int, slots: int) -> int:
    """What a chunker makes of the rule of thumb: tokens of the next chunk, 0 when it has to wait. Given."""
    base = select_optimal_chunk_size(prompt_left, memory, running, slots, chunker.sizes)
    if not base and not running:
        base = chunker.sizes[0]  # nobody will end, so waiting would be for ever
    return base and chunker.select_chunk_size(base, running / slots)
