"""Structured outputs: which tokens keep an answer inside its schema, expression or grammar, by llguidance."""

import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import AnswerSequence, StructuredOutputsParams

from .grammar_errors import in_plain_words
from .schema_formats import without_remarks

MOST_CHARACTERS = 2**18  # of a schema or an expression; one of 4 MB takes more than a second
# llguidance counts the work on expressions as fuel. On the worst ones a unit took 1.1 µs and kept 207 bytes.
LIMITS = {
    "initial_lexer_fuel": 2**17,  # before the first token: 0.15 s on a thread, and 27 MB
    "step_lexer_fuel": 50_000,  # of one mask: 5 to 55 ms, for which all streams wait
    "step_max_items": 50_000,  # of one mask: 2.5 ms
    "max_items_in_row": 2000,  # ways to go on after a text: about as many as optional properties and their separators
    "max_lexer_states": 50_000,  # of all masks: 1 to 2 kB each
    "max_grammar_size": 500_000,
    "precompute_large_lexemes": True,  # without it nothing limits the first forced tokens
    "verbose_errors": False,
}
JSON_FORM: Any = {  # without free white space: a small model may write spaces to the end
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "whitespace_pattern": None,
    "coerce_one_of": False,
    "lenient": False,
}
KEPT_BYTES, FUEL_BYTES = 2**28, 2**8
KEPT = KEPT_BYTES // (FUEL_BYTES * LIMITS["initial_lexer_fuel"])  # compiled grammars, for later requests


class CompiledGrammar:
    """A grammar at the beginning of every text.

    Args:
        make: makes a matcher of llguidance. Its copies share what they have computed, and an error in it.

    Attributes:
        is_spoiled: whether a copy came to a limit, so that no other one can go on.

    Raises:
        ValueError: there is no such grammar, or its limits are reached before the first choice.
    """

    def __init__(self, make: Callable[[], Any]):
        self._make, self._matcher, self.is_spoiled = make, make(), False
        self._check()

    def _check(self) -> None:
        """Computes the masks up to the first choice: without the GIL, and where nobody waits for them."""
        self._matcher.compute_bitmask()
        begun = self._matcher.deep_copy()
        begun.consume_tokens(begun.compute_ff_tokens())
        begun.compute_bitmask()
        if problem := self._matcher.get_error() or begun.get_error():
            raise ValueError(problem)

    def matcher(self) -> Any:
        """A copy for one answer."""
        return self._matcher.deep_copy()

    def own_matcher(self) -> Any:
        """A matcher that shares nothing, for an answer whose copy is in error."""
        self.is_spoiled = True
        return self._make()


