"""The options of `pdm run serve` about HTTP, and what they become."""

import argparse
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from tiny_llm_engine.models.weights.random_weights import SHAPES
from tiny_llm_extensions.arguments import add_field_arguments, json_object, positive_number, whole_number

from .openai_api.server_options import ServerOptions
from .vllm_flags import PREFIX

API_KEY = "TINY_LLM_API_KEY"
# They have options of other names.
APART = ("model_name", "solution", "other_names", "chat_template_kwargs", "log_stats")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_server_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options of the server itself: an address, names, limits, and the fields of `ServerOptions`."""
    add = top.add_argument
    add("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in; default: 127.0.0.1")
    add("--port", type=whole_number(0, 65535), default=8000, help="0 takes a free one; default: 8000")
    names = "what clients may call the model, first what answers call it; default: the last part of --model"
    add("--served-model-name", nargs="+", metavar="NAME", help=names)
    most = "open at the same time; default: as many as the limit of open files allows, at most 4096"
    add("--max-connections", type=whole_number(1), metavar="N", help=most)
    add("--disable-log-stats", action="store_true", help="no line about throughput every 10 seconds")
    add_field_arguments(top, ServerOptions, APART, live_controls=None)


def add_frontend_arguments(top: argparse.ArgumentParser) -> None:
    """Add options that `vllm serve` has too, for proxies, browsers and templates."""
    add = top.add_argument_group(
        "as in vllm serve", f"also --config FILE.yaml, and each option as a variable: {PREFIX}MAX_NUM_SEQS=4"
    ).add_argument
    add("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    add("--tokenizer", metavar="MODEL", help="must be the model: it has its own tokenizer")
    add("--uds", metavar="PATH", help="listen on this Unix socket instead of an address")
    add("--ssl-keyfile", metavar="FILE", help="TLS: the private key")
    add("--ssl-certfile", metavar="FILE", help="TLS: the certificate")
    add("--ssl-ca-certs", metavar="FILE", help="TLS: certificates that sign those of clients")
    add(
        "--ssl-cert-reqs",
        type=whole_number(0, 2),
        default=0,
        metavar="N",
        help="TLS: 2 demands one of each client",
    )
    levels = ["critical", "error", "warning", "info", "debug", "trace"]
    add(
        "--uvicorn-log-level", choices=levels, default="warning", help="of the HTTP library; default: warning"
    )
    add(
        "--chat-template", metavar="FILE", help="instead of the model's own; a file, or the Jinja text itself"
    )
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        metavar="JSON",
        help="variables of the chat template, unless a request gives others",
    )


def add_replica_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options for replicas on Ray Serve."""
    add = top.add_argument_group(
        "replicas", "several engines behind one address, on Ray Serve; the page at / is left out"
    ).add_argument
    add("--replicas", type=whole_number(1), metavar="N", help="engines, each in a process of its own")
    add(
        "--max-replicas",
        type=whole_number(1),
        metavar="N",
        help="start more under load, up to this many; default: as --replicas",
    )
    add(
        "--target-ongoing-requests",
        type=positive_number,
        metavar="N",
        help="open requests of a replica above which another one is started; default: --max-num-seqs",
    )


def add_split_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options for prompts that other engines compute."""
    add = top.add_argument_group(
        "prompts elsewhere",
        "engines for prompts and engines that decode behind one address; the page at / is left out",
    ).add_argument
    add(
        "--disaggregated",
        type=split,
        metavar="P:D",
        help="processes of each kind on this machine, such as 1:1",
    )
    add(
        "--prefill-servers",
        type=addresses,
        metavar="HOST:PORT,…",
        help="kv_role kv_producer, started elsewhere",
    )
    add(
        "--decode-servers",
        type=addresses,
        metavar="HOST:PORT,…",
        help="kv_role kv_consumer, started elsewhere",
    )
    least = "tokens of a prompt, four bytes each, that is computed elsewhere, at least; default: 256"
    add("--min-remote-prefill", type=whole_number(0), default=256, metavar="N", help=least)


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


def add_shape_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options for random weights: speed does not depend on the weights' values."""
    add = top.add_argument_group(
        "random weights", "to measure; texts are read as --model reads them"
    ).add_argument
    add("--config", choices=sorted(SHAPES), help="this shape instead of that of --model")
    add("--random-weights", action="store_true", default=None, help="the shape of --model")
    add("--layers", type=whole_number(1), metavar="N", help="fewer layers than the shape has")


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
