"""The tabs of the live page: one feed each, with the steps of the engine and the texts of this tab's own answers.

A browser has six connections to a server: a stream for each answer would take all of them.
"""

import asyncio
import json
import logging
import secrets
from collections import deque

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from tiny_llm_engine.models.files import Json

from .errors import INTERNAL
from .http_responses import AsciiJson

LOG = logging.getLogger("tiny_llm.server")
MOST_ANSWERS = 16  # of a tab
MOST_UNREAD = 256  # messages of one tab; the oldest ones are dropped
QUIET_SECONDS = 15.0  # after which a comment is sent, so that the connection is not taken for dead
UNSENT = (0, False)  # of an answer: characters, and whether it had ended


class Answer:
    """An answer of a tab, as far as it has come: it stands for the client of its own response.

    Args:
        request: that asked for it.
        response: a stream of events.
        news: set when there is more of it.
    """

    def __init__(self, request: Request, response: Response, news: asyncio.Event):
        self.text, self.error, self.sent, self._news = "", "", UNSENT, news
        never = asyncio.get_running_loop().create_future
        self.task = asyncio.create_task(response(request.scope, never, self._send))
        self.task.add_done_callback(self._end)

    async def _send(self, message: Message) -> None:
        for line in message.get("body", b"").splitlines():
            piece = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: {") else {}
            self.error = piece.get("error", {"message": self.error})["message"]
            for choice in piece.get("choices", ()):
                self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        self._news.set()

    def _end(self, task: asyncio.Task) -> None:
        if task.cancelled():
            self.error = "(stopped)"
        elif error := task.exception():
            LOG.error("an answer of the live page has failed", exc_info=error)
            self.error = INTERNAL
        self._news.set()

    def unsent(self, name: str) -> list[Json]:
        """A message with what was not sent, if there is anything; `anew` has the text from its beginning."""
        before, self.sent = self.sent, (len(self.text), self.task.done())
        if before == self.sent:
            return []
        state = {"anew": before == UNSENT, "error": self.error, "done": self.task.done()}
        return [{"kind": "answer", "answer": name, "text": self.text[before[0] :], **state}]


class Tab:
    """A tab of a browser: its answers, by the id of their request, and what its one reader has not read.

    Its name is the right to read these answers, so nobody can guess it. A page that loads again keeps the name.
    """

    def __init__(self) -> None:
        self.name, self.reader = secrets.token_urlsafe(16), 0
        self.answers: dict[str, Answer] = {}
        self._unread: deque[Json] = deque(maxlen=MOST_UNREAD)
        self.news = asyncio.Event()

    def start(self, request: Request, response: Response) -> Response:
        """Let an answer come, whether or not it is read; one of the same name ends, or the oldest of too many."""
        name = request.scope["request_id"]
        if name in self.answers or len(self.answers) == MOST_ANSWERS:
            self.answers.pop(name if name in self.answers else next(iter(self.answers))).task.cancel()
        self.answers[name] = Answer(request, response, self.news)
        return AsciiJson({"answer": name}, 202)

    def put(self, message: Json) -> None:
        self._unread.append(message)
        self.news.set()

    def next_reader(self) -> int:
        """Number of a new reader, which gets every text from its beginning; the one before ends."""
        self.reader += 1
        self._unread.clear()
        for answer in self.answers.values():
            answer.sent = UNSENT
        self.news.set()
        return self.reader

    def stop(self) -> None:
        """End all answers."""
        for answer in self.answers.values():
            answer.task.cancel()

    async def messages(self, reader: int) -> list[Json]:
        """What a reader has not read; empty after a quiet time, and for a reader that another one follows."""
        try:
            await asyncio.wait_for(self.news.wait(), QUIET_SECONDS)
        except asyncio.TimeoutError:
            return []
        if reader != self.reader:
            return []
        self.news.clear()
        messages, answers = [*self._unread], self.answers.items()
        self._unread.clear()
        return messages + [message for name, answer in answers for message in answer.unsent(name)]
