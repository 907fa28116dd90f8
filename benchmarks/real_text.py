"""Workloads of real text for a model that can chat: short tasks of four kinds, and parts of this book as documents."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from tiny_llm_course.trace.prompts import rendered
from tiny_llm_course.trace.workload import LONG, RUNNING, SHORT, RequestSpec
from tiny_llm_engine.machine.repo import ROOT

if TYPE_CHECKING:
    from tiny_llm_engine.models.tokenization import Tokenizer

QUESTIONS = (
    "What is the capital of France?",
    "Explain how a bicycle works.",
    "Write a Python function that adds two numbers.",
    "Translate 'good morning, my friend' into Spanish.",
    "Count from 1 to 20.",
    "Why is the sky blue?",
    "Write a short poem about the sea.",
    "What is 17 + 25?",
    "List three kinds of trees.",
    "Who wrote Hamlet?",
    "Summarise: a cache keeps what was computed once, so that it need not be computed again.",
    "How do I boil an egg?",
    "What does a compiler do?",
    "Bonjour ! Comment vas-tu ?",
    "Repeat after me: the quick brown fox jumps over the lazy dog, the quick brown fox.",
    "Give me a JSON object with a name and an age.",
    "What is the difference between weather and climate?",
    "Write the HTML of a page with one heading.",
    "Tell me a joke about computers.",
    "Which is heavier, a kilogram of iron or a kilogram of feathers?",
)
PASSAGE = 600  # characters of a text to copy or to translate
# Of "documents": questions that are answered throughout, and decode steps between two documents.
STREAMS, EVERY = 4, 60


def passages(folder: str, pattern: str, length: int) -> Iterator[str]:
    """The beginning of each file of the repository that is long enough, in the order of their names."""
    for file in sorted((ROOT / folder).rglob(pattern)):
        if len(text := file.read_text(encoding="utf-8")) > length:
            yield text[:length]


def tasks(kind: str) -> Iterator[str]:
    """The prompts of a kind of task."""
    if kind == "chat":
        yield from QUESTIONS
    elif kind == "code":
        for text in passages("src/tiny_llm_ref/serving", "*.py", PASSAGE):
            yield f"Write this Python file again, with a comment above every function:\n\n```python\n{text}\n```"
    else:
        ask = {"copying": "Repeat the following text word for word", "translation": "Translate into French"}[
            kind
        ]
        for text in passages("book/src", "week*.md", PASSAGE):
            yield f"{ask}:\n\n{text}"


def short_tasks(kind: str, size: Any, tokenizer: "Tokenizer") -> Iterator[RequestSpec]:
    """Requests of one kind, whose answers have at most `output_len` tokens."""
    for text in list(tasks(kind))[: size.num_prompts]:
        yield spec(tokenizer, text, size.output_len)


def spec(tokenizer: "Tokenizer", text: str, answer: int, kind: str = SHORT) -> RequestSpec:
    """A request of one message."""
    ids = tokenizer.encode(rendered(tokenizer, text))
    return RequestSpec(kind, len(ids), answer, prompt=tuple(ids))


def document(tokenizer: "Tokenizer", text: str, size: Any, question: str, kind: str = LONG) -> RequestSpec:
    """A request with the first `input_len` tokens of a text and a question about it."""
    text = tokenizer.decode(tokenizer.encode(text)[: size.input_len])
    return spec(tokenizer, f"{text}\n\n{question}", size.output_len, kind)


def book_parts(length: int) -> Iterator[str]:
    """Parts of the book of `length` characters; they cross the ends of its pages, which may be shorter."""
    text = "".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "book/src").glob("week*.md")))
    return (text[start : start + length] for start in range(0, len(text) - length, length))


def documents(size: Any, tokenizer: "Tokenizer") -> Iterator[RequestSpec]:
    """Questions that are answered throughout; documents arrive among them, each followed by a short question."""
    pages = list(islice(book_parts(5 * size.input_len), size.num_prompts))
    for text in QUESTIONS[:STREAMS]:
        yield spec(tokenizer, text, EVERY * (len(pages) + 1), RUNNING)
    for number, (page, text) in enumerate(zip(pages, QUESTIONS[STREAMS:], strict=False), start=1):
        yield replace(document(tokenizer, page, size, "Summarise this page."), arrives=EVERY * number)
        yield replace(spec(tokenizer, text, size.output_len), arrives=EVERY * number)


def one_document(size: Any, tokenizer: "Tokenizer") -> Iterator[RequestSpec]:
    """Questions about the same document."""
    page = next(book_parts(5 * size.input_len))
    for question in QUESTIONS[: size.num_prompts]:
        yield document(tokenizer, page, size, question)


KINDS = ("copying", "code", "chat", "translation")
TEXTS: dict[str, Callable[..., Iterator[RequestSpec]]] = {
    **{kind: partial(short_tasks, kind) for kind in KINDS},
    "documents": documents,
    "one-document": one_document,
}
