"""The requests of the demo: two long texts and three short questions, counted by the model's own tokenizer."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import cycle, islice

from tiny_llm_engine.models.tokenization import Tokenizer

from ..prompts import rendered
from ..workload import LONG, SHORT, RequestSpec

SENTENCES = (
    "Prefill computes a whole prompt and fills the KV cache.",
    "Decode adds one token a step and reads all the weights for it.",
    "A long prompt makes every running request wait.",
    "A chunk is a piece of a prompt, and the scheduler takes turns.",
)
QUESTION = "What is chunked prefill?"
# Name, and tokens that the text has at least; or the text of a short one.
LONG_TEXTS = {"large_1": 2000, "large_2": 1500}
QUESTIONS = {"small_1": "Thank you!", "small_2": "What is prefill?", "small_3": "What is a chunk?"}
FOUR = (
    "Thank you!",
    "What is a KV cache?",
    "Explain chunked prefill in detail.",
)  # and a text of four chunks
ORDER = ("large_1", "small_1", "small_2", "small_3", "large_2")


def padded(tokenizer: Tokenizer, tokens: int) -> str:
    """A text that ends with a question, and exceeds this many tokens by less than a word."""
    words = " ".join(SENTENCES).split()
    enough = list(islice(cycle(words), tokens))  # no word has less than a token

    def text(count: int) -> str:
        return " ".join([*enough[:count], QUESTION])

    return text(bisect_left(range(len(enough)), tokens, key=lambda count: len(tokenizer.encode(text(count)))))


def specs(tokenizer: Tokenizer) -> list[RequestSpec]:
    """The five requests in the order in which they are sent.

    Long texts are of the class `batch`, questions interactive.
    """
    texts = {**{name: padded(tokenizer, tokens) for name, tokens in LONG_TEXTS.items()}, **QUESTIONS}
    return [_spec(tokenizer, name, texts[name], name in LONG_TEXTS) for name in ORDER]


def four_texts(tokenizer: Tokenizer) -> list[str]:
    """The texts of the simple demo, of mixed sizes."""
    return [*FOUR, padded(tokenizer, 450)]


def specs_of(tokenizer: Tokenizer, texts: Iterable[str], prefill_step: int) -> list[RequestSpec]:
    """A request for each text, in order. One that needs more than one chunk is long, and of the class `batch`."""
    found = [(text, len(tokenizer.encode(rendered(tokenizer, text)))) for text in texts]
    return [
        _spec(tokenizer, f"prompt_{number}", text, length > prefill_step)
        for number, (text, length) in enumerate(found, 1)
    ]


def _spec(tokenizer: Tokenizer, name: str, text: str, is_long: bool) -> RequestSpec:
    kind, priority = (LONG, "batch") if is_long else (SHORT, "interactive")
    prompt, text_tokens = tuple(tokenizer.encode(rendered(tokenizer, text))), len(tokenizer.encode(text))
    return RequestSpec(kind, len(prompt), 0, None, name, prompt, priority, text, text_tokens)
