"""A conversation on the terminal. Its history goes through the chat template; when it is full, the oldest turns go."""

import sys

from .engine import Engine

GOODBYES = ("exit", "quit")


class MessageTooLong(Exception):
    """A question that does not fit into the model's context, even alone."""


class Conversation:
    """The messages so far, always question and answer in turn.

    Args:
        engine: counts tokens, and knows how many the model reads.
    """

    def __init__(self, engine: Engine):
        self._engine = engine
        self.messages: list[dict[str, str]] = []

    def prompt(self, question: str) -> tuple[str, int]:
        """The prompt that ends with `question`, and how many of the oldest turns were dropped to make room.

        Raises:
            MessageTooLong: the conversation is as it was.
        """
        # Half of the context at most is kept free, so that a large --max-tokens does not forbid every history.
        reserve = min(self._engine.max_tokens, self._engine.context // 2)
        messages = [*self.messages, {"role": "user", "content": question}]
        for dropped in range(len(messages) // 2 + 1):
            kept = messages[2 * dropped :]
            text = self._engine.tokenizer.apply_chat_template(kept)
            count = self._engine.count(text)
            if count + reserve <= self._engine.context:
                self.messages = kept
                return text, dropped
        raise MessageTooLong(
            f"this message has {count} tokens with its template, and {self._engine.context - reserve} fit: shorten it"
        )

    def keep(self, answer: str) -> None:
        """Adds the answer to the question that `prompt` was given."""
        self.messages.append({"role": "assistant", "content": answer})


def chat(engine: Engine, first: str | None = None) -> None:
    """Asks and answers until `exit`, `quit` or the end of the input. `first` is a question to begin with."""
    conversation = Conversation(engine)
    if _at_a_terminal():
        print("Ctrl-D or exit ends the conversation.")
    question = _read() if first is None else first
    while question is not None:
        if question:
            _turn(engine, conversation, question)
        question = _read()


def _turn(engine: Engine, conversation: Conversation, question: str) -> None:
    try:
        prompt, dropped = conversation.prompt(question)
    except MessageTooLong as error:
        print(f"({error})")
        return
    if dropped:
        turns = "the oldest turn" if dropped == 1 else f"the {dropped} oldest turns"
        print(f"({turns} dropped: the model reads {engine.context} tokens)")
    conversation.keep(engine.answer(prompt))


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _read() -> str | None:
    """The next question, None at the end. The prompt is shown to people, and not when the input is a file."""
    if sys.stdin is None:  # closed, as by `<&-`
        return None
    try:
        line = input("> " if _at_a_terminal() else "").strip()
    except EOFError:
        if _at_a_terminal():
            print()
        return None
    except KeyboardInterrupt:
        print()  # the shell's prompt begins on a line of its own
        raise
    return None if line in GOODBYES else line
