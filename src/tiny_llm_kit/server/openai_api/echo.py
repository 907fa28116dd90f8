"""Prompts that come back before their answers, with log-probabilities if these were asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...model.tokenization import Tokenizer


@dataclass(frozen=True)
class Echo:
    """The prompts of a request.

    Args:
        texts: of each prompt.
        ids: its tokens.
        n: answers to each prompt.
        sequences: returns the answers. The first of each prompt has what the model thought of the prompt's tokens, in
            `prompt_sampled`, once it has a token.
        drops_answer: whether nothing but the prompts is wanted.
    """

    texts: Sequence[str]
    ids: Sequence[Sequence[int]]
    n: int
    sequences: Callable[[], Sequence[Any]]
    drops_answer: bool = False

    @classmethod
    def of(
        cls, prompts: Sequence[Any], ids: Sequence[Sequence[int]], tokenizer: Tokenizer, **rest: Any
    ) -> "Echo":
        """The prompts as the client gave them; those that are ids are decoded."""
        return cls(
            [each if isinstance(each, str) else tokenizer.decode(each) for each in prompts], ids, **rest
        )

    def text(self, index: int) -> str:
        """The prompt of an answer."""
        return self.texts[index // self.n]

    def tokens(self, index: int) -> Sequence[int]:
        """Its token ids."""
        return self.ids[index // self.n]

    def sampled(self, index: int) -> list[Any]:
        """What the model thought of each token; None of the first one, which follows nothing."""
        found = self.sequences()[index // self.n * self.n].prompt_sampled
        return [None, *(found[place] for place in range(1, len(self.tokens(index))))]