class Grammar:
    """The state of one answer in its grammar. It follows from the tokens alone, so preemption does not change it.

    With drafts a step asks for several states: after the answer, and after each of its drafts.

    Args:
        compiled: at the beginning of a text.
        vocab_size: token ids are below it.
    """

    def __init__(self, compiled: CompiledGrammar, vocab_size: int):
        self._compiled, self._matcher, self._vocab_size = compiled, compiled.matcher(), vocab_size
        self._consumed: list[int] = []
        self._failure: tuple[list[int], str] | None = None  # a text, and the limit that was reached after it

    def allowed(self, tokens: Sequence[int]) -> np.ndarray:
        """(V,) whether each token may follow; any, if there is an `error_after` these tokens.

        Args:
            tokens: the answer so far, and drafts. What follows a draft that the grammar does not allow has no meaning:
                the model does not draw that draft.
        """
        tokens = list(tokens)
        if self.error_after(tokens) is None:
            mask = self._mask(tokens)
            if self._matcher.is_error():  # perhaps another answer came to a limit, or a draft did
                self._matcher, self._consumed = self._compiled.own_matcher(), []
                mask = self._mask(tokens)
            if not self._matcher.is_error():
                return mask
            self._failure = tokens, one_line("reached a limit", self._matcher.get_error())
        return np.ones(self._vocab_size, bool)

    def error_after(self, tokens: Sequence[int]) -> str | None:
        """Why the answer cannot go on after these tokens, in one line; None if it can, or was not asked to."""
        if self._failure is None or list(tokens[: len(self._failure[0])]) != self._failure[0]:
            return None
        return self._failure[1]

    def _mask(self, tokens: list[int]) -> np.ndarray:
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
        vocab_size: token ids are below it.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int):
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._held: WeakValueDictionary[StructuredOutputsParams, CompiledGrammar] = WeakValueDictionary()
        self._kept: deque[CompiledGrammar] = deque(maxlen=KEPT)

    @cached_property
    def _tokens(self) -> Any:
        """The vocabulary as llguidance reads it, made for the first grammar."""
        from llguidance import LLTokenizer

        ends = sorted(self._tokenizer.eos_token_ids)
        return LLTokenizer(self._tokenizer.to_json(), n_vocab=self._vocab_size, eos_token=ends)

    def constrain(self, sequence: AnswerSequence) -> None:
        """Gives an answer the grammar that it asks for, or ends it with the reason why that is unusable."""
        if (wanted := sequence.sampling.structured_outputs) is not None:
            try:
                sequence.grammar = self.grammar(wanted)
            except ValueError as error:
                sequence.fail(str(error))

    def grammar(self, wanted: StructuredOutputsParams) -> Grammar:
        """A grammar at the beginning of a text.

        Raises:
            ValueError: it cannot be compiled.
        """
        return Grammar(self.compiled(wanted), self._vocab_size)

    def compiled(self, wanted: StructuredOutputsParams) -> CompiledGrammar:
        """A grammar that is kept, or that somebody holds, or a new one.

        Raises:
            ValueError: it cannot be compiled.
        """
        found = self._held.get(wanted)
        if found is None or found.is_spoiled:
            found = self._held[wanted] = self._compile(wanted)
            self._kept.append(found)
        return found

    def _compile(self, wanted: StructuredOutputsParams) -> CompiledGrammar:
        """A new grammar. It may take up to 0.15 s, so a server does it on a thread.

        Raises:
            ValueError: it cannot be compiled.
        """
        from llguidance import LLMatcher, LLParserLimits

        form = text_of(wanted)
        if len(form) > MOST_CHARACTERS:
            problem = f"it has {len(form)} characters: give at most {MOST_CHARACTERS}"
            raise ValueError(f"structured_outputs has no grammar: {problem}")
        limits = LLParserLimits(**LIMITS)
        try:
            if wanted.regex is not None:
                text = LLMatcher.grammar_from_regex(form)
            elif wanted.choice is not None:
                text = LLMatcher.grammar_from_lark(form)
            elif wanted.grammar is not None:
                text = LLMatcher.grammar_from_lark(lark_of(form))
            else:
                text = LLMatcher.grammar_from_json_schema(checked(form), overrides=JSON_FORM)
            return CompiledGrammar(lambda: LLMatcher(self._tokens, text, log_level=0, limits=limits))
        except ValueError as error:
            raise ValueError(one_line("has no grammar", str(error))) from None


def text_of(wanted: StructuredOutputsParams) -> str:
    """The form as llguidance reads it; choices are a grammar in Lark."""
    if wanted.choice:
        # As one terminal: as alternatives of a rule, each would be an item of the parser, and those are few.
        return "start: CHOICE\nCHOICE: " + " | ".join(quoted(text) for text in wanted.choice)
    return wanted.regex or wanted.grammar or str(wanted.json or '{"type": "object"}')


def quoted(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def checked(schema: str) -> str:
    """The text of a schema without what is not checked, and without llguidance's options.

    Invalid JSON is left to llguidance.
    """
    try:
        plain = without_remarks(json.loads(schema))
        return json.dumps({**plain, "x-guidance": {}} if isinstance(plain, dict) else plain)
    except (ValueError, RecursionError):
        return schema


def lark_of(grammar: str) -> str:
    """A grammar in Lark, converted from GBNF if it is that.

    Raises:
        ValueError: it is neither.
    """
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return any_to_lark(grammar)
    except Exception as error:  # the converter raises nothing narrower
        raise ValueError(str(error)) from None


def one_line(what: str, problem: str) -> str:
    """What a form is not good for, with the reason and the fix."""
    return f"structured_outputs {what}: {in_plain_words(problem)}"
