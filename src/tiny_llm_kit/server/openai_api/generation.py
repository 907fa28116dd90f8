"""From a request's body to its answer: sampling parameters, the stream of pieces, whole or as server-sent events."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from ...model.files import Json
from ...solution_types import Piece, SamplingParams, ServingPackage, StructuredOutputsParams
from .errors import INTERNAL, ApiError, json_response, not_serving, unavailable
from .event_stream import Disconnected, EventStream, event, while_connected
from .formats import AnswerFormat, token_counts
from .schemas import GenerationBody, StreamOptions
from .service_contract import AnswerStream, ModelService

PASSED_ON = (  # to the solution, unless they were left out
    "stop_token_ids", "min_tokens", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "include_stop_str_in_output", "skip_special_tokens",
)  # fmt: skip
SMALLEST_TEMPERATURE = 1e-6  # below it only the most probable token has a chance
TIMED_OUT = "the request took longer than the server allows: ask for fewer tokens, or try again later"


def sampling_params(
    names: ServingPackage,
    body: GenerationBody,
    max_tokens: int | None,
    logprobs: int | None,
    forced: str | None = None,
    shows_special: bool = False,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """`SamplingParams` of the solution; what the client left out has OpenAI's defaults.

    Args:
        forced: a grammar of calls of tools.
        shows_special: whether special tokens are needed as text.
        prompt_logprobs: as `logprobs`, for the tokens of the prompt.

    Raises:
        ApiError: a value is out of range.
    """
    temperature = 1.0 if body.temperature is None else body.temperature
    given = {name: value for name in PASSED_ON if (value := getattr(body, name)) is not None}
    if shows_special:
        given["skip_special_tokens"] = False
    try:
        return names.SamplingParams(
            temperature=temperature if temperature >= SMALLEST_TEMPERATURE else 0.0,
            top_p=body.top_p,
            top_k=max(0, body.top_k or 0),
            max_tokens=max_tokens,
            stop=body.stop,
            seed=None if body.seed is None else body.seed % 2**63,
            n=body.n or 1,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            ignore_eos=bool(body.ignore_eos),
            logit_bias={int(token): bias for token, bias in (body.logit_bias or {}).items()} or None,
            structured_outputs=structured_outputs(names, body, forced),
            **given,
        )
    except ValueError as error:  # its first word is the field
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from None


def structured_outputs(
    names: ServingPackage, body: GenerationBody, forced: str | None = None
) -> StructuredOutputsParams | None:
    """What the text has to follow, from the one field that asks for it; None for any text.

    Raises:
        ApiError: several fields do, or "json_schema" comes without a schema.
        ValueError: vLLM's field has not exactly one form.
    """
    forms = {**body.forms, **({} if forced is None else {"tool_choice": {"grammar": forced}})}
    if len(forms) > 1:
        raise ApiError(400, f"give {' or '.join(forms)}", param=list(forms)[-1])
    if forms.get("response_format") == {"json": None}:
        raise ApiError(400, "response_format needs json_schema with a schema", param="response_format")
    return next((names.StructuredOutputsParams(**form) for form in forms.values()), None)


def check_ready(service: ModelService) -> None:
    """Check that requests are taken.

    Raises:
        ApiError: they are not: 503.
    """
    if service.state != "ready":
        raise not_serving(service.state)


def check_body(service: ModelService, body: GenerationBody) -> None:
    """Validate what the schema cannot express.

    Raises:
        ApiError: 404 for another model, 400 for options that do not go together, 503 when the server is not ready.
    """
    served = service.options.model_names
    if body.model not in (None, *served):
        message = f"there is no such model: this server has {', '.join(served)}"
        raise ApiError(404, message, param="model", code="model_not_found")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream: true", param="stream_options")
    if body.best_of not in (None, body.n or 1):
        message = (
            f"best_of is {body.best_of}: every answer is returned; leave it out, or give n, {body.n or 1}"
        )
        raise ApiError(400, message, param="best_of")
    check_ready(service)


@dataclass(frozen=True)
class Generation:
    """One open request: its stream, and the format of its answer.

    Args:
        service: where it was submitted.
        stream: of its answers.
        format: of the endpoint.
        n: answers to each prompt.
    """

    service: ModelService
    stream: AnswerStream
    format: AnswerFormat
    n: int

    async def respond(self, request: Request, body: GenerationBody) -> Response:
        """The response; a client that disconnects ends its request."""
        seconds = self.service.options.request_timeout
        request.scope["tokens"] = self._tokens
        if body.stream:
            timed_out = event(unavailable(TIMED_OUT).body())
            return EventStream(self._events(body), self.stream.close, seconds, timed_out)
        try:
            answers = await while_connected(request.receive, self._answers(), seconds)
        except Disconnected:
            return Response(status_code=499)  # the client has disconnected
        except TimeoutError:
            raise unavailable(TIMED_OUT) from None
        finally:
            self.stream.close()
        return json_response(self.format.whole(answers, self._usage()))

    async def _answers(self) -> list[Piece]:
        """All answers, each in one piece."""
        answers: dict[int, Piece] = {}
        async for pieces in self.stream:
            check_pieces(pieces)
            for piece in pieces:
                before = answers.get(piece.index)
                answers[piece.index] = piece if before is None else before.followed_by(piece)
        return [answers[index] for index in sorted(answers)]

    async def _events(self, body: GenerationBody) -> AsyncGenerator[str, None]:
        options = body.stream_options or StreamOptions.model_construct()
        events = self.format.events(options, self._prompt_tokens)
        if first := events.first(len(self.stream.sequences)):
            yield first
        try:
            async for pieces in self.stream:
                check_pieces(pieces)
                for text in filter(None, map(events, pieces)):
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
