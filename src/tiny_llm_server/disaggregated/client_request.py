"""A client's request as each of its two engines gets it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from tiny_llm_engine.models.files import Json

CHAT = "/v1/chat/completions"
# Paths that generate, and how each calls the limit of an answer.
LIMITS = {"/v1/completions": "max_tokens", CHAT: "max_tokens", "/v1/responses": "max_output_tokens"}
NEWER = "max_completion_tokens"
PROMPT = ("instructions", "tools", "prompt", "messages", "input")  # fields that make a prompt
DROPPED = {NEWER, "n", "best_of", "min_tokens", "stream_options"}  # of one answer with one token
PARAMS = "kv_transfer_params"
NUMBER_BYTES = 4  # of text: about a token


@dataclass(frozen=True)
class ClientRequest:
    """A request as a client has sent it; `target` is its path with the query."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def limit(self) -> str | None:
        """The name of the limit of its answer; None for what generates nothing."""
        return LIMITS.get(self.target.partition("?")[0])

    @cached_property
    def fields(self) -> Json:
        """The fields of a body that asks for an answer; none of what an engine answers otherwise, or refuses."""
        try:
            content = json.loads(self.body) if self.limit else None
        except (ValueError, RecursionError):
            content = None
        return content if isinstance(content, dict) else {}

    @property
    def prompt(self) -> list[int]:
        """Numbers instead of tokens, for `SplitLoads`. Prompts that begin alike share them."""
        made_of = {name: self.fields[name] for name in PROMPT if name in self.fields}
        text = json.dumps(made_of).encode() if made_of else b""
        starts = range(0, len(text), NUMBER_BYTES)
        return [int.from_bytes(text[at : at + NUMBER_BYTES], "little") for at in starts]

    @property
    def max_tokens(self) -> int | None:
        """Tokens of its answer at most; None if it does not say so."""
        if self.limit is None:
            return 0
        given = self.fields.get(NEWER, self.fields.get(self.limit))
        return given if isinstance(given, int) and given >= 0 else None

    def for_prefill(self, transfer: Json) -> bytes:
        """The body for the engine that computes the prompt: the same, for one token that nobody reads."""
        kept = {name: value for name, value in self.fields.items() if name not in DROPPED}
        return json.dumps({**kept, str(self.limit): 1, "stream": False, PARAMS: transfer}).encode()

    def for_decode(self, transfer: Json | None) -> bytes:
        """The body for the engine that answers; `transfer` says where the prompt's keys and values come from.

        A client's own `kv_transfer_params` are not passed on: they would name a host that the engine connects to.
        """
        if not transfer and PARAMS not in self.fields:
            return self.body
        kept = {name: value for name, value in self.fields.items() if name != PARAMS}
        return json.dumps({**kept, **({PARAMS: transfer} if transfer else {})}).encode()
