"""Structured outputs: which tokens keep an answer inside its JSON schema or regular expression, by llguidance."""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ...model.tokenizer import Tokenizer
from ...solution_types import StructuredOutputsParams

KEPT = 64  # compiled grammars, for later requests
MOST_CHARACTERS = 2**18  # of a schema or an expression; one of 4 MB takes more than a second


class Grammar:
    """The state of one answer in its grammar. It follows from the tokens alone, so preemption does not change it.

    With drafts a step asks for several states: after the answer, and after each draft behind it.

    Args:
        matcher: of llguidance, at the beginning of a text.
        vocab_size: token ids are below it.
    """

    def __init__(self, matcher: Any, vocab_size: int):
        self._matcher, self._vocab_size = matcher, vocab_size
        self._consumed: list[int] = []

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """(V,) whether each token may follow.

        Args:
            tokens: the answer so far, and drafts. What follows a draft that the grammar does not allow has no meaning:
                the model does not draw that draft.
        """
        tokens = list(tokens)
        kept = common_length(self._consumed, tokens)
        self._matcher.rollback(len(self._consumed) - kept)
        self._consumed = tokens[: kept + self._matcher.try_consume_tokens(tokens[kept:])]
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._vocab_size].view(bool)


def common_length(a: list[int], b: list[int]) -> int:
    """How many tokens two texts have in common at the front. They differ at the end, if at all."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    return next(count for count in range(most) if a[count] != b[count])


class Grammars:
    """Compiles grammars for one tokenizer.

    Args:
        tokenizer: of the model.
        vocab_size: token ids are below it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self.compiled = lru_cache(KEPT)(self._compile)

    @cached_property
    def _tokens(self) -> Any:
        """The vocabulary as llguidance reads it, made for the first grammar."""
        from llguidance import LLTokenizer

        ends = sorted(self._tokenizer.eos_token_ids)
        return LLTokenizer(self._tokenizer.to_json(), n_vocab=self._vocab_size, eos_token=ends)

    def grammar(self, wanted: StructuredOutputsParams) -> Grammar:
        """A grammar at the beginning of a text.

        Raises:
            ValueError: it cannot be compiled.
        """
        return Grammar(self.compiled(wanted).deep_copy(), self._vocab_size)

    def _compile(self, wanted: StructuredOutputsParams) -> Any:
        """A matcher that is only copied. A schema of 1,000 fields takes 0.2 s, so a server does it on a thread.

        Raises:
            ValueError: it cannot be compiled.
        """
        from llguidance import JsonCompiler, LLMatcher

        form = wanted.regex or ('{"type": "object"}' if wanted.json is None else str(wanted.json))
        if len(form) > MOST_CHARACTERS:
            raise ValueError(no_grammar(f"{len(form)} characters, give at most {MOST_CHARACTERS}"))
        try:
            if wanted.regex is not None:
                text = LLMatcher.grammar_from_regex(form)
            else:  # without free white space: a small model may write spaces to the end
                text = JsonCompiler(whitespace_flexible=False).compile(form)
            matcher = LLMatcher(self._tokens, text)
        except ValueError as error:
            raise ValueError(no_grammar(str(error))) from None
        if problem := matcher.get_error():
            raise ValueError(no_grammar(problem))
        return matcher


def no_grammar(problem: str) -> str:
    """One line for a form that llguidance cannot compile."""
    return f"structured_outputs has no grammar: {problem.strip().splitlines()[0]}"
