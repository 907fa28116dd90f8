"""What the tools of a conversation mean for its prompt, for its answer's form, and for how the answer is read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_extensions.grammars.schema_formats import without_remarks

from .answer_parts import THINK, AnswerReader, ThoughtReader
from .errors import ApiError
from .finite_schema import finite, unnamed
from .schemas import ChatBody, TemplateBody
from .tool_calls import CallReader, ToolFormat, forced_calls, format_of
from .tool_schemas import Function, NamedTool

FEW_TOKENS = 4000  # with more of them the model decides where its calls end
CALL_TOKENS, MOST_CALLS = 200, 4  # of forced calls, in an answer of few tokens
MARKS = 80  # characters of a forced call around its arguments, beside the name
# Variables of a template that have fields of their own.
RESERVED = ("self", "messages", "add_generation_prompt")

NewReader = Callable[[], AnswerReader]


@dataclass(frozen=True)
class ToolUse:
    """The tools of one request.

    Args:
        form: how the model writes calls; None where it must not call any.
        functions: that it may call, by name.
        forced: whether the answer is nothing but calls.
        is_named: whether the client has named the function.
        at_most_one: whether there may be one call only.
    """

    form: ToolFormat | None
    functions: Mapping[str, Function]
    forced: bool = False
    is_named: bool = False
    at_most_one: bool = False

    @classmethod
    def of(cls, body: ChatBody, tokenizer: Tokenizer, parser: str | None) -> "ToolUse":
        """The tools that a body asks for.

        Args:
            parser: the name of the format; None for that of the chat template.

        Raises:
            ApiError: 400, the choice does not fit the tools.
        """
        functions = {tool.function.name: tool.function for tool in body.tools or ()}
        choice = body.tool_choice
        if choice == "none" or (not functions and choice in (None, "auto")):
            return cls(None, {})
        if not functions:
            raise ApiError(400, "tool_choice needs tools: give some, or leave it out", param="tool_choice")
        form, at_most_one = format_of(tokenizer.chat_template, parser), body.parallel_tool_calls is False
        if not isinstance(choice, NamedTool):
            return cls(form, functions, choice == "required", False, at_most_one)
        if (name := choice.function.name) not in functions:
            raise ApiError(400, "tool_choice: tools has no function of this name", param="tool_choice")
        return cls(form, {name: functions[name]}, True, True, True)

    def grammar(self, tokenizer: Tokenizer, room: int) -> str | None:
        """What the answer has to follow; None for any text.

        Args:
            room: tokens that it may have. If these are few, calls and their arguments are limited to them; otherwise
                the model decides where they end.
        """
        if self.form is None or not self.forced:
            return None
        most = 1 if self.at_most_one else None
        schemas = {name: arguments_schema(each.parameters) for name, each in self.functions.items()}
        if room <= FEW_TOKENS:
            most = most or max(1, min(MOST_CALLS, room // CALL_TOKENS))
            schemas = {
                name: finite(schema, room // most - MARKS - len(name)) for name, schema in schemas.items()
            }
        return forced_calls(self.form, schemas, most, tokenizer.token_id)

    def shows_special(self, tokenizer: Tokenizer) -> bool:
        """Whether the mark of a call is a special token, which the text contains only on request."""
        return self.form is not None and not tokenizer.decode(tokenizer.encode(self.form.begin, False))

    def reader_of(self, thinks: bool, begins_inside: bool, shows_thoughts: bool) -> NewReader | None:
        """Makes a reader of an answer; None where all of its text is content.

        Args:
            thinks: whether the model may think before it answers.
            begins_inside: whether it thinks from the first token on.
            shows_thoughts: whether the client wants to read that.
        """
        if self.form is None and not thinks:
            return None

        def made() -> AnswerReader:
            calls = None if self.form is None else CallReader(self.form, 1 if self.at_most_one else None)
            thoughts = ThoughtReader(begins_inside) if thinks else None
            return AnswerReader(thoughts, calls, shows_thoughts, self.forced)

        return made

    def finish_reason(self, reason: str | None, has_calls: bool) -> str | None:
        """Why an answer has ended, as OpenAI's API has it: not "tool_calls" if the client named the function."""
        return "tool_calls" if reason == "stop" and has_calls and not self.is_named else reason


def arguments_schema(parameters: Json | None) -> Json:
    """The schema of forced arguments: an object, with no other properties than those that are named."""
    schema = {"type": "object", **(parameters or {"properties": {}, "additionalProperties": False})}
    if "properties" in schema and "patternProperties" not in schema and not unnamed(schema):
        schema.setdefault("additionalProperties", False)
    return without_remarks(schema)


def begins_inside_thought(tokenizer: Tokenizer, prompt: Sequence[int]) -> bool:
    """Whether a prompt ends where the model is to think, as the templates of some models let it."""
    return tokenizer.decode(prompt[-8:], skip_special_tokens=False).rstrip().endswith(THINK)


def may_think(tokenizer: Tokenizer, parser: str | None) -> bool:
    """Whether a model thinks before it answers: a parser was named, or its chat template knows thoughts."""
    return parser is not None or THINK in tokenizer.chat_template


def template_names(body: ChatBody, uses: ToolUse) -> Json:
    """The variables of the chat template for a request, without tools that must not be called."""
    names = template_variables(body)
    if uses.form is None:
        names.pop("tools", None)
    if body.reasoning_effort is None:
        return names
    thinks = {"enable_thinking": False} if body.reasoning_effort == "none" else {}
    return {"reasoning_effort": body.reasoning_effort, **thinks, **names}


def template_variables(body: TemplateBody) -> Json:
    """The variables of the chat template that a body gives, tools as the client has sent them."""
    tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
    given = {name: value for name, value in (body.chat_template_kwargs or {}).items() if name not in RESERVED}
    return {**({"tools": tools} if tools else {}), **given}
