"""Answers as the two completion endpoints write them: whole, or a chunk for each piece of a stream."""

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Protocol

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import Piece, Sampled

from .answer_parts import AnswerDelta, AnswerReader
from .http_responses import DONE, event
from .schemas import StreamOptions
from .tool_use import ToolUse

MARK = "\0"  # stands for a text, where the JSON around it is written
FEW = 32  # rows that are written at a time: with 20 log-probabilities, some milliseconds
Columns = dict[str, list[bytes]]  # each a list whose values are JSON already, see `json_parts`


class AnswerFormat:
    """What the chunks and the answer to one request have in common.

    Args:
        model: name of the served model.
        tokenizer: decodes single tokens, beside their log-probabilities.
        with_logprobs: whether the client asked for log-probabilities.
    """

    prefix, kind, chunk_kind = "", "", ""
    end = DONE  # of a stream
    reads_text = False  # whether the text of an answer is more than its content
    drops_answer = False  # whether only the prompts were asked for

    def __init__(self, model: str, tokenizer: Tokenizer, with_logprobs: bool):
        self.model, self.tokenizer, self.with_logprobs = model, tokenizer, with_logprobs
        self.id, self.created = f"{self.prefix}-{uuid.uuid4().hex}", int(time.time())
        self._text = cache(lambda token: tokenizer.text_of(token))
        self._logprobs: dict[int, Columns] = {}  # of the next piece of each answer

    async def write_logprobs(self, piece: Piece) -> None:
        """Write the log-probabilities of a piece, which `choice` or `delta` then has, if the client wants them."""
        if self.with_logprobs:
            self._logprobs[piece.index] = await self._columns(piece)

    async def _columns(self, piece: Piece) -> Columns:
        raise NotImplementedError

    def whole(self, answers: Sequence[Piece], usage: Json) -> Json:
        """The answer of a request that is not streamed."""
        return {**self._head(self.kind, [self.choice(answer) for answer in answers]), "usage": usage}

    def chunks(self, piece: Piece) -> list[Json]:
        """The chunks of a piece in a stream."""
        return [self._head(self.chunk_kind, [self.delta(piece)])]

    def usage_chunk(self, usage: Json) -> Json:
        """The last chunk of a stream whose client asked for the numbers of tokens."""
        return {**self._head(self.chunk_kind, []), "usage": usage}

    def events(self, options: StreamOptions, asked: int) -> "StreamEvents":
        """What writes the events of a stream; `asked` is the number of tokens of all prompts."""
        return ChunkEvents(self, options, asked)

    def first_chunks(self, count: int) -> list[Json]:
        """Chunks that come before the first token of any of the `count` answers."""
        return []

    def choice(self, answer: Piece) -> Json:
        """A whole answer."""
        raise NotImplementedError

    def delta(self, piece: Piece) -> Json:
        """A piece of an answer, for a chunk."""
        raise NotImplementedError

    def _head(self, kind: str, choices: list[Json]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


class ChatFormat(AnswerFormat):
    """The format of `/v1/chat/completions`: a message of the assistant.

    Args:
        model, tokenizer, with_logprobs: see `AnswerFormat`.
        uses: the tools of the request.
        new_reader: makes a reader of an answer's text; None where all of it is content.
    """

    prefix, kind, chunk_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        tokenizer: Tokenizer,
        with_logprobs: bool,
        uses: ToolUse = ToolUse(None, {}),  # noqa: B008 (immutable)
        new_reader: Callable[[], AnswerReader] | None = None,
    ):
        super().__init__(model, tokenizer, with_logprobs)
        self._uses, self._new_reader = uses, new_reader
        self._readers: dict[int, AnswerReader] = {}  # by answer
        self.reads_text = new_reader is not None

    def first_chunks(self, count: int) -> list[Json]:
        role = {"role": "assistant", **({} if self.reads_text else {"content": ""})}
        return [self._head(self.chunk_kind, [self._choice(index, "delta", role)]) for index in range(count)]

    def choice(self, answer: Piece) -> Json:
        content = {"content": answer.text} if self._new_reader is None else self._read(answer).message()
        return self._choice(answer.index, "message", {"role": "assistant", **content}, answer)

    def chunks(self, piece: Piece) -> list[Json]:
        """The reason to finish has a chunk of its own, as in OpenAI's API: clients may read no text beside it."""
        [chunk] = super().chunks(piece)
        [choice] = chunk["choices"]
        if piece.finish_reason is None or not any(choice["delta"].values()):
            return [chunk]
        begun = {**choice, "finish_reason": None, "stop_reason": None}
        return [{**chunk, "choices": [each]} for each in (begun, {**choice, "delta": {}, "logprobs": None})]

    def delta(self, piece: Piece) -> Json:
        content = {"content": piece.text} if self._new_reader is None else self._read(piece).fields()
        return self._choice(piece.index, "delta", content, piece)

    def _read(self, piece: Piece) -> AnswerDelta:
        assert self._new_reader is not None
        if piece.index not in self._readers:
            self._readers[piece.index] = self._new_reader()
        return self._readers[piece.index].add(piece.text, piece.finish_reason is not None)

    async def _columns(self, piece: Piece) -> Columns:
        return await columns(["content"], ([self._logprob(each)] for each in piece.sampled))

    def _choice(self, index: int, name: str, content: Json, piece: Piece | None = None) -> Json:
        logprobs = self._logprobs.pop(index, None)
        reasons = {name: piece and getattr(piece, name) for name in ("finish_reason", "stop_reason")}
        if index in self._readers:
            has_calls = self._readers[index].has_calls
            reasons["finish_reason"] = self._uses.finish_reason(reasons["finish_reason"], has_calls)
        return {"index": index, name: content, "logprobs": logprobs, **reasons}

    def _logprob(self, sampled: Sampled) -> Json:
        best = [self._entry(token, value) for token, value in (sampled.top_logprobs or {}).items()]
        return {**self._entry(sampled.token, sampled.logprob), "top_logprobs": best}

    def _entry(self, token: int, logprob: float | None) -> Json:
        bytes_of = self.tokenizer.bytes_of
        return {"token": self._text(token), "logprob": logprob, "bytes": list(bytes_of(token))}


