"""The answers to one request as its reader gets them: piece by piece, at the reader's own pace."""

import asyncio
from collections import abc
from collections.abc import AsyncIterator, Callable

from tiny_llm_engine.loop_state import Piece, StreamedRequest


class RequestStream:
    """Connects the engine's thread, which produces pieces, with one reader on the event loop.

    Iterating yields lists of pieces, at most one piece per answer, and ends after the last piece of every answer. What
    a slow reader has not fetched is merged, so that it never takes more memory than the answers themselves.

    `new_pieces` and `has_ended` belong to the engine's thread, everything else to the event loop.

    Args:
        requests: one for each prompt; their answers are numbered from the first prompt's first.
        abandon: called with the stream when its reader leaves before the end.
    """

    def __init__(self, requests: abc.Sequence[StreamedRequest], abandon: Callable[["RequestStream"], None]):
        self.requests = list(requests)
        self.sequences = [sequence for request in requests for sequence in request.sequences]
        self._abandon = abandon
        self._emitted = [(0, 0)] * len(self.sequences)  # characters and tokens in pieces so far
        self._unfinished = set(range(len(self.sequences)))  # answers whose last piece was not produced
        self._unread: dict[int, Piece] = {}  # by answer
        self._open = set(range(len(self.sequences)))  # answers whose last piece was not put
        self._has_news = asyncio.Event()

    @property
    def is_done(self) -> bool:
        """Whether the last piece of every answer is here, read or not."""
        return not self._open

    @property
    def has_ended(self) -> bool:
        """Whether `new_pieces` has given the last piece of every answer. For the engine's thread."""
        return not self._unfinished

    def new_pieces(self) -> list[Piece]:
        """What the answers have gained since the last call, for those that have gained anything. Given."""
        pieces = []
        for index in sorted(self._unfinished):
            sequence, (characters, tokens) = self.sequences[index], self._emitted[index]
            text, count, reason = sequence.text, len(sequence.tokens), sequence.finish_reason
            if (len(text), count) == (characters, tokens) and reason is None:
                continue
            sampled = sequence.sampled[tokens:count]
            why = None if reason is None else sequence.stop_reason
            pieces.append(Piece(index, text[characters:], sampled, reason, sequence.error, why))
            self._emitted[index] = len(text), count
            if reason is not None:
                self._unfinished.discard(index)
        return pieces

    def put(self, pieces: abc.Sequence[Piece]) -> None:
        """Gives pieces to the reader. Never blocks, because its caller serves all other readers too."""
        # TASK 3.6.1: one unread piece per answer, whatever the reader does: a new one joins the one that waits.
        # The last piece of an answer closes it (`_open`). Then wake the reader.
        for piece in pieces:
            unread = self._unread.get(piece.index)
            self._unread[piece.index] = piece if unread is None else unread.followed_by(piece)
            if piece.finish_reason is not None:
                self._open.discard(piece.index)
        self._has_news.set()

    def __aiter__(self) -> AsyncIterator[list[Piece]]:
        return self

    async def __anext__(self) -> list[Piece]:
        """The unread pieces, in the order of their answers; waits until there are some."""
        # TASK 3.6.1: first what is unread, then the end (StopAsyncIteration), then waiting.
        # Clear the event before you wait for it, and look again afterwards.
        while not self._unread:
            if self.is_done:
                raise StopAsyncIteration
            self._has_news.clear()
            await self._has_news.wait()
        pieces = [self._unread[index] for index in sorted(self._unread)]
        self._unread.clear()
        return pieces

    def close(self) -> None:
        """The reader leaves. Its answers end before the next step; closing twice, or after the end, does nothing."""
        # TASK 3.6.6: only a request that has not ended has anything to end.
        if not self.is_done:
            self._abandon(self)

    def fail(self, error: str) -> None:
        """Ends with an error every answer whose last piece was not put: the engine is dead. Given."""
        self.put([Piece(index, finish_reason="error", error=error) for index in sorted(self._open)])
