"""The chat template of a model folder, and messages as OpenAI's API has them, of which it makes a prompt."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .files import CheckpointError, Json, read_optional_json, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
OTHER_PARTS = ("image_url", "input_audio", "audio_url", "video_url", "file", "refusal", "image_embeds")


def why_not_read(message: Json) -> str | None:
    """Why a message of OpenAI's API is not supported here, in one line; None for others."""
    role, content = message.get("role"), message.get("content")
    if role == "function":
        return 'the role function is not supported: use its newer form, "tool" with tool_call_id'
    if "content" not in message and not message.get("tool_calls"):
        return "content is missing: give a text"
    parts = (
        [part.get("type") for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    other = next((kind for kind in parts if kind in OTHER_PARTS), None)
    return other and f"a part of type {other} is not supported: give texts"


def plain_message(message: Json) -> Json:
    """A message for chat templates, with one text. "developer" is OpenAI's newer name for the role "system".

    Args:
        message: its content is a text, a list of `{"type": "text", "text": …}`, or None, which is an empty text. With
            `tool_calls` there may be none.

    Raises:
        ValueError: it, its content or a call is something else.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ValueError(f"messages: {repr(message)[:80]} is no message: give role and content")
    if why := why_not_read(message):
        raise ValueError(f"messages: {why}")
    role, content, calls = message.get("role"), message.get("content"), message.get("tool_calls")
    if role not in ROLES:
        raise ValueError(f"messages: role is {shown(role)}: give {', '.join(ROLES)}")
    content = "" if content is None else content
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not isinstance(parts, Sequence) or not parts or not all(map(is_text, parts)):
        raise ValueError(f"messages: content is {repr(content)[:80]}: give a text, or a list of text parts")
    text = "".join(part["text"] for part in parts)
    own = {"tool_calls": [*map(plain_call, calls)]} if calls else {}
    return {**message, "role": "system" if role == "developer" else role, "content": text, **own}


def plain_call(call: object) -> Json:
    """A call of a tool for chat templates, which write its arguments themselves: an object instead of JSON.

    Raises:
        ValueError: it is not a call.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
    ):
        raise ValueError(f"messages: tool_calls has {repr(call)[:80]}: give function with name and arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # a model wrote it; the template may show it as it is
            arguments = json.loads(arguments) if arguments.strip() else None
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def is_text(part: object) -> bool:
    """Whether a part of a content is a text."""
    return isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str)


class ChatTemplateError(CheckpointError):
    """A chat template is absent or unusable, or does not take these messages.

    Args:
        file: the template's, if there is one.
        reason: in one line, without the name of the file, for clients of a server.
    """

    def __init__(self, file: Path | None, reason: str):
        super().__init__(f"{file}: {reason}" if file else reason)
        self.file, self.reason = file, reason

    def __reduce__(self) -> tuple[type, tuple[Path | None, str]]:
        return type(self), (self.file, self.reason)


class ChatTemplate:
    """The templates of a model, run in Jinja's sandbox, since they are programs that came with the weights.

    They are compiled when they are needed: a broken one must not prevent the completion of plain texts.

    Args:
        sources: the Jinja text by name: "default", and "tool_use", if there is one, for messages with tools.
        file: the file that they were read from, for error messages.
        special_tokens: tokens that templates refer to by name, such as `bos_token`.
    """

    def __init__(self, sources: Json, file: Path, special_tokens: Mapping[str, str]):
        self._sources, self.file, self.special_tokens = dict(sources), file, dict(special_tokens)

    @property
    def source(self) -> str:
        """The texts of all its templates."""
        return "\n".join(text for text in self._sources.values() if isinstance(text, str))

    def render(self, messages: Sequence[Json], add_generation_prompt: bool = True, **names: object) -> str:
        """The prompt for `messages`, each `{"role": …, "content": …}`; `names` are further variables of the template.

        Raises:
            ChatTemplateError: there is no default template, it rejects the messages, or it fails on them.
        """
        has_tools = names.get("tools") is not None and "tool_use" in self._sources
        try:
            template = _compiled(self._source("tool_use" if has_tools else "default"))
            # Templates test whether tools and documents are None, and undefined is not None.
            given = {"tools": None, "documents": None, **self.special_tokens, **names}
            given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
            return template.render(given)
        except jinja2.TemplateSyntaxError as error:
            reason = f"chat template line {error.lineno}: {shown(error.message)}; download the file again"
        except _Refused as error:
            reason = f"the chat template refuses these messages: {shown(str(error), 200)}; change them"
        except ChatTemplateError:
            raise
        except Exception as error:  # a template is a program: it can fail in any way
            what = f"{type(error).__name__}: {shown(str(error), 200)}"
            reason = f"the chat template fails on these messages: {what}; check their roles"
        raise ChatTemplateError(self.file, reason)

    def _source(self, name: str) -> str:
        source = self._sources.get(name)
        if isinstance(source, str):
            return source
        names = ", ".join(sorted(self._sources)) or "nothing"
        raise ChatTemplateError(
            self.file, f"chat_template must be a text or a list with a default, and has {shown(names)}"
        )


def read_chat_template(
    folder: Path, tokenizer_config: Json, special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The folder's templates, from the first place that has any; None without any.

    As in transformers, these are `chat_template.jinja` with the folder `additional_chat_templates`, then
    `tokenizer_config.json`; and `chat_template.json`, from which transformers' processors read.
    """
    main = folder / "chat_template.jinja"
    more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
    files = {file.stem: file for file in more} | ({"default": main} if main.is_file() else {})
    if files:
        sources = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in files.items()}
        return ChatTemplate(sources, files.get("default", more[0] if more else main), special_tokens)
    file, found = folder / "tokenizer_config.json", tokenizer_config.get("chat_template")
    if found is None:
        file = folder / "chat_template.json"
        found = read_optional_json(file).get("chat_template")
    return None if found is None else ChatTemplate(_by_name(found), file, special_tokens)


def _by_name(templates: object) -> Json:
    """Templates by name: older files have a list of them."""
    if isinstance(templates, list):
        return {
            str(entry.get("name")): entry.get("template") for entry in templates if isinstance(entry, dict)
        }
    return {"default": templates}


class _Refused(jinja2.TemplateError):
    """What a template says itself, by `raise_exception`."""


class _Generation(Extension):
    """The block `generation`, which marks what the model has written, for training: here it is its own text."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's name)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


@cache
def chat_environment() -> ImmutableSandboxedEnvironment:
    """A Jinja environment with the settings, functions and blocks that transformers gives its templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


@cache
def _compiled(source: str) -> jinja2.Template:
    return chat_environment().from_string(source)


def _to_json(
    x: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Refused(message)
