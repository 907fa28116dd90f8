"""Chunks of a prompt: consecutive pieces of at most a given number of tokens."""

from dataclasses import dataclass


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
