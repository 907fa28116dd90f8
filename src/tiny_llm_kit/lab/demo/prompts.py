"""The requests of the demo: two long texts and three short questions, counted by the model's own tokenizer."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import cycle, islice

from ...model.tokenizer import Tokenizer

SENTENCES = (
    "Prefill computes a whole prompt and fills the KV cache.",
    "Decode adds one token a step and reads all the weights for it.",
    "A long prompt makes every running request wait.",
    "A chunk is a piece of a prompt, and the scheduler takes turns.",
)
QUESTION = "What is chunked prefill?"
# Name, and tokens that the text has at least; or the text of a short one.
LONG = {"large_1": 2000, "large_2": 1500}
SHORT = {"small_1": "Thank you!", "small_2": "What is prefill?", "small_3": "What is a chunk?"}
ORDER = ("large_1", "small_1", "small_2", "small_3", "large_2")


@dataclass(frozen=True)
class Asked:
    """One request of the demo.

    Args:
        name: for the tables.
        tokens: of the text itself, as the tokenizer counts them.
        prompt: the text as the model was trained to read it.
        is_long: whether it is one of the long texts.
    """

    name: str
    tokens: int
    prompt: str
    is_long: bool


def padded(tokenizer: Tokenizer, tokens: int) -> str:
    """A text of at least so many tokens, by less than a word more; a question is its end."""
    words = " ".join(SENTENCES).split()
    enough = list(islice(cycle(words), tokens))  # no word has less than a token

    def text(count: int) -> str:
        return " ".join([*enough[:count], QUESTION])

    return text(bisect_left(range(len(enough)), tokens, key=lambda count: len(tokenizer.encode(text(count)))))


def requests(tokenizer: Tokenizer) -> list[Asked]:
    """All five, in the order in which they are sent."""
    texts = {**{name: padded(tokenizer, tokens) for name, tokens in LONG.items()}, **SHORT}
    return [
        Asked(name, len(tokenizer.encode(texts[name])), rendered(tokenizer, texts[name]), name in LONG)
        for name in ORDER
    ]


def rendered(tokenizer: Tokenizer, text: str) -> str:
    """With the chat template around it, if the model has one."""
    if not tokenizer.has_chat_template:
        return text
    return tokenizer.apply_chat_template([{"role": "user", "content": text}])
