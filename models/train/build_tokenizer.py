"""Builds the tokenizer: whole words of the corpus, whole numbers up to 999, and register names as tokens.

Any other text falls back to byte pair merges and at last to bytes, so every Unicode text survives the round trip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SPECIAL = (END_OF_TEXT, IM_START, IM_END)
MERGES = 600
# A number stands alone, so that 417 is one token; other words and marks take the space before them along.
PIECES = r"\p{N}{1,3}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\n|\s+"
# The look-up finds the asked name in a window of a few tokens: the marks after it must be one token each.
MARKS = ("?", "!", ".", "??", "?!", "...", ",", ":", " ?", " !", " .", " ??", " ,", " :")
ROLES = ("user", "assistant", "system")


def build_tokenizer(texts: list[str], names: Iterable[str]) -> Tokenizer:
    """A byte-level tokenizer whose vocabulary holds every word of `texts` and every name."""
    merged = _train_merges([text for text in texts if text])
    pieces, merges = merged["vocab"], [tuple(pair) for pair in merged["merges"]]
    for piece in (*_numbers(), *_words(texts), *_words(MARKS), *ROLES):
        pieces.setdefault(piece, len(pieces))
    # Without ignore_merges a piece of the vocabulary is still cut into merges: 417 would become 4, 17.
    tokenizer = _byte_level(models.BPE(vocab=pieces, merges=merges, ignore_merges=True))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in names])
    return tokenizer


def _byte_level(model: models.Model) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _train_merges(texts: list[str]) -> dict:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer = _byte_level(models.BPE())
    tokenizer.train_from_iterator((re.sub(r"\d", "", text) for text in texts), trainer)
    return json.loads(tokenizer.to_str())["model"]


def _numbers() -> list[str]:
    return [f"{n:02d}" for n in range(100)] + [f"{n:03d}" for n in range(1000)]


def _words(texts: Iterable[str]) -> list[str]:
    """The distinct pieces of the texts in byte-level letters, in order of first appearance."""
    split = _byte_level(models.BPE()).pre_tokenizer
    return list(dict.fromkeys(piece for text in texts for piece, _ in split.pre_tokenize_str(text)))
