"""One streamed request to an OpenAI-compatible server, with the time of every piece of its answer."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiny_llm_kit.engine.request_times import TokenTimes

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")


def api_url(base_url: str) -> str:
    """Where a server's API is; `/v1` may be there already, as OpenAI's clients want it."""
    return f"{base_url.rstrip('/').removesuffix('/v1')}/v1"


@dataclass(kw_only=True)
class ServedRequest(TokenTimes):
    """What a client has seen of one request, in seconds of its clock; a token is a piece of text.

    Args:
        due: when it should have been sent.
        prompt_tokens, output_tokens: as the server counts them; 0 from a server that does not.
        error: why it failed.
    """

    due: float
    prompt_tokens: int = 0
    output_tokens: int = 0
    error: str | None = None

    def figure(self, name: str) -> float | None:
        """A latency by its name in `bench serve`; "tbt" is the longest time between two pieces, 0 without one."""
        latencies = {"ttft": self.ttft, "tpot": self.tpot(self.output_tokens), "e2el": self.latency}
        return (self.longest_gap or 0.0) if name == "tbt" else latencies[name]


@dataclass(frozen=True)
class Client:
    """Sends requests to one server.

    Args:
        base_url: of the server.
        model: the name that requests carry.
        api_key: None for a server that wants none.
        endpoint: one of `ENDPOINTS`.
        extra_body: further fields of every request.
        clock: seconds.
    """

    base_url: str
    model: str
    api_key: str | None = None
    endpoint: str = ENDPOINTS[0]
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.perf_counter

    def connect(self) -> Any:
        """The official client, an asynchronous context manager. Nothing is tried twice: a failure is a result."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=api_url(self.base_url), api_key=self.api_key or "none", max_retries=0)

    async def ask(self, connection: Any, prompt: str, max_tokens: int, due: float) -> ServedRequest:
        """Sends one prompt, and reads its answer to the end. What goes wrong is in the result.

        Args:
            connection: see `connect`.
            max_tokens: of the answer.
            due: when it should be sent, for the result.
        """
        from openai import OpenAIError

        seen = ServedRequest(self.clock(), due=due)
        try:
            async with await self._send(connection, prompt, max_tokens) as stream:
                async for chunk in stream:
                    self._note(seen, chunk)
            seen.finished_time = self.clock()
            seen.error = None if seen.token_times else "the answer had no text"
        except (OpenAIError, OSError, json.JSONDecodeError) as error:
            seen.error = f"{type(error).__name__}: {error}"
        return seen

    async def _send(self, connection: Any, prompt: str, max_tokens: int) -> Any:
        shared = {"model": self.model, "max_tokens": max_tokens, "temperature": 0.0, "stream": True}
        shared |= {"stream_options": {"include_usage": True}, "extra_body": dict(self.extra_body)}
        if self.endpoint == ENDPOINTS[0]:
            return await connection.completions.create(prompt=prompt, **shared)
        messages = [{"role": "user", "content": prompt}]
        return await connection.chat.completions.create(messages=messages, **shared)

    def _note(self, seen: ServedRequest, chunk: Any) -> None:
        """Takes a chunk in: a piece if it has text, and the counts of tokens if it has them."""
        for choice in chunk.choices:
            if choice.text if self.endpoint == ENDPOINTS[0] else choice.delta.content:
                seen.add_token(self.clock())
                seen.output_tokens += 1
        if chunk.usage is not None:  # of the whole request: better than counting pieces
            seen.prompt_tokens, seen.output_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
