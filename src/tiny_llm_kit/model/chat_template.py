"""The chat template of a model folder: Jinja text that turns messages into the model's prompt format."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .files import CheckpointError, Json, read_optional_json, shown


class ChatTemplateError(CheckpointError):
    """A chat template is absent or unusable, or does not take these messages.

    Args:
        file: the template's, if there is one.
        reason: in one line, without the name of the file, for clients of a server.
    """

    def __init__(self, file: Path | None, reason: str):
        super().__init__(f"{file}: {reason}" if file else reason)
        self.file, self.reason = file, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.file, self.reason)


class ChatTemplate:
    """The templates of a model, run in Jinja's sandbox, since they are programs that came with the weights.

    They are compiled when they are needed: a broken one is no reason not to complete plain texts.

    Args:
        sources: the Jinja text by name: "default", and "tool_use", if there is one, for messages with tools.
        file: the file that they were read from, for error messages.
        special_tokens: tokens that templates refer to by name, such as `bos_token`.
    """

    def __init__(self, sources: Json, file: Path, special_tokens: Mapping[str, str]):
        self._sources, self._file, self.special_tokens = dict(sources), file, dict(special_tokens)

    @property
    def source(self) -> str:
        """The texts of all its templates."""
        return "\n".join(text for text in self._sources.values() if isinstance(text, str))

    def render(self, messages: Sequence[Json], add_generation_prompt: bool = True, **names: Any) -> str:
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
        raise ChatTemplateError(self._file, reason)

    def _source(self, name: str) -> str:
        source = self._sources.get(name)
        if isinstance(source, str):
            return source
        names = ", ".join(sorted(self._sources)) or "nothing"
        raise ChatTemplateError(
            self._file, f"chat_template must be a text or a list with a default, and has {shown(names)}"
        )


def read_chat_template(
    folder: Path, tokenizer_config: Json, special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The folder's templates, from the first place that has any; None if there is none.

    As in transformers, these are `chat_template.jinja` with the folder `additional_chat_templates`, then
    `tokenizer_config.json`; and `chat_template.json`, from which transformers' processors read.
    """
    main, more = (
        folder / "chat_template.jinja",
        sorted((folder / "additional_chat_templates").glob("*.jinja")),
    )
    files = {file.stem: file for file in more} | ({"default": main} if main.is_file() else {})
    if files:
        sources = {name: file.read_text(encoding="utf-8", errors="replace") for name, file in files.items()}
        return ChatTemplate(sources, files.get("default", more[0] if more else main), special_tokens)
    file, found = folder / "tokenizer_config.json", tokenizer_config.get("chat_template")
    if found is None:
        file = folder / "chat_template.json"
        found = read_optional_json(file).get("chat_template")
    return None if found is None else ChatTemplate(_by_name(found), file, special_tokens)


def _by_name(templates: Any) -> Json:
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

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Any) -> str:
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
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Refused(message)
