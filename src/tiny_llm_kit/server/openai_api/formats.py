"""Answers as the two completion endpoints write them: whole, or a chunk for each piece of a stream."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...model.tokenizer import Tokenizer
from ...solution_types import Piece, Sampled
from .event_stream import event

MARK = "\0"  # stands for a text, where the JSON around it is written


class AnswerFormat:
    """What the chunks and the answer to one request have in common.

    Args:
        model: name of the served model.
        tokenizer: decodes single tokens, beside their log-probabilities.
        with_logprobs: whether the client asked for log-probabilities.
    """

    prefix, kind, chunk_kind = "", "", ""

    def __init__(self, model: str, tokenizer: Tokenizer, with_logprobs: bool):
        self.model, self.tokenizer, self.with_logprobs = model, tokenizer, with_logprobs
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())

    def whole(self, answers: Sequence[Piece], usage: dict[str, Any]) -> dict[str, Any]:
        """The answer of a request that is not streamed."""
        return {**self._head(self.kind, [self.choice(answer) for answer in answers]), "usage": usage}

    def chunk(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """A chunk of a stream."""
        return self._head(self.chunk_kind, [self.delta(piece) for piece in pieces])

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream whose client asked for the numbers of tokens."""
        return {**self._head(self.chunk_kind, []), "usage": usage}

    def first_chunks(self, count: int) -> list[dict[str, Any]]:
        """Chunks that come before the first token of any of the `count` answers."""
        return []

    def choice(self, answer: Piece) -> dict[str, Any]:
        """A whole answer."""
        raise NotImplementedError

    def delta(self, piece: Piece) -> dict[str, Any]:
        """A piece of an answer, for a chunk."""
        raise NotImplementedError

    def _head(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _text(self, token: int) -> str:
        return self.tokenizer.text_of(token)


class CompletionFormat(AnswerFormat):
    """The format of `/v1/completions`: plain text."""

    prefix, kind, chunk_kind = "cmpl", "text_completion", "text_completion"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._offsets: dict[int, int] = {}  # characters of each answer's tokens so far

    def choice(self, answer: Piece) -> dict[str, Any]:
        return self.delta(answer)

    def delta(self, piece: Piece) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.text,
            "logprobs": self._logprobs(piece) if self.with_logprobs else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }

    def _logprobs(self, piece: Piece) -> dict[str, list]:
        found: dict[str, list] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        offset = self._offsets.get(piece.index, 0)
        for sampled in piece.sampled:
            best = {**(sampled.top_logprobs or {}), sampled.token: sampled.logprob}
            found["tokens"].append(self._text(sampled.token))
            found["token_logprobs"].append(sampled.logprob)
            found["top_logprobs"].append({self._text(token): value for token, value in best.items()})
            found["text_offset"].append(offset)
            offset += len(found["tokens"][-1])
        self._offsets[piece.index] = offset
        return found


class ChatFormat(AnswerFormat):
    """The format of `/v1/chat/completions`: a message of the assistant."""

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def first_chunks(self, count: int) -> list[dict[str, Any]]:
        role = {"role": "assistant", "content": ""}
        return [self._head(self.chunk_kind, [self._choice(index, "delta", role)]) for index in range(count)]

    def choice(self, answer: Piece) -> dict[str, Any]:
        return self._choice(answer.index, "message", {"role": "assistant", "content": answer.text}, answer)

    def delta(self, piece: Piece) -> dict[str, Any]:
        return self._choice(piece.index, "delta", {"content": piece.text}, piece)

    def _choice(
        self, index: int, name: str, content: dict[str, str], piece: Piece | None = None
    ) -> dict[str, Any]:
        logprobs = {"content": [*map(self._logprob, piece.sampled)]} if piece and self.with_logprobs else None
        reasons = {name: piece and getattr(piece, name) for name in ("finish_reason", "stop_reason")}
        return {"index": index, name: content, "logprobs": logprobs, **reasons}

    def _logprob(self, sampled: Sampled) -> dict[str, Any]:
        best = [self._entry(token, value) for token, value in (sampled.top_logprobs or {}).items()]
        return {**self._entry(sampled.token, sampled.logprob), "top_logprobs": best}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        bytes_of = self.tokenizer.bytes_of
        return {"token": self._text(token), "logprob": logprob, "bytes": list(bytes_of(token))}


class ChunkEvents:
    """The pieces of one stream as server-sent events.

    All but the text is the same in nearly every event of an answer, and is written as JSON once.

    Args:
        format: of the endpoint.
        extra: further fields of every chunk.
    """

    def __init__(self, format: AnswerFormat, extra: Mapping[str, Any]):
        self._format, self._extra = format, extra
        self._around: dict[int, list[str]] = {}  # by answer: what comes before its text, and after it

    def __call__(self, piece: Piece) -> str:
        if piece.finish_reason is not None or self._format.with_logprobs:
            return self._event(piece)
        if piece.index not in self._around:
            marked = self._event(replace(piece, text=MARK))
            self._around[piece.index] = marked.split(json.dumps(MARK))
        before, after = self._around[piece.index]
        return f"{before}{json.dumps(piece.text)}{after}"

    def _event(self, piece: Piece) -> str:
        return event({**self._format.chunk([piece]), **self._extra})
