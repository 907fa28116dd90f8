"""Tools in the bodies of requests and answers: what a model may call, and what it has called."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from tiny_llm_engine.models.files import Json

MOST_TOOLS = 128


class Lenient(BaseModel):
    """A JSON object whose further fields belong to the template."""

    model_config = ConfigDict(strict=True, extra="allow")


class Function(Lenient):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: Json | None = Field(None, description="JSON schema of the arguments, if there are any")


class Tool(Lenient):
    """A function that the model may call."""

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    name: str


class NamedTool(BaseModel):
    """The function that has to be called."""

    model_config = ConfigDict(strict=True)
    type: Literal["function"] = "function"
    function: FunctionName


class CalledFunction(BaseModel):
    name: str
    arguments: str = Field("", description="an object in JSON, as the model has written it")


class ToolCall(BaseModel):
    """A call in an answer, and in the message with which it comes back."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


Tools = Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)]
ToolCalls = Annotated[list[ToolCall], Field(max_length=MOST_TOOLS, fail_fast=True)]
ToolChoice = Literal["none", "auto", "required"] | NamedTool
