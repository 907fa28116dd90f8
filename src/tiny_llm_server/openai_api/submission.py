"""From the body of a request to what the engine gets: checks, token ids of prompts, sampling parameters."""

import logging
from collections.abc import Sequence
from functools import partial

from fastapi import Request

from tiny_llm_engine.models.chat_template import ChatTemplateError
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import SamplingParams, ServingPackage, StructuredOutputsParams

from .errors import ApiError, not_serving
from .finite_schema import finite
from .schemas import GenerationBody, Message
from .service_contract import AnswerStream, ModelService, RunningService, ServiceRequest

LOG = logging.getLogger("tiny_llm.server")
NO_NAMES: Json = {}


def prompts_of(prompt: str | list[str] | list[int] | list[list[int]]) -> Sequence[str | list[int]]:
    """A list of prompts: one text, and one list of ids, is one prompt."""
    if isinstance(prompt, str):
        return [prompt]
    ids = [part for part in prompt if isinstance(part, int)]
    return [ids] if ids else [part for part in prompt if not isinstance(part, int)]


def names_of(field: str, count: int) -> list[str]:
    """What errors call each of the prompts in a field."""
    return [field] if count == 1 else [f"{field}[{index}]" for index in range(count)]


def service_of(request: Request) -> ModelService:
    return request.app.state.service


async def prompt_ids(
    service: ModelService, prompts: Sequence[str | list[int]], add_special_tokens: bool = True
) -> list[list[int]]:
    """Token ids of prompts that are texts; those that are ids already stay as they are.

    Args:
        add_special_tokens: whether a text may begin with the tokenizer's begin-of-text.

    Raises:
        ApiError: 400, a text cannot fit into the context.
    """
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    for name, text in zip(names_of("prompt", len(texts)), texts, strict=True):
        check_length(service, name, len(text))
    encode = service.model.tokenizer.encode
    if not add_special_tokens:
        encode = partial(encode, add_special_tokens=False)
    return await service.texts.run(sum(map(len, texts)), lambda: [*map(encode, texts)])


async def chat_ids(
    service: ModelService,
    messages: Sequence[Message],
    add_generation_prompt: bool = True,
    names: Json = NO_NAMES,
) -> list[int]:
    """Token ids of a conversation; `names` are further variables of the chat template.

    Raises:
        ApiError: 400, it cannot fit into the context, or the model's template does not take it; 503, the server stops.
    """
    turns, tokenizer = [each.rendered() for each in messages], service.model.tokenizer
    check_length(service, "messages", sum(len(turn["content"]) for turn in turns))
    most = service.model.max_model_len * tokenizer.longest_token
    try:
        text = await service.texts.render(tokenizer.template, most, turns, add_generation_prompt, names)
    except ChatTemplateError as error:
        check_ready(service)  # a server that stops has ended the process
        LOG.warning("400: %s", error)
        raise ApiError(400, f"messages: {error.reason}", param="messages") from None
    return await service.texts.run(len(text), lambda: tokenizer.encode(text))


async def text_of(service: ModelService, tokens: Sequence[int]) -> str:
    """The text of token ids, with their special tokens.

    Raises:
        ApiError: 400, the tokenizer does not have one of them.
    """
    tokenizer = service.model.tokenizer
    if (largest := max(tokens, default=0)) >= service.model.vocab_size:
        raise ApiError(400, f"tokens: {largest} is not of this model", param="tokens")
    return await service.texts.run(len(tokens), lambda: tokenizer.decode(tokens, skip_special_tokens=False))


def check_length(service: ModelService, name: str, characters: int) -> None:
    """Refuse a text that cannot fit into the context, whatever its tokens are.

    Raises:
        ApiError: 400.
    """
    limit, longest = service.model.max_model_len, service.model.tokenizer.longest_token
    if characters > limit * longest:
        message = (
            f"{name} has {characters} characters: max_model_len is {limit} tokens of at most {longest} each"
        )
        raise ApiError(400, message, param=name.partition("[")[0])


PASSED_ON = (  # to the solution, unless they were left out
    "stop_token_ids",
    "min_tokens",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


SMALLEST_TEMPERATURE = 1e-6  # below it only the most probable token has a chance


def sampling_params(
    names: ServingPackage,
    body: GenerationBody,
    max_tokens: int | None,
    logprobs: int | None,
    forced: str | None = None,
    shows_special: bool = False,
    prompt_logprobs: int | None = None,
    room: int | None = None,
) -> SamplingParams:
    """`SamplingParams` of the solution; what the client left out has OpenAI's defaults.

    Args:
        forced: a grammar of calls of tools.
        shows_special: whether special tokens are needed as text.
        prompt_logprobs: as `logprobs`, for the tokens of the prompt.
        room: see `structured_outputs`.

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
            structured_outputs=structured_outputs(names, body, forced, room),
            extra_args=body.kv_transfer_params and {"kv_transfer_params": body.kv_transfer_params},
            **given,
        )
    except ValueError as error:  # its first word is the field
        raise ApiError(400, str(error), param=str(error).partition(" ")[0]) from None


def structured_outputs(
    names: ServingPackage, body: GenerationBody, forced: str | None = None, room: int | None = None
) -> StructuredOutputsParams | None:
    """What the text has to follow, from the one field that asks for it; None for any text.

    Args:
        room: tokens that the values of a `response_format` are limited to; None does not limit them.

    Raises:
        ApiError: several fields do, or "json_schema" comes without a schema.
        ValueError: vLLM's field has not exactly one form.
    """
    forms = {**body.forms, **({} if forced is None else {"tool_choice": {"grammar": forced}})}
    if len(forms) > 1:
        raise ApiError(400, f"give {' or '.join(forms)}", param=list(forms)[-1])
    if forms.get("response_format") == {"json": None}:
        raise ApiError(400, "response_format needs json_schema with a schema", param="response_format")
    if room is not None and (form := forms.get("response_format")):
        forms["response_format"] = {"json": finite(form.get("json", {"type": "object"}), room)}
    return next((names.StructuredOutputsParams(**form) for form in forms.values()), None)


def check_ready(service: RunningService) -> None:
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


async def submit(
    service: ModelService,
    body: GenerationBody,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    field: str,
) -> AnswerStream:
    """Submit the prompts that a field of a body has; see `ServiceRequest` and `ModelService.submit`.

    Raises:
        ApiError: also 400, the answers may have more log-probabilities than the server returns to one request.
    """
    context, most = service.model.max_model_len, service.options.max_request_logprobs
    limit = context if params.max_tokens is None else params.max_tokens
    tokens = sum(min(limit, context - len(prompt)) for prompt in prompts)
    tokens += 0 if params.prompt_logprobs is None else sum(map(len, prompts))
    count = 0 if params.logprobs is None else tokens * params.n * (1 + params.logprobs)
    if count > most:
        message = f"logprobs: the answers may have {count} log-probabilities, and this server returns at most {most} "
        message += "(--max-request-logprobs): ask for fewer, or give a smaller n or max_tokens"
        raise ApiError(400, message, param="logprobs")
    request = ServiceRequest(prompts, params, body.class_of_priority, names_of(field, len(prompts)))
    return await service.submit(request, bool(body.stream))
