"""What the text of an answer consists of: what the model thought, what it says, and calls of tools."""

from dataclasses import dataclass, field

from tiny_llm_engine.models.files import Json

from .tool_calls import CallReader, beginning_of, plain_calls

THINK, THOUGHT = "<think>", "</think>"


@dataclass
class AnswerDelta:
    """What a piece of text adds to an answer.

    Args:
        content: what the model says.
        reasoning: what it thought before.
        calls: of tools, in OpenAI's form.
    """

    content: str = ""
    reasoning: str = ""
    calls: list[Json] = field(default_factory=list)

    def fields(self) -> Json:
        """The fields of a chunk's delta, without those that are empty."""
        named = {"content": self.content, "reasoning_content": self.reasoning, "tool_calls": self.calls}
        return {name: value for name, value in named.items() if value}

    def message(self) -> Json:
        """The fields of a whole answer's message."""
        others = {name: value for name, value in self.fields().items() if name != "content"}
        if self.calls:
            others["tool_calls"] = plain_calls(self.calls)
        return {"content": (self.content or None) if others else self.content, **others}


class ThoughtReader:
    """Separates what a model thought from what it says after it.

    Args:
        begins_inside: whether the prompt ended in the middle of a thought; else the answer may begin with a mark.
    """

    def __init__(self, begins_inside: bool):
        self._held, self._is_begun, self._is_inside = "", False, begins_inside
        self._has_mark = begins_inside

    def add(self, text: str) -> tuple[str, str]:
        """What the text adds to the thought, and to what follows it."""
        text, self._held = self._held + text, ""
        if not self._is_begun:
            text = self._begun(text)
        if not self._is_inside or not text:
            return "", text
        thought, mark, after = text.partition(THOUGHT)
        if mark:
            self._is_inside, self._is_begun = False, False  # white space comes before the answer
            return thought.rstrip(), self._begun(after)
        thought = text[: len(text) - beginning_of(THOUGHT, text)].rstrip()
        self._held = text[len(thought) :]
        return thought, ""

    def _begun(self, text: str) -> str:
        """The text without white space, and without a mark, at its beginning."""
        bare = text.lstrip()
        if not self._has_mark and bare.startswith(THINK):
            self._has_mark = self._is_inside = True
            return self._begun(bare.removeprefix(THINK))
        if not bare or (not self._has_mark and THINK.startswith(bare)):
            self._held = text
            return ""
        self._is_begun = True
        return bare if self._has_mark else text

    def finish(self) -> tuple[str, str]:
        """What was held back, when no more comes."""
        text, self._held = self._held, ""
        if self._has_mark and not text.strip():
            return "", ""
        return (text, "") if self._is_inside else ("", text)


@dataclass
class AnswerReader:
    """Reads one answer.

    Args:
        thoughts: separates what the model thought; None if it does not think.
        calls: takes calls out of what it says; None if there are no tools.
        shows_thoughts: whether the client wants to read them.
        is_forced: whether it is nothing but calls, so that the beginning of one is no content where it is cut off.
    """

    thoughts: ThoughtReader | None
    calls: CallReader | None
    shows_thoughts: bool = True
    is_forced: bool = False

    @property
    def has_calls(self) -> bool:
        return self.calls is not None and self.calls.count > 0

    def add(self, text: str, is_last: bool = False) -> AnswerDelta:
        """What a piece of text adds; with the last one also what was held back."""
        thought = ""
        if self.thoughts is not None:
            thought, text = self.thoughts.add(text)
            if is_last:
                last_thought, last_text = self.thoughts.finish()
                thought, text = thought + last_thought, text + last_text
        delta = AnswerDelta(text, thought if self.shows_thoughts else "")
        if self.calls is not None:
            delta.content, delta.calls = self.calls.add(text)
            delta.content += self.calls.finish() if is_last else ""
        if self.is_forced:
            delta.content = ""
        return delta
