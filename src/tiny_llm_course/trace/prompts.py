"""The prompts of a batch: twelve that come with the course, or those of a file, one a line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiny_llm_engine.models.tokenization import Tokenizer

# The shipped model can answer them. Their answers differ in length, so slots become free at different times.
QUESTIONS = (
    "What is chunked prefill?",
    "Which day teaches attention?",
    "Who are you?",
    "Thank you!",
    "What is a KV cache?",
    "What is the formula of attention?",
    "Which day teaches continuous batching?",
    "What is continuous batching?",
    "How do I skip a day?",
    "Goodbye",
    "What is p99?",
    "What is static batching?",
)
STANDARD_INPUT = "-"


def rendered(tokenizer: "Tokenizer", text: str) -> str:
    """The prompt in the model's chat template, or as it is if the model has none.

    Raises:
        CheckpointError: the template fails.
    """
    if not tokenizer.has_chat_template:
        return text
    return tokenizer.apply_chat_template([{"role": "user", "content": text}])


def read_prompts(file: str) -> list[str]:
    """The lines of a UTF-8 file, or of standard input when it is called "-". Blank lines are skipped.

    Raises:
        ValueError: it cannot be read, is not UTF-8, or has no prompt in it.
    """
    name = "standard input" if file == STANDARD_INPUT else file
    try:
        text = _bytes(file).decode().removeprefix("\ufeff")  # the byte order mark of some editors
    except OSError as error:
        raise ValueError(f"{name}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        line = 1 + error.object.count(b"\n", 0, error.start)
        raise ValueError(f"{name}, line {line}: not UTF-8: save the file as UTF-8 text") from None
    # Not splitlines(): that also splits at characters that may be in a prompt.
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise ValueError(f"{name}: no prompt in it: write one per line")
    return prompts


def _bytes(file: str) -> bytes:
    if file != STANDARD_INPUT:
        return Path(file).read_bytes()
    return b"" if sys.stdin is None else sys.stdin.buffer.read()  # None: closed, as by `<&-`
