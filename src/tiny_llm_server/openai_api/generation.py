"""The endpoints that generate: a body becomes a request, and its pieces an answer, whole or as server-sent events."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import Piece, SamplingParams

from . import answer_schemas, schemas
from .answer_parts import AnswerReader
from .completion_format import CompletionFormat, Echo
from .errors import BUSY, INTERNAL, ApiError, unavailable
from .formats import AnswerFormat, ChatFormat, token_counts
from .http_responses import STREAM, AsciiJson, Disconnected, EventStream, event, while_connected
from .live_page import tab_of
from .responses import ResponseBody, ResponsesFormat
from .service_contract import AnswerStream, ModelService
from .submission import chat_ids, check_body, prompt_ids, prompts_of, sampling_params, service_of, submit
from .tool_use import NewReader, ToolUse, begins_inside_thought, may_think, template_names


def add_completions(app: FastAPI) -> None:
    """Add the two endpoints that generate."""

    @app.post("/v1/completions", response_model=answer_schemas.CompletionAnswer, responses={**BUSY, **STREAM})
    async def completions(request: Request, body: schemas.CompletionBody) -> Response:
        """Continue a text, or several."""
        with errors_in_words_of(body):
            return await completion(service_of(request), request, body)

    @app.post("/v1/chat/completions", response_model=answer_schemas.ChatAnswer, responses={**BUSY, **STREAM})
    async def chat(request: Request, body: schemas.ChatBody) -> Response:
        """Answer a conversation."""
        with errors_in_words_of(body):
            service = service_of(request)
            stream, params, uses, reader = await opened(service, body)
            names = service.options.model_name, service.model.tokenizer
            answer = ChatFormat(*names, bool(body.logprobs), uses, reader)
            return await Generation(service, stream, answer, params.n).respond(request, body)

    @app.post("/v1/responses", responses={**BUSY, **STREAM})
    async def responses(request: Request, body: ResponseBody) -> Response:
        """Answer a conversation, in OpenAI's newer form; plain text alone."""
        chat = body.as_chat()
        with errors_in_words_of(chat):
            service = service_of(request)
            stream, _, _, new_reader = await opened(service, chat)
            reader = new_reader() if new_reader else AnswerReader(None, None)
            answer = ResponsesFormat(service.options.model_name, service.model.tokenizer, body, reader)
            return await Generation(service, stream, answer, 1).respond(request, chat)


@contextmanager
def errors_in_words_of(body: schemas.GenerationBody) -> Iterator[None]:
    """Give errors the names of fields that the client has used."""
    try:
        yield
    except ApiError as error:
        raise error.in_words_of(body.own_names) from None


async def completion(service: ModelService, request: Request, body: schemas.CompletionBody) -> Response:
    """The answer to `POST /v1/completions`."""
    check_body(service, body)
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(
            400,
            "max_tokens: give a number greater than or equal to 1; 0 is for echo: true",
            param="max_tokens",
        )
    limit = 1 if body.max_tokens == 0 else body.max_tokens
    asked = body.logprobs if body.echo else None
    room = service.options.form_room(limit, service.model.max_model_len)
    params = sampling_params(service.names, body, limit, body.logprobs, prompt_logprobs=asked, room=room)
    prompts = prompts_of(body.prompt)
    service.check_room(len(prompts), params.n)
    ids = await prompt_ids(service, prompts)
    stream = await submit(service, body, ids, params, "prompt")
    tokenizer = service.model.tokenizer
    name, with_logprobs = service.options.model_name, body.logprobs is not None
    echo = None
    if body.echo:
        texts = [prompt if isinstance(prompt, str) else tokenizer.decode(prompt) for prompt in prompts]
        echo = Echo(texts, ids, params.n, lambda: stream.sequences, body.max_tokens == 0)
    form = CompletionFormat(name, tokenizer, with_logprobs, params.skip_special_tokens, echo)
    return await Generation(service, stream, form, params.n).respond(request, body)


