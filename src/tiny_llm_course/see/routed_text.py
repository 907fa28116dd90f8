"""Which experts of the shipped mixture compute the tokens of a text, by the solution's own model and functions."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array

MODEL, TRAIN = "tiny-qwen3-moe", MODELS / "train"
REGISTERS, SENTENCES = 40, 14  # lines of each kind in the text
KINDS = ("numbers", "names", "words", "the rest")


class NotedMixture:
    """A layer's mixture, which notes the tokens that it gets.

    Args:
        mixture: the solution's `MixtureOfExperts`.
    """

    def __init__(self, mixture: Array):
        self.mixture = mixture

    def __call__(self, x: Array) -> Array:
        """(..., E) to (..., E)."""
        self.rows: Array = x.reshape(-1, x.shape[-1])
        return self.mixture(x)

    def logits(self, b: Port) -> np.ndarray:
        """(T, X): the router's, for the tokens of the last call."""
        return b.numpy(self.mixture.w_router(self.rows))


@dataclass(frozen=True)
class RoutedText:
    """A text's tokens in the layers of a mixture.

    Args:
        kinds: of each token, an index of `KINDS`: (T,).
        num_experts, k: X and k.
        logits: of the router of each layer that has experts: (T, X) each.
        last_rows: what the last of these routers was given: (T, E).
    """

    kinds: np.ndarray
    num_experts: int
    k: int
    logits: tuple[np.ndarray, ...]
    last_rows: np.ndarray


def registers_and_sentences() -> tuple[list[str], str]:
    """The names of a list, and a question about one of them after the list and sentences of the training's text."""
    names = (TRAIN / "names.txt").read_text(encoding="utf-8").split()[:REGISTERS]
    values = np.random.RandomState(0).randint(0, 1000, len(names))
    corpus = (TRAIN / "corpus" / "serving.md").read_text(encoding="utf-8").splitlines()
    sentences = [line for line in corpus if line and line[0] not in "#-"][:SENTENCES]
    lines = [f"{name} {value}" for name, value in zip(names, values, strict=True)]
    return names, "\n".join((*lines, *sentences, f"What is {names[0]}?"))


def kind_of(token: str, names: list[str]) -> int:
    """The index in `KINDS` of a token's text."""
    if token.isdigit():
        return 0
    if token in names:
        return 1
    return 2 if token.strip().isalpha() else 3


def routed_text(b: Port) -> RoutedText:
    """The text's tokens as they arrive at each router of the shipped mixture."""
    tokenizer = load_tokenizer(MODEL)
    ids, kinds = _tokens(tokenizer)
    checkpoint = load_checkpoint(MODEL, b.name, b.device, b.float_dtype)
    network: Any = b.Qwen3ModelWeek2(checkpoint, make_mlp=b.mlp_of)
    layers = [layer for layer in network.layers if hasattr(layer.mlp, "w_router")]
    for layer in layers:
        layer.mlp = NotedMixture(layer.mlp)
    network(b.array([ids]), 0, network.create_kv_cache(len(ids)), logits_to_keep=1)
    noted = [layer.mlp for layer in layers]
    return RoutedText(
        kinds,
        noted[0].mixture.num_experts,
        noted[0].mixture.k,
        tuple(each.logits(b) for each in noted),
        b.numpy(noted[-1].rows),
    )


def _tokens(tokenizer: Tokenizer) -> tuple[list[int], np.ndarray]:
    """Ids of the conversation, and the kind of each."""
    names, text = registers_and_sentences()
    chat = [{"role": "user", "content": text}]
    ids = tokenizer.encode(tokenizer.apply_chat_template(chat, add_generation_prompt=True))
    return ids, np.array([kind_of(tokenizer.decode([token]), names) for token in ids])
