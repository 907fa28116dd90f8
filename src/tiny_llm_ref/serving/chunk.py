"""Where a prompt is cut: into chunks of at most one step, in order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """A piece of a prompt, which one step of the model computes.

    Args:
        start: tokens of the prompt before it.
        size: tokens of its own.
        prompt_len: tokens of the whole prompt.
    """

    start: int
    size: int
    prompt_len: int

    @property
    def stop(self) -> int:
        """Tokens of the prompt up to its end."""
        return self.start + self.size

    @property
    def is_last(self) -> bool:
        """Whether it ends the prompt: what follows is the first new token."""
        return self.stop == self.prompt_len


def next_chunk(offset: int, prompt_len: int, max_step: int) -> Chunk:
    """The chunk that comes after `offset` tokens of a prompt (Agrawal et al., 2023).

    Args:
        offset: tokens that were computed already.
        prompt_len: tokens of the prompt.
        max_step: tokens of a chunk, at most.

    Raises:
        ValueError: the prompt is empty, the step is not positive, or the offset is not inside of the prompt.
    """
    # TASK 2.7.1: refuse what has no next chunk; clip the last one, so that it ends where the prompt ends.
    # An empty chunk would be an answer to nothing: the model would choose a token that nobody asked for.
    if prompt_len < 1:
        raise ValueError(f"prompt_len is {prompt_len}: a prompt has at least 1 token")
    if max_step < 1:
        raise ValueError(f"max_step is {max_step}: a chunk has at least 1 token")
    if not 0 <= offset < prompt_len:
        raise ValueError(f"offset is {offset}: a prompt of {prompt_len} tokens has no chunk there")
    return Chunk(offset, min(max_step, prompt_len - offset), prompt_len)
