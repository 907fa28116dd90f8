"""The options of `pdm run serve` about HTTP, and what they become."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from tiny_llm_engine.models.weights.random_weights import SHAPES
from tiny_llm_extensions.arguments import OptionalCount, add_field_arguments, positive_number, whole_number

from .openai_api.server_options import ServerOptions

API_KEY = "TINY_LLM_API_KEY"
# They have options of other names.
APART = ("model_name", "solution", "other_names", "chat_template_kwargs", "log_stats")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def split(text: str) -> tuple[int, int]:
    """How many engines compute prompts, and how many decode: P:D."""
    found = re.fullmatch(r"([1-9]\d?):([1-9]\d?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not P:D, two whole numbers from 1 to 99")
    return int(found[1]), int(found[2])


def addresses(text: str) -> list[str]:
    """Addresses of servers."""
    for address in (found := text.split(",")):
        if not re.fullmatch(r"(\[[\da-fA-F:]+\]|[^\s:]+):\d{1,5}", address):
            raise argparse.ArgumentTypeError(f"{address!r} is not host:port")
    return found


File = Annotated[str | None, {"metavar": "FILE"}]
Addresses = Annotated[list[str] | None, {"type": addresses, "metavar": "HOST:PORT,…"}]
LEVELS = ("critical", "error", "warning", "info", "debug", "trace")


@dataclass
class Listening:
    """Where the server listens, and what it writes.

    Args:
        host: 0.0.0.0 lets other machines in.
        port: 0 takes a free one.
        served_model_name: what clients may call the model, first what answers call it; without it the last part of
            --model.
        max_connections: open at the same time; without it as many as the limit of open files allows, at most 4096.
        disable_log_stats: no line about throughput every 10 seconds.
        ends_with_stdin: end when standard input is closed, and so with the process that has started this one.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, {"type": whole_number(0, 65535), "metavar": "N"}] = 8000
    served_model_name: Annotated[list[str] | None, {"nargs": "+", "metavar": "NAME"}] = None
    max_connections: OptionalCount = None
    disable_log_stats: bool = False
    ends_with_stdin: bool = False


@dataclass
class Frontend:
    """As in `vllm serve`; also --config FILE.yaml, and each option as a variable: TINY_LLM_SERVE_MAX_NUM_SEQS=4.

    Args:
        tokenizer: must be the model: it has its own tokenizer.
        uds: listen on this Unix socket instead of an address.
        ssl_keyfile: TLS: the private key.
        ssl_certfile: TLS: the certificate.
        ssl_ca_certs: TLS: certificates that sign those of clients.
        ssl_cert_reqs: TLS: 2 demands one of each client.
        uvicorn_log_level: of the HTTP library.
        chat_template: instead of the model's own; a file, or the Jinja text itself.
        default_chat_template_kwargs: variables of the chat template, unless a request gives others.
    """

    tokenizer: str | None = None
    uds: str | None = None
    ssl_keyfile: File = None
    ssl_certfile: File = None
    ssl_ca_certs: File = None
    ssl_cert_reqs: Annotated[int, {"type": whole_number(0, 2), "metavar": "N"}] = 0
    uvicorn_log_level: Annotated[str, {"choices": LEVELS}] = "warning"
    chat_template: File = None
    default_chat_template_kwargs: Mapping[str, Any] | None = None


@dataclass
class Replicated:
    """Several engines behind one address, on Ray Serve; the page at / is left out.

    Args:
        replicas: engines, each in a process of its own.
        max_replicas: start more under load, up to this many; without it as many as --replicas.
        target_ongoing_requests: open requests of a replica above which another one is started; without it
            --max-num-seqs.
    """

    replicas: OptionalCount = None
    max_replicas: OptionalCount = None
    target_ongoing_requests: Annotated[float | None, {"type": positive_number, "metavar": "N"}] = None


@dataclass
class Disaggregated:
    """Engines for prompts and engines that decode behind one address; the page at / is left out.

    Args:
        disaggregated: processes of each kind on this machine, such as 1:1.
        prefill_servers: kv_role kv_producer, started elsewhere.
        decode_servers: kv_role kv_consumer, started elsewhere.
        min_remote_prefill: tokens of a prompt, four bytes each, that is computed elsewhere, at least.
    """

    disaggregated: Annotated[tuple[int, int] | None, {"type": split, "metavar": "P:D"}] = None
    prefill_servers: Addresses = None
    decode_servers: Addresses = None
    min_remote_prefill: int = 256


@dataclass
class RandomWeights:
    """Random weights, to measure: speed does not depend on their values. Texts are read as --model reads them.

    Args:
        config: this shape instead of that of --model.
        random_weights: the shape of --model.
        layers: fewer layers than the shape has.
    """

    config: Annotated[str | None, {"choices": sorted(SHAPES)}] = None
    random_weights: bool = False
    layers: OptionalCount = None


def add_server_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options of the server itself, and of what may be in front of its engine or instead of it."""
    top.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    add_field_arguments(top, Listening)
    add_field_arguments(top, ServerOptions, APART, live_controls=None)
    for kind in (Frontend, Replicated, Disaggregated, RandomWeights):
        add_field_arguments(top.add_argument_group(str(kind.__doc__).partition(".\n")[0]), kind)


def server_options(options: argparse.Namespace) -> ServerOptions:
    """The `ServerOptions` that the options ask for.

    Raises:
        ValueError: an option is out of range.
    """
    names = tuple(options.served_model_name or [Path(options.model).resolve().name])
    given = {
        each.name: getattr(options, each.name) for each in fields(ServerOptions) if each.name not in APART
    }
    given |= {name: flat(given[name]) for name in ("allowed_origins", "allowed_methods", "allowed_headers")}
    given["allowed_hosts"] = allowed_hosts(options.host, flat(options.allowed_hosts) or None)
    if given["api_key"] is None:
        given["api_key"] = os.environ.get(API_KEY)
    if given["live_controls"] is None:  # without a key or a proxy only this machine's users reach the page
        guards = given["api_key"], options.allowed_hosts, options.uds, options.root_path
        given["live_controls"] = is_loopback(options.host) and not any(guards)
    return ServerOptions(
        names[0],
        options.solution,
        other_names=names[1:],
        chat_template_kwargs=options.default_chat_template_kwargs or {},
        log_stats=not options.disable_log_stats,
        **given,
    )


def flat(lists: Sequence[Sequence[str]] | None) -> tuple[str, ...]:
    """All texts of an option with several."""
    return tuple(text for texts in lists or () for text in texts)


def is_loopback(host: str) -> bool:
    return host in LOOPBACK or host.startswith("127.")


def allowed_hosts(host: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names that requests may have in their Host header; None for all.

    On a loopback address it is checked by default: no web page can have such a name, and so none can reach the server
    through a name of its own that leads to this address.
    """
    if names is None and is_loopback(host):
        names = [host]
    return None if names is None or "*" in names else (*map(str.lower, names), *LOOPBACK)