async def columns(names: Sequence[str], rows: Iterable[Sequence[object]]) -> Columns:
    """The columns of a table as JSON. A few rows are computed and written at a time: others are served between.

    On a thread it would stop the others as well, because it holds the interpreter's lock.
    """
    rows, written, start = iter(rows), {name: [] for name in names}, time.monotonic()
    while few := list(islice(rows, FEW)):
        for texts, column in zip(written.values(), zip(*few, strict=True), strict=True):
            texts.append(json.dumps(column)[1:-1].encode())
        if len(few) == FEW:  # others have as much time as this took
            await asyncio.sleep(time.monotonic() - start)
            start = time.monotonic()
    return {name: [b", ".join(texts)] if texts else [] for name, texts in written.items()}


class StreamEvents(Protocol):
    """Writes the server-sent events of one stream. A text is empty where there is nothing to send."""

    def first(self, count: int) -> str:
        """The events before the first token of any of the `count` answers."""
        ...

    def __call__(self, piece: Piece) -> str:
        """The event of a piece."""
        ...

    def last(self, usage: Json) -> str:
        """The events after the last piece."""
        ...


class ChunkEvents:
    """The pieces of one stream as chunks.

    All but the text is the same in nearly every event of an answer, and is written as JSON once.

    Args:
        format: the endpoint's format.
        options: what the client wants in a stream.
        prompt_tokens: tokens of all prompts.
    """

    def __init__(self, format: AnswerFormat, options: StreamOptions, prompt_tokens: int):
        self._format, self._has_usage = format, bool(options.include_usage)
        self._prompt_tokens = prompt_tokens if options.continuous_usage_stats else None
        self._tokens = 0
        self._around: dict[int, list[str]] = {}  # by answer: what comes before its text, and after it

    def __call__(self, piece: Piece) -> str:
        self._tokens += len(piece.sampled)
        is_inner = piece.finish_reason is None and not self._format.with_logprobs
        if is_inner and not piece.text:
            return ""
        if is_inner and self._prompt_tokens is None and not self._format.reads_text:
            return self._with_text(piece)
        chunks = self._format.chunks(piece)
        if is_inner and self._format.reads_text and not chunks[0]["choices"][0]["delta"]:
            return ""
        return "".join(map(self._event, chunks))

    def first(self, count: int) -> str:
        return "".join(map(self._event, self._format.first_chunks(count)))

    def last(self, usage: Json) -> str:
        return event(self._format.usage_chunk(usage)) if self._has_usage else ""

    def _with_text(self, piece: Piece) -> str:
        if piece.index not in self._around:
            [chunk] = self._format.chunks(replace(piece, text=MARK))
            marked = self._event(chunk)
            self._around[piece.index] = marked.split(json.dumps(MARK))
        before, after = self._around[piece.index]
        return f"{before}{json.dumps(piece.text)}{after}"

    def _event(self, chunk: Json) -> str:
        asked, usage = self._prompt_tokens, {"usage": None} if self._has_usage else {}
        if asked is not None:
            usage = {"usage": token_counts(asked, self._tokens)}
        return event({**chunk, **usage})


def token_counts(asked: int, made: int) -> dict[str, int]:
    """Numbers of tokens of prompts and answers, as OpenAI's API has them."""
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}
