"""Calls of tools as models write them: what they look like, a grammar that forces them, and a reader of their text."""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tiny_llm_engine.models.files import Json
from tiny_llm_extensions.grammars.grammar import quoted

ARGUMENTS = ("arguments", "parameters")  # the names that models give them
BETWEEN = " \t\r\n[],;"  # allowed between two calls


@dataclass(frozen=True)
class ToolFormat:
    """How a family of models writes calls: JSON objects between two marks, some in a list.

    Args:
        begin, end: the marks, `end` without one where nothing follows.
        opens, closes: the text between a mark and the objects, when a call is forced.
        arguments: the key of the arguments, which the models were trained on.
        bare: whether an answer that begins with an object is a call too, without the mark.
        digits: of a call's id; without them it is OpenAI's "call_…".
    """

    begin: str
    end: str = ""
    opens: str = ""
    closes: str = ""
    arguments: str = "arguments"
    bare: bool = False
    digits: int | None = None

    def new_id(self) -> str:
        """An id for a call. The templates of Mistral's models refuse ids that do not have nine letters or digits."""
        number = uuid.uuid4().hex
        return f"call_{number[:24]}" if self.digits is None else number[: self.digits]


FORMATS = {  # by vLLM's names of parsers
    "hermes": ToolFormat("<tool_call>", "</tool_call>", "\n", "\n"),  # Qwen and SmolLM2 too
    "mistral": ToolFormat("[TOOL_CALLS]", opens="[", closes="]", digits=9),
    "llama3_json": ToolFormat("<|python_tag|>", arguments="parameters", bare=True),
}


def format_of(template: str, name: str | None = None) -> ToolFormat:
    """The format of a model.

    Args:
        template: its chat template, which shows the mark that it was trained on.
        name: of a format; None takes the one whose mark is in the template, and Hermes' without such a mark.
    """
    if name is not None:
        return FORMATS[name]
    return next((form for form in FORMATS.values() if form.begin in template), FORMATS["hermes"])


def forced_calls(
    form: ToolFormat, functions: Json, most: int | None, token_of: Callable[[str], int | None]
) -> str:
    """A grammar in Lark for an answer that is nothing but calls.

    Args:
        form: how the model writes its calls.
        functions: the JSON schema of the arguments of each function that may be called, by its name.
        most: calls after which the answer ends; None for any number.
        token_of: the id of a mark that is one token of the model; None for a mark that is text.
    """

    def mark(text: str) -> str:
        number = token_of(text) if text else None
        return quoted(text) if number is None else f"<[{number}]>"

    rules = [
        f"call_{number}: {quoted(call_head(name, form.arguments))} args_{number} {quoted('}')}\n"
        f"args_{number}: %json {json.dumps(rigid(schema))}"
        for number, (name, schema) in enumerate(functions.items())
    ]
    one = f"one: {' | '.join(f'call_{number}' for number in range(len(functions)))}"

    def several(item: str, between: str) -> str:
        if most == 1:
            return item
        return f"{item} ({quoted(between)} {item}){'*' if most is None else f'{{0,{most - 1}}}'}"

    if form.bare:  # the mark changes nothing, and their templates ask for the object alone
        start = several("one", "; ")
    elif form.end:
        block = f"{mark(form.begin)} {quoted(form.opens)} one {quoted(form.closes)} {mark(form.end)}"
        start = several(block, "\n")
    else:
        start = f"{mark(form.begin)} {quoted(form.opens)} {several('one', ', ')} {quoted(form.closes)}"
    return "\n".join([f"start: {start}", one, *rules])


