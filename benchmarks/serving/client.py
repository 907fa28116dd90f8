"""One streamed request to an OpenAI-compatible server, with the time of every piece of its answer."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tiny_llm_engine.events import TokenTimes

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
# Fields for answers of as many tokens as were asked for. A model may then repeat its end token, and a client sees when
# only if that token is in the text.
WHOLE_ANSWERS = {"ignore_eos": True, "skip_special_tokens": False}


def api_url(base_url: str) -> str:
    """The address of a server's API; `/v1` may be there already, as OpenAI's clients want it."""
    return f"{base_url.rstrip('/').removesuffix('/v1')}/v1"


def is_loopback(url: str) -> bool:
    """Whether an address is of this machine: no proxy of the environment can reach it."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(kw_only=True)
class ServedRequest(TokenTimes):
    """One request as its client has seen it, in seconds of its clock; a token is a piece of text."""

    due: float  # when it should have been sent
    prompt_tokens: int = 0  # as the server counts them; 0 from a server that does not
    output_tokens: int = 0
    has_end: bool = False  # whether the server has said that the answer is complete
    error: str | None = None  # why it failed

    def figure(self, name: str) -> float:
        """A completed request's latency by its name in `bench serve`; "tbt" is the longest gap, 0 without one."""
        tpot = self.tpot(self.output_tokens)
        latencies = {"ttft": self.ttft, "tpot": tpot, "e2el": self.latency, "tbt": self.longest_gap}
        return latencies[name] or 0.0


@dataclass(frozen=True)
class Client:
    """A client of one server."""

    base_url: str  # of the server
    model: str  # the name that requests carry
    api_key: str | None = None  # None for a server that wants none
    endpoint: str = ENDPOINTS[0]  # one of `ENDPOINTS`
    extra_body: Mapping[str, Any] = field(default_factory=dict)  # further fields of every request
    headers: Mapping[str, str] = field(default_factory=dict)  # further headers of every request

    def connect(self) -> Any:
        """The official client, an asynchronous context manager. Nothing is tried twice: a failure is a result."""
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        return AsyncOpenAI(
            base_url=api_url(self.base_url),
            api_key=self.api_key or "none",
            max_retries=0,
            default_headers=dict(self.headers),
            http_client=DefaultAsyncHttpxClient(trust_env=not is_loopback(self.base_url)),
        )

    async def ask(
        self, connection: Any, prompt: str, max_tokens: int, due: float, seen: ServedRequest | None = None
    ) -> ServedRequest:
        """Send one prompt, and read its answer to the end. What goes wrong is in the result.

        Args:
            connection: see `connect`.
            max_tokens: how many tokens the answer may have.
            due: when it should be sent, for the result.
            seen: the result, for a caller that reads it before the end.
        """
        seen = seen or ServedRequest(time.perf_counter(), due=due)
        try:
            async with await self._send(connection, prompt, max_tokens) as stream:
                async for chunk in stream:
                    self._note(seen, chunk)
            seen.finished_time = time.perf_counter()
            if not seen.token_times:
                seen.error = "the answer had neither text nor an end"
            elif not seen.has_end:
                seen.error = "the stream ended before the answer did"
        except Exception as error:  # of the server, the network or an odd chunk: it fails this request alone
            seen.error = f"{type(error).__name__}: {error}"
        return seen

    async def _send(self, connection: Any, prompt: str, max_tokens: int) -> Any:
        send = partial(connection.completions.create, prompt=prompt)
        if self.endpoint != ENDPOINTS[0]:
            messages = [{"role": "user", "content": prompt}]
            send = partial(connection.chat.completions.create, messages=messages)
        return await send(
            model=self.model,
            max_tokens=max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=dict(self.extra_body),
        )

    def _note(self, seen: ServedRequest, chunk: Any) -> None:
        """Take a chunk in: a piece if it has text, and the counts of tokens if it has them.

        An answer may have no text: where its first token is an end token, that token has the time of the last chunk.
        """
        for choice in chunk.choices or ():
            has_text = choice.text if self.endpoint == ENDPOINTS[0] else says_something(choice.delta)
            if has_text or (choice.finish_reason and not seen.token_times):
                seen.add_token(time.perf_counter())
                seen.output_tokens += 1
            seen.has_end = seen.has_end or bool(choice.finish_reason)
        if chunk.usage is not None:  # of the whole request: better than counting pieces
            seen.prompt_tokens = int(chunk.usage.prompt_tokens or 0)
            seen.output_tokens = int(chunk.usage.completion_tokens or 0)
            seen.has_end = True


def says_something(delta: Any) -> bool:
    """Whether a chunk of a conversation has text: of the answer, of what the model thinks before it, or of a call."""
    fields = ("content", "reasoning_content", "reasoning", "tool_calls")
    return any(getattr(delta, name, None) for name in fields)


def served_model(wanted: str | None, base_url: str, api_key: str | None, headers: Mapping[str, str]) -> str:
    """The server's name of the model that was asked for.

    Args:
        wanted: its name, or a path whose last part is its name, as our server has it; None for a server of one model.

    Raises:
        ValueError: the server lists models, and not this one or several; or none was asked for, and it lists none.
    """
    names = listed_models(base_url, api_key, headers)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise ValueError(f"--base-url {base_url}: lists {', '.join(names) or 'no models'}; give --model")
    if not names or wanted in names:
        return wanted
    if (name := Path(wanted).resolve().name) in names:
        return name
    raise ValueError(f"--model {wanted}: the server has {', '.join(names)}")


def listed_models(base_url: str, api_key: str | None, headers: Mapping[str, str]) -> list[str]:
    """The names of a server's models; empty where it does not say, or not in JSON.

    Raises:
        ValueError: it cannot be reached, is not ready, or refuses the key.
    """
    from openai import (
        APIConnectionError,
        AuthenticationError,
        DefaultHttpxClient,
        NotFoundError,
        OpenAI,
        OpenAIError,
    )

    url, direct = api_url(base_url), DefaultHttpxClient(trust_env=not is_loopback(base_url))
    try:
        with OpenAI(
            base_url=url,
            api_key=api_key or "none",
            max_retries=0,
            default_headers=headers,
            http_client=direct,
        ) as client:
            return [model.id for model in client.models.list().data]
    except (NotFoundError, json.JSONDecodeError, AttributeError, TypeError):  # no list of models
        return []
    except APIConnectionError:
        raise ValueError(f"--base-url {base_url}: no server answers at {url}; is it running?") from None
    except AuthenticationError:
        raise ValueError(f"--base-url {base_url}: give its key, as --api-key or OPENAI_API_KEY") from None
    except OpenAIError as error:
        raise ValueError(f"--base-url {base_url}: {error}") from None
