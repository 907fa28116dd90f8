"""Chunks of a prompt, and their size by a rule of thumb: who waits, how long the prompt is, how much memory is left."""

from collections.abc import Sequence
from dataclasses import dataclass

from tiny_llm_engine.chunked_prefill.chunk_sizes import SIZES, Chunker, check_sizes, largest_size


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt, computed in one step of the model.

    Args:
        start: number of prompt tokens before it.
        size: number of tokens in it.
        prompt_len: number of tokens in the whole prompt.
    """

    start: int
    size: int
    prompt_len: int

    @property
    def stop(self) -> int:
        """Number of prompt tokens up to the end of the chunk."""
        return self.start + self.size

    @property
    def is_last(self) -> bool:
        """Whether it ends the prompt, so that the first new token follows."""
        return self.stop == self.prompt_len


def next_chunk(offset: int, prompt_len: int, max_step: int) -> Chunk:
    """The next chunk of a prompt, after `offset` tokens (Agrawal et al., 2023).

    Args:
        offset: number of tokens that were computed already.
        prompt_len: number of tokens in the prompt.
        max_step: maximum number of tokens in a chunk.

    Raises:
        ValueError: the prompt is empty, `max_step` is not positive, or `offset` is not inside the prompt.
    """
    # TASK 2.7.1: raise if there is no next chunk; shorten the last one, so that it ends where the prompt ends.
    # An empty chunk has no last token, so there would be nothing to choose the next token from.
    if prompt_len < 1:
        raise ValueError(f"prompt_len is {prompt_len}: a prompt has at least 1 token")
    if max_step < 1:
        raise ValueError(f"max_step is {max_step}: a chunk has at least 1 token")
    if not 0 <= offset < prompt_len:
        raise ValueError(f"offset is {offset}: a prompt of length {prompt_len} has no chunk there")
    return Chunk(offset, min(max_step, prompt_len - offset), prompt_len)


def select_optimal_chunk_size(
    sequence_length: int,
    available_memory: int,
    active_decode_requests: int,
    batch_size: int,
    sizes: Sequence[int] = SIZES,
) -> int:
    """The size of a prompt's next chunk: small ones keep gaps short, large ones finish the prompt sooner.

    The size is 64 tokens if more than 80 % of the slots decode, else 256 for a prompt of more than 2,048 tokens, else
    128; a size that is not among `sizes` becomes the next smaller one, or the smallest. If nothing decodes, no request
    waits, and the size is the largest.

    Args:
        sequence_length: tokens of the prompt that are not computed yet.
        available_memory: tokens whose keys and values can still be kept; none is left at 0 and below.
        active_decode_requests: number of requests that wait for their next token while the chunk runs.
        batch_size: number of slots.
        sizes: chunk sizes, see `check_sizes`; on a Gaudi (128, 256, 512).

    Returns:
        One of `sizes`, at most `available_memory`; 0 if the prompt has to wait for memory. If the end of a prompt
        fits where none of `sizes` does, `sequence_length`.

    Raises:
        ValueError: a number is out of range, or the prompt can never fit: nothing decodes that would free memory.
    """
    sizes = check_sizes(sizes)
    _check(sequence_length, active_decode_requests, batch_size)
    # TASK 2.7.4: raise if the prompt can never fit; apply the rule of thumb, on `sizes`; then the limit of memory.
    # In integers, 80 % of the slots is exact. A prompt that waits while nothing decodes would wait forever.
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
    """Raises ValueError for numbers out of range. Given."""
    if sequence_length < 1:
        raise ValueError(f"sequence_length is {sequence_length}: there is no token to compute")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}: there must be at least 1 slot")
    if not 0 <= active_decode_requests <= batch_size:
        raise ValueError(f"active_decode_requests is {active_decode_requests}: give 0 to {batch_size}")


def chunker_step(chunker: Chunker, prompt_left: int, memory: int, running: int, slots: int) -> int:
    """Tokens of the next chunk by a chunker, with the rule of thumb as its base; 0 if it has to wait. Given."""
    base = select_optimal_chunk_size(prompt_left, memory, running, slots, chunker.sizes)
    if not base and not running:
        base = chunker.sizes[0]  # no request will end, so it would wait forever
    return base and chunker.select_chunk_size(base, running / slots)