def call_head(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{arguments}": '


def rigid(schema: Json) -> Json:
    """A schema without free white space, which a small model may write to the end."""
    form = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
    return {**schema, "x-guidance": form}


class CallScanner:
    """One call, character by character: a JSON object whose arguments can be passed on before they are complete.

    Attributes:
        name: of the function; None before.
        in_string: whether the next character belongs to a string.
        is_done: whether the object is complete.
    """

    def __init__(self):
        self.name: str | None = None
        self.in_string = self.is_done = False
        self._text: list[str] = []
        self._depth, self._is_escaped = 0, False
        self._key: object = None  # of the value that is read
        self._start = 0  # where that key or value begins
        self._arguments: tuple[int, int | None] | None = None  # where they begin and end
        self._sent, self._is_sent = 0, False  # of the text so far; and whether that is all of the arguments

    def add(self, character: str) -> None:
        self._text.append(character)
        if self.in_string:
            self._add_to_string(character)
        elif character == '"':
            self.in_string = True
        elif character in "{[":
            self._depth += 1
            self._start = len(self._text) if self._depth == 1 else self._start
        elif character in "}]":
            self._close()
        elif self._depth == 1 and character == ":" and self._key is None:
            self._key, self._start = self._parsed(self._start), len(self._text)
            if self._key in ARGUMENTS:
                self._arguments = self._start, None
        elif self._depth == 1 and character == ",":
            self._end_value()

    def _add_to_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self.in_string = False

    def _close(self) -> None:
        self._depth -= 1
        if self._depth == 1 and self._key in ARGUMENTS and self._arguments is not None:
            self._arguments = self._arguments[0], len(self._text)
        elif self._depth == 0:
            self._end_value()
            self.is_done = True

    def _end_value(self) -> None:
        if self._key == "name" and isinstance(name := self._parsed(self._start), str):
            self.name = name
        elif self._key in ARGUMENTS and self._arguments is not None and self._arguments[1] is None:
            self._arguments = self._arguments[0], len(self._text) - 1
        self._key, self._start = None, len(self._text)

    def _parsed(self, start: int) -> object:
        try:
            return json.loads("".join(self._text[start:-1]))
        except (ValueError, RecursionError):
            return None

    def take_arguments(self) -> str:
        """The text of the arguments since the last call; all at once, when complete, if they are not an object."""
        if self._is_sent or (self._arguments is None and not self.is_done):
            return ""
        start, end = self._arguments or (0, 0)
        value = self._text[start:end] if self._sent == 0 else self._text[self._sent : end]
        is_first, text = self._sent == 0, "".join(value)
        if is_first and not text.lstrip().startswith("{"):
            self._is_sent = end is not None
            return as_object(text or "null") if self._is_sent else ""
        self._is_sent, self._sent = end is not None, len(self._text)
        return text.lstrip() if is_first else text


def as_object(text: str) -> str:
    """Arguments that a model wrote as a string of JSON, or left out with null, as the JSON of an object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()
    return "{}" if value is None else value if isinstance(value, str) else text.strip()


class CallReader:
    """Takes the calls out of an answer's text as it streams. Everything else stays text.

    Args:
        form: how the model writes its calls.
        most: number of calls after which others are left out.

    Attributes:
        count: calls so far.
    """

    def __init__(self, form: ToolFormat, most: int | None = None):
        self._form, self._most, self.count = form, most, 0
        self._held = ""  # may be white space before a mark, or its beginning
        self._block: list[str] | None = None  # the text since a mark; None outside
        self._gap = ""  # its end, outside of calls
        self._scanner: CallScanner | None = None
        self._is_named = self._has_call = False  # the call that is read, and the block
        self._may_be_bare = form.bare

    def add(self, text: str) -> tuple[str, list[Json]]:
        """Text of the answer, and calls in OpenAI's form, both as far as this piece brings them."""
        content, calls, text = "", [], self._held + text
        self._held = ""
        while text:
            if self._block is None:
                before, text = self._before_block(text)
                content += before
                continue
            for position, character in enumerate(text, 1):
                content += self._read(character, calls)
                if self._block is None or position == len(text):
                    text = text[position:]
                    break
        return content, calls

    def finish(self) -> str:
        """Text that was held back, when no more comes."""
        content = "" if self.count and not self._held.strip() else self._held
        self._held = ""
        return content + ("" if self._block is None else self._end_block())

    def _before_block(self, text: str) -> tuple[str, str]:
        """Text before a mark and after it; what may be the beginning of a mark is held back."""
        bare = text.lstrip()
        if self._may_be_bare and not bare:
            self._held = text
            return "", ""
        if self._may_be_bare and bare.startswith("{"):
            self._begin_block("")
            return "", bare
        before, mark, after = text.partition(self._form.begin)
        if mark:
            self._begin_block(mark)
            return before.rstrip(), after
        kept = text[: len(text) - beginning_of(self._form.begin, text)].rstrip()
        self._held = text[len(kept) :]
        self._may_be_bare = self._may_be_bare and not kept
        return kept, ""

    def _begin_block(self, mark: str) -> None:
        self._block, self._gap, self._has_call, self._may_be_bare = [mark], "", False, False

    def _end_block(self) -> str:
        """The text of a block without any call; empty for other blocks."""
        text = "" if self._has_call or self._block is None else "".join(self._block)
        self._block = self._scanner = None
        return text

    def _read(self, character: str, calls: list[Json]) -> str:
        """Read one character of a block; returns the block's text if it turns out not to be one."""
        assert self._block is not None
        self._block.append(character)
        end = self._form.end
        if self._scanner is not None and (self._scanner.in_string or character != end[:1]):
            self._scanner.add(character)
            self._take(self._scanner, calls)
            return ""
        self._scanner, self._gap = None, self._gap + character
        if end and self._gap.endswith(end):
            return self._end_block()
        if character == "{":
            self._scanner, self._is_named, self._gap = CallScanner(), False, ""
            self._scanner.add(character)
        elif not end and character not in BETWEEN:
            self._block.pop()  # the calls are over
            return self._end_block() + character
        return ""

    def _take(self, scanner: CallScanner, calls: list[Json]) -> None:
        """Pass on what is new of a call, once its name is known."""
        if scanner.name is not None and (self._most is None or self.count < self._most or self._is_named):
            if not self._is_named:
                function = {"name": scanner.name, "arguments": ""}
                entry = {"index": self.count, "id": self._form.new_id(), "type": "function"}
                calls.append({**entry, "function": function})
                self._is_named, self.count = True, self.count + 1
            self._add_arguments(scanner.take_arguments(), calls)
        self._has_call = self._has_call or scanner.name is not None
        if scanner.is_done:
            self._scanner = None

    def _add_arguments(self, text: str, calls: list[Json]) -> None:
        index = self.count - 1
        if text and calls and calls[-1]["index"] == index:
            calls[-1]["function"]["arguments"] += text
        elif text:
            calls.append({"index": index, "function": {"arguments": text}})


def beginning_of(mark: str, text: str) -> int:
    """How many characters at the end of a text may be the beginning of a mark."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)


def plain_calls(calls: Sequence[Json]) -> list[Json]:
    """The calls of a whole answer, which has no indexes."""
    return [{name: value for name, value in call.items() if name != "index"} for call in calls]
