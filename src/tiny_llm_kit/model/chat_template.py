"""The chat template of a model folder: Jinja text that turns messages into the model's prompt format."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .files import CheckpointError, shown


class ChatTemplate:
    """A compiled template, run in Jinja's sandbox, since it is a program that came with the weights.

    Args:
        source: the Jinja text.
        file: the file that it was read from, for error messages.
        special_tokens: tokens that templates refer to by name, such as `bos_token`.

    Raises:
        CheckpointError: the text is not Jinja.
    """

    def __init__(self, source: str, file: Path, special_tokens: Mapping[str, str]):
        self.source, self._file = source, file
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(
                f"{file}: chat template line {error.lineno}: {shown(error.message)}; download the file again"
            ) from None

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **names: Any
    ) -> str:
        """The prompt for `messages`, each `{"role": …, "content": …}`; `names` are further variables of the template.

        Raises:
            CheckpointError: the template rejects the messages, or fails on them.
        """
        try:
            # Templates test whether tools and documents are None, and undefined is not None.
            given = {"tools": None, "documents": None, **self._special_tokens, **names}
            given |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
            return self._template.render(given)
        except Exception as error:  # a template is a program: it can fail in any way
            raise CheckpointError(
                f"{self._file}: chat template: {type(error).__name__}: {shown(str(error))}; check the messages' roles"
            ) from None


def read_chat_template(
    folder: Path, tokenizer_config: Mapping, special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """The folder's template: `chat_template.jinja`, else the `chat_template` of `tokenizer_config.json`, else None.

    Raises:
        CheckpointError: it is neither a text nor a list with a default.
    """
    file = folder / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate(file.read_text(encoding="utf-8"), file, special_tokens)
    file = folder / "tokenizer_config.json"
    source = tokenizer_config.get("chat_template")
    if isinstance(source, list):
        source = _default_of(source)
    if source is not None and not isinstance(source, str):
        raise CheckpointError(
            f"{file}: chat_template must be a text or a list with a default; download the file again"
        )
    return None if source is None else ChatTemplate(source, file, special_tokens)


def _default_of(templates: list) -> object:
    """The template named "default", in older files that hold several by name."""
    named = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    return named.get("default", templates)


def _environment() -> ImmutableSandboxedEnvironment:
    """A Jinja environment with the settings and functions that Hugging Face's templates expect."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _to_json(value: object, indent: int | None = None) -> str:
    # Jinja's own filter escapes for HTML, which would change what the model reads.
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
