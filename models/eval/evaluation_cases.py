"""Evaluation cases of the shipped model: its own questions, paraphrases, and look-ups of fresh pairs.

Makes token ids only; needs neither models nor array libraries. The same seed makes the same cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tiny_llm_engine.models.tokenization import Tokenizer

from .questions import ABSENT_NAME, Question, read_corpus, read_questions

LONG = 2000  # tokens of a long conversation
TURNS = 10  # questions in it
# Wordings that training does not use.
OTHER_LOOKUPS = ("Please read out {}.", "I need {}!", "How much is {}?", "{} ?", "Which value belongs to {}?")


@dataclass(frozen=True)
class EvaluationCase:
    """A conversation as token ids, and (start, stop) of each answer, end-of-turn token included.

    Most cases have one answer. A long list of registers is followed by several questions, each a turn of its own.
    """

    tokens: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Suite:
    """Cases of one kind, and the share of their answers that must be exact (None: reported, not required)."""

    name: str
    target: float | None
    cases: tuple[EvaluationCase, ...]

    @property
    def size(self) -> int:
        """The number of answers."""
        return sum(len(case.answers) for case in self.cases)


@dataclass(frozen=True)
class Maker:
    """The material that cases are made of."""

    tokenizer: Tokenizer
    questions: Sequence[Question]
    paraphrases: Sequence[Question]
    names: Sequence[str]

    def case(self, *turns: tuple[str, str]) -> EvaluationCase:
        """A case from (question, answer) turns."""
        tokens: list[int] = []
        answers = []
        for user, answer in turns:
            prompt = self.tokenizer.apply_chat_template([{"role": "user", "content": user}])
            tokens += self.tokenizer.encode("\n" + prompt if tokens else prompt)
            start = len(tokens)
            tokens += self.tokenizer.encode(answer + "<|im_end|>")
            answers.append((start, len(tokens)))
        return EvaluationCase(tuple(tokens), tuple(answers))


def read_material(folder: Path, tokenizer: Tokenizer) -> Maker:
    """The corpus, the held-out paraphrases and the register names of models/train."""
    names = (folder / "names.txt").read_text(encoding="utf-8").split()
    return Maker(tokenizer, read_corpus(folder), read_questions(folder / "heldout.md"), names)


def make_suites(maker: Maker, count: int, every_question: bool, seed: int = 0) -> list[Suite]:
    """All suites, with `count` answers each, or with every phrasing if `every_question`."""
    limit = None if every_question else count

    def lookups(
        name: str, target: float | None, make: Callable[[Random], EvaluationCase], turns: int = 1
    ) -> Suite:
        random = Random(f"{name} {seed}")
        return Suite(name, target, tuple(make(random) for _ in range(max(1, count // turns))))

    def lookups_far(name: str, lines: int) -> Suite:
        # Ten questions after each long list: as many look-ups for a tenth of the time.
        turns = min(TURNS, count)
        return lookups(name, 0.95, lambda r: lookup(maker, r, lines, tokens=LONG, turns=turns), turns)

    return [
        Suite("questions as in training", 0.98, _spread(_question_cases(maker), limit)),
        Suite("questions, unseen paraphrases", None, _spread(_paraphrase_cases(maker), limit)),
        lookups("look-ups, 20 lines", 0.98, lambda r: lookup(maker, r, 20)),
        lookups("look-ups, 50 lines", 0.95, lambda r: lookup(maker, r, 50)),
        lookups("look-ups, 100 lines", 0.95, lambda r: lookup(maker, r, 100)),
        lookups_far("look-ups, 20 lines in 2,000 tokens", 20),
        lookups_far("look-ups, 100 lines in 2,000 tokens", 100),
        lookups(
            "look-ups, unseen wordings", None, lambda r: lookup(maker, r, 20, ask=r.choice(OTHER_LOOKUPS))
        ),
        lookups("look-ups, space before the ?", None, lambda r: lookup(maker, r, 20, ask="What is {} ?")),
        lookups("absent names, 20 lines", None, lambda r: lookup(maker, r, 20, absent=True)),
    ]


def lookup(
    maker: Maker,
    random: Random,
    lines: int,
    *,
    tokens: int = 0,
    turns: int = 1,
    ask: str = "What is {}?",
    absent: bool = False,
) -> EvaluationCase:
    """Fresh random pairs, one a line, then a question for one of the names (or for a name that no line has).

    With `tokens`, lines of ordinary text are strewn in until the conversation has about that many tokens.
    With `turns`, that many different names are asked for, one after the other.
    """
    names = random.sample(list(maker.names), lines + 1)
    values = {name: str(random.randint(0, 999)) for name in names[:lines]}
    asked = names[lines:] if absent else random.sample(names[:lines], turns)
    questions = [(ask.format(name), values.get(name, ABSENT_NAME)) for name in asked]
    text = [f"{name} {value}" for name, value in values.items()]

    def conversation() -> EvaluationCase:
        (first, answer), *others = questions
        return maker.case(("\n".join([*text, first]), answer), *others)

    for line in _filler(maker, random, tokens - len(conversation().tokens)):
        text.insert(random.randint(0, len(text)), line)
    return conversation()


def _filler(maker: Maker, random: Random, tokens: int) -> list[str]:
    lines: list[str] = []
    while tokens > 0:
        line = random.choice(maker.questions).answer
        tokens -= len(maker.tokenizer.encode(line + "\n"))
        lines.append(line)
    return lines[:-1]  # the last one went past the length


def _question_cases(maker: Maker) -> list[EvaluationCase]:
    return [maker.case((ask, question.answer)) for question in maker.questions for ask in question.asks]


def _paraphrase_cases(maker: Maker) -> list[EvaluationCase]:
    answers = {question.id: question.answer for question in maker.questions}
    return [
        maker.case((ask, answers[question.id])) for question in maker.paraphrases for ask in question.asks
    ]


def _spread(cases: list[EvaluationCase], limit: int | None) -> tuple[EvaluationCase, ...]:
    """At most `limit` of the cases, evenly from first to last."""
    if limit is None or limit >= len(cases):
        return tuple(cases)
    return tuple(cases[i * len(cases) // limit] for i in range(limit))
