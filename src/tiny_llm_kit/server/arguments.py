"""The options of `pdm run serve` about HTTP, and what they become."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..engine.arguments import json_object, positive_number, whole_number
from ..engine.weights.random_weights import SHAPES
from .openai_api.tool_calls import FORMATS
from .vllm_flags import PREFIX

API_KEY = "TINY_LLM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def add_server_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options of the server itself."""
    add = top.add_argument
    add("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in; default: 127.0.0.1")
    add("--port", type=whole_number(0, 65535), default=8000, help="0 takes a free one; default: 8000")
    add(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="what clients may call the model, first what answers call it; default: the last part of --model",
    )
    add("--api-key", metavar="KEY", help=f"clients must send it; better in the environment, as {API_KEY}")
    add(
        "--max-queue",
        type=whole_number(0),
        default=256,
        metavar="N",
        help="answers that wait beyond those that run; default: 256",
    )
    add(
        "--request-timeout",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds until a request is given up; default: 600",
    )
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="S",
        help="seconds for open requests when the server stops; default: 30",
    )
    add(
        "--max-body-bytes",
        type=whole_number(1),
        metavar="N",
        help="bytes of a request; default: 1 MiB, and 32 for each token of the context",
    )
    add(
        "--max-connections",
        type=whole_number(1),
        metavar="N",
        help="open at the same time; default: as many as the limit of open files allows, at most 4096",
    )
    add(
        "--allowed-hosts",
        nargs="+",
        metavar="NAME",
        help="names in the Host header, * for all; default: those of this machine, and all with another --host",
    )
    add("--live-controls", action="store_true", help="let the page at / change the token budget of a step")
    add(
        "--access-log",
        action="store_true",
        help="a line per request: status, seconds, tokens, id; no query, header or prompt",
    )
    add("--disable-log-stats", action="store_true", help="no line about throughput every 10 seconds")
    add(
        "--tool-call-parser",
        choices=sorted(FORMATS),
        metavar="NAME",
        help=f"how the model writes calls: {', '.join(FORMATS)}; default: as its chat template shows",
    )
    add(
        "--reasoning-parser",
        metavar="NAME",
        help="the model thinks between <think> and </think>; default: if its chat template knows these",
    )


def add_frontend_arguments(top: argparse.ArgumentParser) -> None:
    """Add options that `vllm serve` has too, for proxies, browsers and templates."""
    add = top.add_argument_group(
        "as in vllm serve", f"also --config FILE.yaml, and each option as a variable: {PREFIX}MAX_NUM_SEQS=4"
    ).add_argument
    add("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    add("--tokenizer", metavar="MODEL", help="must be the model: it has its own tokenizer")
    add("--uds", metavar="PATH", help="listen on this Unix socket instead of an address")
    add("--root-path", default="", metavar="PATH", help="what a proxy in front takes away from paths")
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
        "--allowed-origins",
        nargs="+",
        type=json_texts,
        metavar="ORIGIN",
        help="web pages that may read answers (CORS), * for all; default: none",
    )
    add("--allowed-methods", nargs="+", type=json_texts, metavar="NAME", help="of these pages; default: all")
    add("--allowed-headers", nargs="+", type=json_texts, metavar="NAME", help="of these pages; default: all")
    add("--allow-credentials", action="store_true", help="these pages may send cookies")
    add(
        "--chat-template", metavar="FILE", help="instead of the model's own; a file, or the Jinja text itself"
    )
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        metavar="JSON",
        help="variables of the chat template, unless a request gives others",
    )


def json_texts(text: str) -> list[str]:
    """Texts: a list in JSON, as vLLM has it, or one text."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, list) and all(isinstance(each, str) for each in value) else [text]


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


def add_shape_arguments(top: argparse.ArgumentParser) -> None:
    """Add the options for random weights: speed does not depend on the weights' values."""
    add = top.add_argument_group(
        "random weights", "to measure; texts are read as --model reads them"
    ).add_argument
    add("--config", choices=sorted(SHAPES), help="this shape instead of that of --model")
    add("--random-weights", action="store_true", default=None, help="the shape of --model")
    add("--layers", type=whole_number(1), metavar="N", help="fewer layers than the shape has")


def server_options(options: argparse.Namespace) -> Any:
    """The `ServerOptions` that the options ask for.

    Raises:
        ValueError: an option is out of range.
    """
    from .openai_api.server_options import ServerOptions

    names = tuple(options.served_model_name or [Path(options.model).resolve().name])
    sizes = {
        each: getattr(options, each)
        for each in ("max_queue", "request_timeout", "drain_timeout", "max_body_bytes")
    }
    key = options.api_key if options.api_key is not None else os.environ.get(API_KEY)
    hosts = allowed_hosts(options.host, options.allowed_hosts)
    parsers = {each: getattr(options, each) for each in ("tool_call_parser", "reasoning_parser")}
    cors = {
        each: flat(getattr(options, each))
        for each in ("allowed_origins", "allowed_methods", "allowed_headers")
    }
    return ServerOptions(
        names[0],
        options.solution,
        other_names=names[1:],
        root_path=options.root_path,
        allow_credentials=options.allow_credentials,
        chat_template_kwargs=options.default_chat_template_kwargs or {},
        **cors,
        api_key=key,
        allowed_hosts=hosts,
        live_controls=options.live_controls,
        access_log=options.access_log,
        log_stats=not options.disable_log_stats,
        **parsers,
        **sizes,
    )


def flat(lists: Sequence[Sequence[str]] | None) -> tuple[str, ...]:
    """All texts of an option with several."""
    return tuple(text for texts in lists or () for text in texts)


def allowed_hosts(host: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names that requests may have in their Host header; None for all.

    On a loopback address it is checked by default: no web page can have such a name, and so none can reach the server
    through a name of its own that leads to this address.
    """
    if names is None and (host in LOOPBACK or host.startswith("127.")):
        names = [host]
    return None if names is None or "*" in names else (*map(str.lower, names), *LOOPBACK)