async def opened(
    service: ModelService, body: schemas.ChatBody
) -> tuple[AnswerStream, SamplingParams, ToolUse, NewReader | None]:
    """The stream of a conversation's answers, its parameters and tools, and what makes readers of its text."""
    check_body(service, body)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: true", param="top_logprobs")
    options, tokenizer = service.options, service.model.tokenizer
    uses = ToolUse.of(body, tokenizer, options.tool_call_parser)
    service.check_room(1, body.n or 1)
    names = {**options.chat_template_kwargs, **template_names(body, uses)}
    ids = await chat_ids(service, body.messages, names=names)
    limit, room = body.max_completion_tokens or body.max_tokens, service.model.max_model_len - len(ids)
    form = uses.grammar(tokenizer, min(limit or room, room)), uses.shows_special(tokenizer)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    bounds = options.form_room(limit, room)
    params = sampling_params(service.names, body, limit, logprobs, *form, room=bounds)
    stream = await submit(service, body, [ids], params, "messages")
    # A form leaves no room for the rest of a thought that the prompt has begun.
    begun = params.structured_outputs is None and begins_inside_thought(tokenizer, ids)
    thinks = may_think(tokenizer, options.reasoning_parser)
    reader = uses.reader_of(thinks, begun, body.include_reasoning is not False)
    return stream, params, uses, reader


TIMED_OUT = "the request took longer than the server allows: ask for fewer tokens, or try again later"


@dataclass(frozen=True)
class Generation:
    """One open request: its stream, and the format of its answer.

    Args:
        service: where it was submitted.
        stream: yields the pieces of its answers.
        format: turns the answers into the endpoint's JSON.
        n: answers to each prompt.
    """

    service: ModelService
    stream: AnswerStream
    format: AnswerFormat
    n: int

    async def respond(self, request: Request, body: schemas.GenerationBody) -> Response:
        """The response; a client that disconnects ends its request. The text for a tab comes with the tab's feed."""
        seconds = self.service.options.request_timeout
        request.scope["tokens"] = self._tokens
        if body.stream:
            timed_out = event(unavailable(TIMED_OUT).body())
            stream = EventStream(self._events(body), self.stream.close, seconds, timed_out)
            tab = tab_of(request)
            return stream if tab is None else tab.start(request, stream)
        try:
            answers = await while_connected(request.receive, self._answers(), seconds)
        except Disconnected:
            return Response(status_code=499)  # the client has disconnected
        except TimeoutError:
            raise unavailable(TIMED_OUT) from None
        finally:
            self.stream.close()
        return AsciiJson(self.format.whole(answers, self._usage()))

    async def _answers(self) -> list[Piece]:
        """All answers, each in one piece."""
        answers: dict[int, Piece] = {}
        async for pieces in self.stream:
            check_pieces(pieces)
            for piece in pieces:
                before = answers.get(piece.index)
                answers[piece.index] = piece if before is None else before.followed_by(piece)
        for answer in answers.values():
            await self.format.write_logprobs(answer)
        return [answers[index] for index in sorted(answers)]

    async def _events(self, body: schemas.GenerationBody) -> AsyncGenerator[str, None]:
        options = body.stream_options or schemas.StreamOptions.model_construct()
        events = self.format.events(options, self._prompt_tokens)
        if first := events.first(len(self.stream.sequences)):
            yield first
        try:
            async for pieces in self.stream:
                check_pieces(pieces)
                for piece in pieces:
                    await self.format.write_logprobs(piece)
                    if text := events(piece):
                        yield text
        except ApiError as error:  # the status was sent long ago
            yield event(error.in_words_of(body.own_names).body()) + self.format.end
        else:
            yield events.last(self._usage()) + self.format.end

    def _tokens(self) -> dict[str, int]:
        """Numbers of tokens so far, for the log."""
        made = sum(len(sequence.tokens) for sequence in self.stream.sequences)
        made = 0 if self.format.drops_answer else made
        return {"prompt": self._prompt_tokens, "answer": made}

    def _usage(self) -> Json:
        """Numbers of tokens."""
        prompts = self.stream.sequences[:: self.n]
        made = self._tokens()["answer"]
        cached = sum(sequence.num_cached for sequence in prompts)
        counts = token_counts(self._prompt_tokens, made)
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}

    @property
    def _prompt_tokens(self) -> int:
        """Tokens of all prompts; one counts once for all of its answers."""
        return sum(sequence.num_prompt_tokens for sequence in self.stream.sequences[:: self.n])


def check_pieces(pieces: Sequence[Piece]) -> None:
    """Raise an ApiError if an answer did not finish normally.

    The engine's message stays in the log, unless it is about the request.
    """
    for piece in pieces:
        if piece.finish_reason == "error":
            if (piece.error or "").startswith("structured_outputs "):
                raise ApiError(400, str(piece.error), param="structured_outputs")
            raise ApiError(500, INTERNAL, "server_error")
        if piece.finish_reason == "abort":
            raise unavailable("the server is stopping: the answer is not complete")
