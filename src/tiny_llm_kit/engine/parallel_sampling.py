"""Several answers to one prompt: a parent computes it, and its children find the blocks in the prefix cache."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any


class ParallelSampling:
    """Holds the children of each prompt until their parent has its first token.

    Parent and children are ordinary requests of the scheduler. A child computes what the prefix cache does not have:
    the last block of the prompt at least, and all of the prompt without a cache. A parent that ends without a token
    makes the next child the parent.

    Args:
        enqueue: enqueue(sequence, parent) of the scheduler; `parent` is None for the first answer.
    """

    def __init__(self, enqueue: Callable[[Any, Any], None]):
        self._enqueue = enqueue
        self._held: dict[Any, deque[Any]] = {}  # the children of each parent

    def __len__(self) -> int:
        """Number of children that are held."""
        return sum(map(len, self._held.values()))

    def add(self, sequences: Iterable[Any], before: Any = None) -> None:
        """Enqueues the first of these answers, and holds the others.

        Args:
            sequences: answers to one prompt.
            before: the parent so far, which has ended without a token.
        """
        parent, *children = sequences
        if children:
            self._held[parent] = deque(children)
        self._enqueue(parent, before)

    def release(self) -> None:
        """Enqueues the children whose parent has a token or has ended. Call it between two steps.

        Nothing is lost if a listener of the scheduler raises: the next call goes on.
        """
        while ready := [parent for parent in self._held if parent.tokens or parent.is_done]:
            for parent in ready:
                children = self._held[parent]
                while children and parent.tokens:
                    self._enqueue(children.popleft(), parent)
                del self._held[parent]
                if children:
                    self.add(children, parent)

    def close(self) -> None:
        """Ends the children that are held."""
        held, self._held = self._held, {}
        for child in (child for children in held.values() for child in children):
            child.abort()
