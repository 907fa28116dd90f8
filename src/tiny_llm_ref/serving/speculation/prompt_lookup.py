"""Prompt lookup: the text so far as a draft of what follows (Saxena, 2023). No second model."""

from collections import abc
from weakref import WeakKeyDictionary

from ..batching.sequence import Sequence


class NgramIndex:
    """Where each n-gram of one text was seen last. It grows with the text, so that a step does not read all of it.

    Args:
        shortest, longest: tokens of an n-gram.
    """

    def __init__(self, shortest: int, longest: int):
        self.shortest, self.longest = shortest, longest
        self.next_position: dict[tuple[int, ...], int] = {}  # of the token after the n-gram's last occurrence
        self.num_indexed = 0  # tokens before which all n-grams are in `next_position`

    def continuation(self, tokens: abc.Sequence[int], k: int) -> list[int]:
        """The tokens that followed the end of the text when it occurred before.

        The longest n-gram at the end of the text decides, and of its occurrences the latest.

        Args:
            tokens: ids of the text so far; those of earlier calls, and perhaps more.
            k: tokens, at most.

        Returns:
            `k` tokens; none if the last `shortest` tokens have not occurred before. A continuation that reaches the
            end of the text goes on with itself: after 1 2 3 1 2 come 3 1 2 3 1 and so on.
        """
        # TASK 4.3.1: index the new n-grams, but only those that a known token follows; then look for the longest one.
        # The n-gram at the end of the text has no next token yet: it must not find itself.
        for position in range(self.num_indexed, len(tokens)):
            for n in range(self.shortest, min(self.longest, position) + 1):
                self.next_position[tuple(tokens[position - n : position])] = position
        self.num_indexed = len(tokens)
        for n in range(min(self.longest, len(tokens)), self.shortest - 1, -1):
            start = self.next_position.get(tuple(tokens[len(tokens) - n :]))
            if start is not None:
                return [tokens[start + i % (len(tokens) - start)] for i in range(k)]
        return []


class PromptLookup:
    """A proposer that looks the drafts of a request up in its own text. Given.

    Args:
        prompt_lookup_min, prompt_lookup_max: tokens of an n-gram.

    Raises:
        ValueError: a number is out of range.
    """

    draft_seconds = 0.0

    def __init__(self, prompt_lookup_min: int = 2, prompt_lookup_max: int = 4):
        if not 1 <= prompt_lookup_min <= prompt_lookup_max:
            raise ValueError(
                f"prompt_lookup_min is {prompt_lookup_min} and prompt_lookup_max {prompt_lookup_max}: give at least 1,"
                " and no more for the first than for the second"
            )
        self.lengths = prompt_lookup_min, prompt_lookup_max
        self._indices: WeakKeyDictionary[Sequence, NgramIndex] = WeakKeyDictionary()

    def propose(self, wanted: abc.Sequence[tuple[Sequence, int]]) -> list[list[int]]:
        """See `Proposer`."""
        return [self._index(sequence).continuation(sequence.known_tokens, k) for sequence, k in wanted]

    def _index(self, sequence: Sequence) -> NgramIndex:
        if sequence not in self._indices:
            self._indices[sequence] = NgramIndex(*self.lengths)
        return self._indices[sequence]
