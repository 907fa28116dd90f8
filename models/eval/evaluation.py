"""Scores a model on cases: exact means that greedy decoding gives every token of the answer, its end included.

A model is any function from token ids to logits, so that each port, transformers and a broken model are scored alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .evaluation_cases import EvaluationCase, Suite

# (B rows, L tokens) -> (B, L, vocabulary) logits.
Logits = Callable[[list[list[int]]], np.ndarray]
BATCH_TOKENS = 2048


def exact_answers(
    logits: Logits, cases: Sequence[EvaluationCase], on_done: Callable[[int], None] = lambda n: None
) -> list[bool]:
    """For each answer of each case, whether it is the greedy one: one forward pass, the answers already in place.

    Greedy decoding gives an answer exactly if each of its tokens is the best one after those before it.
    """
    exact: list[list[bool]] = [[] for _ in cases]
    for batch in _batches(cases):
        longest = max(len(cases[i].tokens) for i in batch)
        # Padding follows the row's tokens, and a causal model does not see it.
        scores = logits([[*cases[i].tokens, *[0] * (longest - len(cases[i].tokens))] for i in batch])
        for i, score in zip(batch, scores, strict=True):
            exact[i] = [_is_best(score, cases[i].tokens, start, stop) for start, stop in cases[i].answers]
            on_done(len(exact[i]))
    return [verdict for verdicts in exact for verdict in verdicts]


def _is_best(score: np.ndarray, tokens: Sequence[int], start: int, stop: int) -> bool:
    """Whether tokens `start` to `stop` are the greedy choice; row i of `score` (L, V) judges token i + 1."""
    return score[start - 1 : stop - 1].argmax(-1).tolist() == list(tokens[start:stop])


def generates_exactly(logits: Logits, case: EvaluationCase) -> bool:
    """Whether decoding step by step, each token fed back, gives the first answer."""
    start, stop = case.answers[0]
    tokens = list(case.tokens[:start])
    for expected in case.tokens[start:stop]:
        tokens.append(int(logits([tokens])[0, -1].argmax()))
        if tokens[-1] != expected:
            return False
    return True


def misses_allowed(suite: Suite) -> int:
    """The number of wrong answers that the target allows: all without a target; at least one, for small samples."""
    if suite.target is None:
        return suite.size
    return max(1, math.floor((1 - suite.target) * suite.size + 1e-9))


def _batches(cases: Sequence[EvaluationCase]) -> Iterator[list[int]]:
    """Indices of the cases in groups of like length, each group of at most BATCH_TOKENS tokens or one case."""
    batch: list[int] = []
    for i in sorted(range(len(cases)), key=lambda i: len(cases[i].tokens)):
        if batch and (len(batch) + 1) * len(cases[i].tokens) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
