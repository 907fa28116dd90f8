"""A conversation on the terminal, with the chat template. If its history is too long, the oldest turns are dropped."""

import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tiny_llm_engine.machine.terminal import TerminalSession
from tiny_llm_extensions.arguments import open_llm, week3_options

if TYPE_CHECKING:
    from tiny_llm_engine.models.tokenization import Tokenizer
    from tiny_llm_engine.solutions.solution_types import SamplingParams
    from tiny_llm_extensions.llm import LLM

GOODBYES = ("exit", "quit")


def open_engine(options: Namespace) -> TerminalSession:
    """Load Week 3's engine, ready to answer; it draws tokens by `SamplingParams`."""
    llm = open_llm(options, max_num_seqs=1, **week3_options(options))

    def generate(
        llm: "LLM",
        tokenizer: "Tokenizer",
        ids: list[int],
        params: "SamplingParams",
        *,
        max_tokens: int,
        on_text: Callable[[str], object],
    ) -> str:
        return llm.stream(ids, replace(params, max_tokens=max_tokens), on_text)

    return TerminalSession(
        port=llm.engine.port,
        generate=generate,
        model=llm,
        tokenizer=llm.get_tokenizer(),
        sampler=llm.engine.names.SamplingParams(options.temperature, options.top_p, options.top_k),
        context=llm.engine.max_model_len,
        max_tokens=options.max_tokens,
    )


class MessageTooLong(Exception):
    """Raised for a question that does not fit into the model's context, even without a history."""


class Conversation:
    """The messages so far, questions and answers in turn.

    Args:
        session: has the tokenizer and the size of the model's context in tokens.
    """

    def __init__(self, session: TerminalSession):
        self._session = session
        self.messages: list[dict[str, str]] = []

    def prompt(self, question: str) -> tuple[list[int], int]:
        """The ids of the prompt that ends with `question`, and the number of oldest turns dropped to make room.

        Raises:
            MessageTooLong: `question` does not fit; the conversation is unchanged.
        """
        # Reserve at most half of the context, so that a large --max-tokens leaves room for some history.
        reserve = min(self._session.max_tokens, self._session.context // 2)
        messages = [*self.messages, {"role": "user", "content": question}]
        tokenizer, ids = self._session.tokenizer, []
        for dropped in range(len(messages) // 2 + 1):
            kept = messages[2 * dropped :]
            ids = tokenizer.encode(tokenizer.apply_chat_template(kept))
            if len(ids) + reserve <= self._session.context:
                self.messages = kept
                return ids, dropped
        raise MessageTooLong(
            f"this message has {len(ids)} tokens with its template, and {self._session.context - reserve} fit: "
            "shorten it"
        )

    def keep(self, answer: str) -> None:
        """Add the answer to the last question given to `prompt`."""
        self.messages.append({"role": "assistant", "content": answer})


def chat(session: TerminalSession, first: str | None = None) -> None:
    """Ask and answer until `exit`, `quit` or the end of the input. `first` is a question to begin with."""
    conversation = Conversation(session)
    if _at_a_terminal():
        print("Ctrl-D or exit ends the conversation.")
    question = _read() if first is None else first
    while question is not None:
        if question:
            _turn(session, conversation, question)
        question = _read()


def _turn(session: TerminalSession, conversation: Conversation, question: str) -> None:
    try:
        prompt, dropped = conversation.prompt(question)
    except MessageTooLong as error:
        print(f"({error})")
        return
    if dropped:
        turns = "the oldest turn" if dropped == 1 else f"the {dropped} oldest turns"
        print(f"({turns} dropped: the model reads {session.context} tokens)")
    conversation.keep(session.answer(prompt))


def _at_a_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _read() -> str | None:
    """The next question, None at the end. The prompt is printed only at a terminal."""
    if sys.stdin is None:  # closed, as by `<&-`
        return None
    try:
        line = input("> " if _at_a_terminal() else "").strip()
    except EOFError:
        if _at_a_terminal():
            print()
        return None
    except KeyboardInterrupt:
        print()  # so that the shell's prompt starts on a new line
        raise
    return None if line in GOODBYES else line
