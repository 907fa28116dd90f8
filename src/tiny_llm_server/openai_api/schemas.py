"""Bodies of requests: OpenAI's parameters that this server has, vLLM's and our additions."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tiny_llm_engine.models.chat_template import plain_message, why_not_read
from tiny_llm_engine.models.files import Json

from . import strict_body
from .strict_body import StrictBody, too_many
from .tool_schemas import ToolCalls, ToolChoice, Tools

MOST_LOGPROBS = 20
GUIDED = ("json", "regex", "choice", "grammar")
MOST_TOKENS = 2**31 - 1
MOST_BIASES = 1024  # of logits, and of stop tokens
MOST_PROMPTS = MOST_CHOICES = 10_000  # of a completion; of texts to choose from
MOST_MESSAGES = MOST_PARTS = 10_000  # of a conversation, and of its messages together
Text = Annotated[str, Field(min_length=1)]
TokenId = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
# fail_fast: of a list with a million wrong entries the first one is enough.
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


def check_biases(biases: object) -> object:
    """Refuse a huge `logit_bias` before each of its entries costs time.

    Raises:
        PydanticCustomError: it has too many entries.
    """
    if isinstance(biases, dict) and len(biases) > MOST_BIASES:
        raise too_many("biases", len(biases), MOST_BIASES)
    return biases


Biases = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,10}$")], Annotated[float, Field(ge=-100, le=100)]],
    BeforeValidator(check_biases),
]


class StreamOptions(StrictBody):
    known, prefix = strict_body.STREAM, "stream_options."
    continuous_usage_stats: bool | None = Field(None, description="numbers of tokens so far in every chunk")
    include_usage: bool | None = Field(
        None, description="one more chunk at the end, with the numbers of tokens"
    )


Choices = Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]


class StructuredOutputs(StrictBody):
    """What the text has to follow, with vLLM's names: one of them."""

    known, prefix = strict_body.STRUCTURED, "structured_outputs."
    json_form: Json | str | None = Field(None, alias="json", description="a JSON schema")
    regex: str | None = Field(None, description="a regular expression for the whole text")
    choice: Choices | None = Field(None, description="texts, one of which is the whole text")
    grammar: str | None = Field(None, description="a grammar of the whole text, in Lark or GBNF")
    json_object: bool | None = Field(None, description="any JSON object")


class NamedSchema(StrictBody):
    name: str | None = Field(None, description="not used")
    description: str | None = Field(None, description="not used")
    strict: bool | None = Field(None, description="not used: the text always follows the schema")
    json_schema: Json = Field(alias="schema", description="a JSON schema")


class ResponseFormat(StrictBody):
    """OpenAI's way to ask for structured outputs."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = Field(None, description='with the type "json_schema"')

    @property
    def form(self) -> Json:
        """With the names of `StructuredOutputsParams`."""
        if self.type == "json_object":
            return {"json_object": True}
        return {"json": self.json_schema and self.json_schema.json_schema}


class GenerationBody(StrictBody):
    """Fields that both kinds of completions share."""

    model: str | None = Field(None, description="name of the served model, as in /v1/models")
    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy; default: 1")
    top_p: float | None = Field(None, gt=0, le=1, description="draw from the nucleus of this probability")
    top_k: int | None = Field(
        None, ge=-1, le=MOST_TOKENS, description="draw from this many tokens; -1 and 0: all"
    )
    n: int | None = Field(None, ge=1, le=128, description="answers to the same prompt; default: 1")
    best_of: int | None = Field(None, ge=1, le=128, description="as many as n: every answer is returned")
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1, description="of the random draws")
    stop: Text | Annotated[list[Text], Field(max_length=16)] | None = Field(None, description="ends the text")
    stream: bool | None = Field(None, description="send the answer as server-sent events while it is made")
    stream_options: StreamOptions | None = Field(None, description="only with `stream`")
    ignore_eos: bool | None = Field(None, description="go on after an end token")
    priority: Literal["interactive", "batch"] | int | None = Field(
        None,
        description="default: interactive; of vLLM's numbers those above 0 are batch, all others interactive",
    )
    user: str | None = Field(None, description="accepted, not used")
    frequency_penalty: Penalty | None = Field(None, description="for each time that the answer has the token")
    presence_penalty: Penalty | None = Field(None, description="for each token that the answer has")
    repetition_penalty: float | None = Field(None, gt=0, description="of tokens in prompt and answer; 1: off")
    logit_bias: Biases | None = Field(None, description="added to logits, by token id")
    min_p: float | None = Field(None, ge=0, le=1, description="least share of the largest probability")
    min_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = Field(
        None, description="nothing ends the answer before"
    )
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MOST_BIASES, fail_fast=True)] | None = Field(
        None, description="end the answer, as end tokens do"
    )
    include_stop_str_in_output: bool | None = Field(None, description="the stop string belongs to the text")
    skip_special_tokens: bool | None = Field(None, description="leave them out of the text; default: true")
    response_format: ResponseFormat | None = Field(None, description="what the text has to follow")
    structured_outputs: StructuredOutputs | None = Field(None, description="the same, with vLLM's names")
    kv_transfer_params: Json | None = Field(
        None, description="where keys and values of the prompt come from or go"
    )
    guided_json: Json | str | None = Field(None, description="the older name of structured_outputs.json")
    guided_regex: str | None = Field(None, description="the older name of structured_outputs.regex")
    guided_choice: Choices | None = Field(None, description="the older name of structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="the older name of structured_outputs.grammar")

    @property
    def class_of_priority(self) -> str:
        """ "interactive" or "batch"; of vLLM's numbers, lower ones are earlier and 0 is the default."""
        number = self.priority or 0
        return number if isinstance(number, str) else "batch" if number > 0 else "interactive"

    @property
    def forms(self) -> dict[str, Json]:
        """What the text has to follow, by the field that asks for it, with the names of `StructuredOutputsParams`."""
        guided = {name: getattr(self, f"guided_{name}") for name in GUIDED}
        asked = {f"guided_{name}": {name: form} for name, form in guided.items() if form is not None}
        if self.response_format is not None and self.response_format.type != "text":
            asked["response_format"] = self.response_format.form
        if self.structured_outputs is not None:
            asked["structured_outputs"] = self.structured_outputs.model_dump(by_alias=True)
        return asked

    @property
    def own_names(self) -> dict[str, str]:
        """The client's names of what has another one here, for errors."""
        return {"structured_outputs": next(iter(self.forms), "tools")}


