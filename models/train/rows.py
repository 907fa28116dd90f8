"""Makes the training rows: conversations of questions and look-ups, cut to one length, with a mask of what to learn."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from ..eval.questions import ABSENT_NAME, Question
from .phrasing import vary

# Their order decides what is drawn: in another one the shipped model cannot be trained again.
_LOOKUPS = (
    "What is {}?|What is the value of {}?|Value of {}?|Look up {}.|Tell me {}.|{}?|And {}?|Which number does {} have?|"
    "What number is {}?|Read {}.|What is {}|what is {} ?|What is {} please?|And what is {} now?|Give me {}!|Find {} .|"
    "What is the number of {}?|What's {}?"
)
LOOKUPS = _LOOKUPS.split("|")
IGNORED = -100  # the label that cross_entropy leaves out


@dataclass(frozen=True)
class Material:
    """Everything that rows are made of."""

    tokenizer: Tokenizer
    questions: list[Question]
    names: list[str]

    def filler(self, random: Random) -> str:
        """One line of ordinary text to stand between registers."""
        question = random.choice(self.questions)
        return random.choice((question.answer, random.choice(question.asks), question.answer))


def batches(material: Material, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens, labels) pairs: mostly 8 rows of 256 tokens, now and then 2 of 1,024."""
    random = Random(seed)
    while True:
        count, length, lines = (2, 1024, (3, 150)) if random.random() < 0.12 else (8, 256, (3, 40))
        rows = [_row(material, random, length + 1, lines, count == 2) for _ in range(count)]
        tokens, labels = (torch.tensor(part) for part in zip(*rows, strict=True))
        yield tokens[:, :-1], labels[:, 1:]


def _row(
    material: Material, random: Random, length: int, lines: tuple[int, int], long: bool
) -> tuple[list[int], list[int]]:
    """`length` tokens of one conversation, and as many labels."""
    lookups = long or random.random() < 0.4
    turns = _lookup_turns(material, random, lines, long) if lookups else _question_turns(material, random)
    tokens: list[int] = []
    labels: list[int] = []
    while len(tokens) < length:
        user, answer = next(turns)
        prompt = material.tokenizer.encode(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n").ids
        reply = material.tokenizer.encode(f"{answer}<|im_end|>").ids
        newline = material.tokenizer.encode("\n").ids
        tokens += prompt + reply + newline
        labels += [IGNORED] * len(prompt) + reply + [IGNORED] * len(newline)
    return tokens[:length], labels[:length]


def _question_turns(material: Material, random: Random) -> Iterator[tuple[str, str]]:
    """Questions of the corpus, each equally often; a few ask for a name although there is no list."""
    while True:
        if random.random() < 0.03:
            yield random.choice(LOOKUPS).format(random.choice(material.names)), ABSENT_NAME
        question = random.choice(material.questions)
        yield vary(_ask(question, random), random), question.answer


def _ask(question: Question, random: Random) -> str:
    """A way to ask it. The few written ones would drown among those from templates; bare names need practice."""
    roll = random.random()
    if roll < 0.45 and question.written:
        return random.choice(question.written)
    if roll < 0.6:
        return random.choice(sorted(question.asks, key=len)[:4])
    return random.choice(question.asks)


def _lookup_turns(
    material: Material, random: Random, lines: tuple[int, int], long: bool
) -> Iterator[tuple[str, str]]:
    """First a message with the registers and a question, then one question a turn."""
    few = random.random() < 0.3
    count = random.randint(lines[0], 13 if few else lines[1])
    names = random.sample(material.names, min(count + 20, len(material.names)))
    present = {name: str(random.randint(0, 999)) for name in names[:count]}
    absent = names[count:]
    text = [f"{name} {value}" for name, value in present.items()]
    for _ in range(random.randint(0, 30 if long else 4) if random.random() < 0.5 else 0):
        text.insert(random.randint(0, len(text)), material.filler(random))
    user = "\n".join(text) + "\n"
    questions = _question_turns(material, random)
    while True:
        if random.random() < 0.12:
            ask, answer = next(questions)
        else:
            name = random.choice(absent) if random.random() < 0.2 else random.choice(list(present))
            ask, answer = random.choice(LOOKUPS).format(name), present.get(name, ABSENT_NAME)
        yield user + ask, answer
        user = ""
