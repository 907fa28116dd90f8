"""`POST /v1/responses` for plain text: OpenAI's newer form of a conversation, as a chat completion with other names."""

import time
import uuid
from collections.abc import Sequence
from itertools import count
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import Piece

from .answer_parts import AnswerDelta, AnswerReader
from .formats import AnswerFormat
from .http_responses import event
from .schemas import MOST_MESSAGES, ChatBody, Count, StreamOptions
from .strict_body import RESPONSES, StrictBody


class InputPart(BaseModel):
    """A part of a message; pictures, sound and files are not supported."""

    model_config = ConfigDict(strict=True)
    type: Literal["input_text", "output_text", "text"]
    text: str


class InputMessage(BaseModel):
    """A message, or an item of an earlier answer."""

    model_config = ConfigDict(strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[InputPart], Field(min_length=1, fail_fast=True)]

    @model_validator(mode="before")
    @classmethod
    def check_type(cls, item: object) -> object:
        """Refuse calls of tools and other items, with the reason.

        Raises:
            PydanticCustomError: of such an item.
        """
        if isinstance(item, dict) and item.get("type", "message") != "message":
            why = "items other than messages are not supported: use /v1/chat/completions for tools"
            raise PydanticCustomError("not_read", "{why}", {"why": why})
        return item

    def as_chat(self) -> Json:
        """The message with the names of a chat completion."""
        parts = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": parts}


class ResponseBody(StrictBody):
    """The body of `POST /v1/responses`."""

    known = RESPONSES
    input: str | Annotated[list[InputMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    model: str | None = None
    instructions: str | None = Field(None, description="a system message before the input")
    max_output_tokens: Count | None = Field(None, description="tokens of the answer; default: the context")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: 1")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from the nucleus of this probability")
    stream: bool | None = Field(None, description="send the answer as server-sent events while it is made")
    user: str | None = Field(None, description="accepted, not used")

    def as_chat(self) -> "ResponseChat":
        """The chat completion that it stands for."""
        turns = [{"role": "user", "content": self.input}] if isinstance(self.input, str) else None
        turns = turns or [message.as_chat() for message in self.input if not isinstance(message, str)]
        if self.instructions:
            turns.insert(0, {"role": "system", "content": self.instructions})
        options = {name: getattr(self, name) for name in ("model", "temperature", "top_p", "stream")}
        return ResponseChat.model_validate(
            {**options, "messages": turns, "max_completion_tokens": self.max_output_tokens}
        )


class ResponseChat(ChatBody):
    """The chat completion of a response, whose errors have the names of the responses API."""

    @property
    def own_names(self) -> dict[str, str]:
        limits = dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens")
        return {"messages": "input", **limits}


class ResponsesFormat(AnswerFormat):
    """The response object, with one message, and before it what the model has thought.

    Args:
        model, tokenizer: see `AnswerFormat`.
        body: the request, parsed and checked.
        reader: of the answer's text.
    """

    end = ""

    def __init__(self, model: str, tokenizer: Tokenizer, body: ResponseBody, reader: AnswerReader):
        super().__init__(model, tokenizer, False)
        self.id, self._body, self.reader = f"resp_{uuid.uuid4().hex}", body, reader
        self.message_id = f"msg_{uuid.uuid4().hex}"

    def events(self, options: StreamOptions, asked: int) -> "ResponseEvents":
        return ResponseEvents(self)

    def whole(self, answers: Sequence[Piece], usage: Json) -> Json:
        delta = self.reader.add(answers[0].text, is_last=True)
        return self.response(delta, answers[0].finish_reason, usage)

    def response(
        self,
        answer: AnswerDelta | None = None,
        reason: str | None = None,
        usage: Json | None = None,
    ) -> Json:
        """The response; in progress without an answer."""
        is_cut = reason == "length"
        body = self._body
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if answer else None,
            "status": "in_progress" if answer is None else "incomplete" if is_cut else "completed",
            "model": self.model,
            "output": self.output(answer, is_cut) if answer else [],
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": "disabled",
            "usage": usage and usage_of(usage),
        }

    def output(self, answer: AnswerDelta, is_cut: bool) -> list[Json]:
        """The items: what the model has thought, if anything, after the message, whose place is known first."""
        items = [self.message(answer.content, "incomplete" if is_cut else "completed")]
        if answer.reasoning:
            text = [{"type": "reasoning_text", "text": answer.reasoning}]
            items.append({"id": f"rs_{self.id}", "type": "reasoning", "summary": [], "content": text})
        return items

    def message(self, text: str | None, status: str) -> Json:
        """The message; without content at its beginning."""
        content = [] if text is None else [self.part(text)]
        return {
            "id": self.message_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    @staticmethod
    def part(text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseEvents:
    """The pieces of one stream as events of the responses API.

    Args:
        form: builds the response object that the first and last events hold.
    """

    def __init__(self, form: ResponsesFormat):
        self._form, self._numbers = form, count()
        self._answer, self._reason = AnswerDelta(), None
        self._place = {"item_id": form.message_id, "output_index": 0, "content_index": 0}

    def first(self, count: int) -> str:
        form = self._form
        begun = form.response()
        return (
            self._say("response.created", response=begun)
            + self._say("response.in_progress", response=begun)
            + self._say("response.output_item.added", output_index=0, item=form.message(None, "in_progress"))
            + self._say("response.content_part.added", **self._place, part=form.part(""))
        )

    def __call__(self, piece: Piece) -> str:
        self._reason, answer = piece.finish_reason, self._answer
        delta = self._form.reader.add(piece.text, self._reason is not None)
        answer.content, answer.reasoning = answer.content + delta.content, answer.reasoning + delta.reasoning
        if not delta.content:
            return ""
        return self._say("response.output_text.delta", **self._place, delta=delta.content, logprobs=[])

    def last(self, usage: Json) -> str:
        whole, text = self._form.response(self._answer, self._reason, usage), self._answer.content
        return (
            self._say("response.output_text.done", **self._place, text=text, logprobs=[])
            + self._say("response.content_part.done", **self._place, part=self._form.part(text))
            + self._say("response.output_item.done", output_index=0, item=whole["output"][0])
            + self._say(f"response.{whole['status']}", response=whole)
        )

    def _say(self, kind: str, **fields: object) -> str:
        number = next(self._numbers)
        return f"event: {kind}\n{event({'type': kind, **fields, 'sequence_number': number})}"


def usage_of(usage: Json) -> Json:
    """Numbers of tokens with the names of the responses API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