def check_prompts(prompt: object) -> object:
    """Refuse a huge list before each of its prompts costs time; a list of ids is one prompt.

    Raises:
        PydanticCustomError: it has more than `MOST_PROMPTS`.
    """
    if isinstance(prompt, list) and len(prompt) > MOST_PROMPTS and not isinstance(prompt[0], int):
        raise too_many("prompts", len(prompt), MOST_PROMPTS)
    return prompt


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    known = strict_body.GENERATION | strict_body.COMPLETION
    prompt: Annotated[
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, fail_fast=True)]
        | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)],
        BeforeValidator(check_prompts),
    ]
    max_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = Field(
        16, description="tokens of an answer, at most; default: 16; null: the context; 0: only with `echo`"
    )
    echo: bool | None = Field(None, description="return the prompt before the answer")
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS, description="most probable tokens to return")

    @property
    def own_names(self) -> dict[str, str]:
        return {**super().own_names, "prompt_logprobs": "echo"}


class TextPart(BaseModel):
    """A part of a message; pictures and sound are not supported."""

    model_config = ConfigDict(strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """A turn of a conversation. Further fields, as clients send them back with an answer, are not used."""

    model_config = ConfigDict(strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = None
    name: str | None = None
    tool_calls: ToolCalls | None = Field(None, description="what an answer has called")
    tool_call_id: str | None = Field(None, description="of the call whose result this is")
    reasoning_content: str | None = Field(None, description="what the model thought before an answer")

    @model_validator(mode="before")
    @classmethod
    def check_known(cls, message: object) -> object:
        """Refuse what OpenAI's API has and this server does not, with the reason.

        Raises:
            PydanticCustomError: of such a message.
        """
        if isinstance(message, dict) and (why := why_not_read(message)):
            raise PydanticCustomError("not_read", "{why}", {"why": why})
        return message

    def rendered(self) -> Json:
        """The message for chat templates."""
        return plain_message({"content": self.content, **self.model_dump(exclude_none=True)})


def check_size(messages: object) -> object:
    """Refuse a huge conversation before each of its parts costs time.

    Raises:
        PydanticCustomError: it has more than `MOST_MESSAGES` or `MOST_PARTS`.
    """
    turns = messages if isinstance(messages, list) else []
    if len(turns) > MOST_MESSAGES:
        raise too_many("messages", len(turns), MOST_MESSAGES)
    contents = [turn.get("content") for turn in turns if isinstance(turn, dict)]
    parts = sum(len(content) for content in contents if isinstance(content, list))
    if parts > MOST_PARTS:
        raise too_many("parts", parts, MOST_PARTS)
    return messages


Messages = Annotated[
    list[Message],
    Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True),
    BeforeValidator(check_size),
]


class TemplateBody(StrictBody):
    """Fields for the chat template."""

    tools: Tools | None = Field(None, description="functions that the model may call")
    chat_template_kwargs: Json | None = Field(None, description="further variables of the template")


class ChatBody(GenerationBody, TemplateBody):
    """`POST /v1/chat/completions`."""

    known = strict_body.GENERATION | strict_body.CHAT
    messages: Messages
    max_completion_tokens: Count | None = Field(
        None, description="tokens of an answer, at most; default: the context"
    )
    max_tokens: Count | None = Field(None, description="older name of max_completion_tokens")
    logprobs: bool | None = Field(None, description="return log-probabilities")
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS, description="only with `logprobs`")
    tool_choice: ToolChoice | None = Field(None, description="default: auto, which leaves it to the model")
    parallel_tool_calls: bool | None = Field(None, description="more than one call; default: true")
    reasoning_effort: Effort | None = Field(None, description='for the template; "none" turns thinking off')
    include_reasoning: bool | None = Field(None, description="return what the model thought; default: true")

    @property
    def own_names(self) -> dict[str, str]:
        newer = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return {**super().own_names, **newer}


class TokenizeBody(TemplateBody):
    """`POST /tokenize`: a text, or a conversation."""

    known = strict_body.TOKENIZE
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = Field(None, description="of a text: begin-of-text too; default: true")
    add_generation_prompt: bool = Field(
        True, description="of a conversation: end where the assistant's turn begins"
    )


class DetokenizeBody(StrictBody):
    """`POST /detokenize`: token ids, whose text has their special tokens too."""

    model: str | None = None
    tokens: list[TokenId] = Field(fail_fast=True)


class BudgetBody(StrictBody):
    """`POST /step_budget`, of the live page."""

    max_num_batched_tokens: Count
