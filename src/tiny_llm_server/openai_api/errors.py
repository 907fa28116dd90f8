"""Errors in the format of OpenAI's API, our own and those of the framework."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from tiny_llm_engine.models.files import Json

from .http_responses import AsciiJson

HEADER = "X-Request-Id"
LOG = logging.getLogger("tiny_llm.server")
# Not sent to clients: an exception's text may name files of this machine.
EXPECTED = "Input should be "
# Matches no name of a variant ("list[str]", "constrained-str", "TextPart"), and no type of JSON.
FIELD = re.compile(r"(?!(?:str|int|float|bool)$)[a-z][a-z0-9_]*")
INTERNAL = "the server failed on this request; its log says why"


class ApiProblem(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ApiErrorBody(BaseModel):
    """The body of every error response."""

    error: ApiProblem


WRONG = {"model": ApiErrorBody}
ERRORS = dict.fromkeys((400, 401, 404, 405, 408, 413), WRONG)
BUSY = {**ERRORS, **dict.fromkeys((429, 500, 503), WRONG)}


class ApiError(Exception):
    """An error response.

    Args:
        status: the HTTP status code.
        message: a line that names the fix.
        type, code: as OpenAI's clients know them.
        param: the parameter that is wrong.
        headers: HTTP headers that the response has besides the usual ones.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str = "invalid_request_error",
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, dict(headers or {})
        self.problem = ApiProblem(message=message, type=type, param=param, code=code)

    def in_words_of(self, names: Mapping[str, str]) -> "ApiError":
        """The same error with the client's own name of the field, by ours."""
        was = self.problem.param or ""
        if was not in names:
            return self
        message = self.problem.message
        if message.startswith(was):
            message = names[was] + message[len(was) :]
        return _unpickled(
            self.status,
            self.problem.model_copy(update={"message": message, "param": names[was]}).model_dump(),
            self.headers,
        )

    def __reduce__(self) -> tuple[Callable[..., "ApiError"], tuple[int, Json, dict[str, str]]]:
        """For pickle: a replica sends its refusals to the process that answers."""
        return _unpickled, (self.status, self.problem.model_dump(), self.headers)

    def body(self) -> Json:
        return {"error": self.problem.model_dump()}

    def response(self) -> Response:
        return AsciiJson(self.body(), self.status, self.headers)


def _unpickled(status: int, problem: Json, headers: dict[str, str]) -> ApiError:
    return ApiError(status, headers=headers, **problem)


def unavailable(message: str, retry_after: int | None = 1) -> ApiError:
    """503: the server does not accept requests now, or without `retry_after` never again."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return ApiError(503, message, "server_error", code="service_unavailable", headers=headers)


def not_serving(state: str) -> ApiError:
    """503: the engine is not ready. A dead one does not come back."""
    if state == "dead":
        return unavailable("the engine is dead: restart the server", None)
    return unavailable(f"the server is {state}")


def overloaded(message: str, retry_after: int) -> ApiError:
    """429: too many requests."""
    headers = {"Retry-After": str(retry_after)}
    return ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=headers)


def of_validation(error: RequestValidationError) -> ApiError:
    """400 for a body that does not fit the schema: the field, and what would fit.

    Nothing of the body is repeated.
    """
    first = error.errors()[0]
    path = path_of(first["loc"])
    field = next((part for part in path if isinstance(part, str)), None)
    if first["type"] == "json_invalid":
        return ApiError(400, "the body is not valid JSON")
    if first["type"] == "not_supported":
        return ApiError(400, first["msg"], param=field or first["ctx"]["field"])
    if field is None and first["type"] == "too_many":
        return ApiError(400, first["msg"])
    if field is None:
        return ApiError(400, "send a JSON object, with the header Content-Type: application/json")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown parameter {field}: leave it out", param=field)
    path, reason = true_reason(error.errors())
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return ApiError(400, f"{where[1:]}: {reason}", param=field)


def path_of(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Fields and indexes of a place in a body, without the names of variants that pydantic has tried there.

    Keys of a JSON object that the client has chosen are not fields, and not repeated.
    """
    inside = [part for part in loc if part not in ("body", "path", "query")]
    inside = inside[:1] if "logit_bias" in inside else inside
    return tuple(part for part in inside if isinstance(part, int) or FIELD.fullmatch(part))


def true_reason(errors: Sequence[ErrorDetails]) -> tuple[tuple[int | str, ...], str]:
    """The place and the reason of the first error in a body.

    Where a field may have several forms there is an error for each of them. The form that was meant is the one that
    fits best: it has the right type, or is wrong only further inside.
    """
    loc = errors[0]["loc"]
    shared = next(
        (number for number, part in enumerate(loc) if path_of([part]) == () and part != "body"), None
    )
    variants = (
        errors[:1] if shared is None else [each for each in errors if each["loc"][:shared] == loc[:shared]]
    )

    def fit(error: ErrorDetails) -> tuple[bool, list[int]]:
        is_value = not error["type"].endswith("_type") and error["type"] != "literal_error"
        return is_value, [part for part in error["loc"][shared:] if isinstance(part, int)]

    best = max(map(fit, variants))
    meant = [each for each in variants if fit(each) == best]
    path = path_of(meant[0]["loc"])
    reasons = dict.fromkeys(reason_of(each) for each in meant if path_of(each["loc"]) == path)
    return path, ", or ".join(reasons).replace(f", or {EXPECTED}", ", or ")


def reason_of(error: ErrorDetails) -> str:
    """Pydantic's words, without the names of our classes."""
    if error["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"{EXPECTED}an object"
    return error["msg"].replace(" after validation", "")


def of_framework(error: HTTPException) -> ApiError:
    """404, 405 and the other errors of the framework itself."""
    code = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}.get(error.status_code)
    says = (
        "there is no such path: /openapi.json lists them" if error.status_code == 404 else str(error.detail)
    )
    return ApiError(error.status_code, says, code=code, headers=error.headers)


def allowed_methods(request: Request) -> str:
    """The methods of the request's path for the header Allow, of all its routes: the framework names those of one."""
    here = [
        route.methods or set()
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    methods = set().union(*here)
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def add_error_handlers(app: FastAPI) -> None:
    """Register handlers that give every error OpenAI's body."""

    async def answer(request: Request, error: Exception) -> Response:
        if isinstance(error, RequestValidationError):
            error = of_validation(error)
        elif isinstance(error, HTTPException):
            error = of_framework(error)
            if error.status == 405:
                error.headers["Allow"] = allowed_methods(request)
        elif isinstance(error, NotImplementedError):  # a blank task: the server ends with its address
            request.app.state.service.failure = error
            error = unavailable("the server is not complete", None)
        elif not isinstance(error, ApiError):
            request_id = request.scope["request_id"]
            LOG.error("%s %s failed (%s)", request.method, request.url.path, request_id, exc_info=error)
            # The framework sends this answer itself, outside all middleware.
            error = ApiError(500, INTERNAL, "server_error", headers={HEADER: request_id})
        return error.response()

    for kind in (ApiError, RequestValidationError, HTTPException, NotImplementedError, Exception):
        app.add_exception_handler(kind, answer)
