"""`pdm run serve`: an OpenAI-compatible server around Week 3's engine."""

import argparse
import errno
import gc
import os
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, llm_class, open_llm
from ..engine.arguments import (
    add_engine_arguments,
    add_model_arguments,
    engine_options,
    positive_number,
    whole_number,
)
from ..engine.parallel.job import Job
from ..engine.parallel.start import follow_if_launched
from ..engine.port import SOLUTIONS
from ..engine.weights.random_weights import SHAPES, check_layers
from ..terminal import FatalError, command, fail

API_KEY = "TINY_LLM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
# The engine's thread releases the interpreter's lock in every kernel, and waits up to this long to have it back while
# the event loop writes to its readers. Python's 5 ms are as long as a step of a small model.
SWITCH_SECONDS = 0.0005
EXAMPLE = """when it is ready, in another terminal:

  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is chunked prefill?"}], "max_tokens": 64}'
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="pdm run serve",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = top.add_argument
    add("--host", default="127.0.0.1", help="0.0.0.0 lets other machines in; default: 127.0.0.1")
    add("--port", type=whole_number(0, 65535), default=8000, help="0 takes a free one; default: 8000")
    add(
        "--served-model-name",
        metavar="NAME",
        help="what clients call the model; default: the last part of --model",
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
        default=4 * 2**20,
        metavar="N",
        help="bytes of a request; default: 4 MiB",
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
    add_replica_arguments(top)
    add("--access-log", action="store_true", help="a line per request; headers and prompts are never logged")
    add_model_arguments(top, solution="ref")
    add_shape_arguments(top)
    add_engine_arguments(top, scheduling_policy="priority")
    return top


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


def make_llm(options: argparse.Namespace, engine: dict[str, Any]) -> Any:
    """Open the `LLM` that the options ask for, also with random weights; runs on the engine's thread."""
    if check_layers(options.config, bool(options.random_weights), options.layers):
        cls = llm_class(SOLUTIONS[options.solution])
        where = cls.solution, options.backend, options.device, options.dtype, options.model, options.quantize
        given = {**cls.engine_options(options.backend), **engine}
        shape = {"config": options.config, "layers": options.layers}
        return cls.of_job(Job(*where, engine_options=given, random_weights=shape))
    return open_llm(options, **engine)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on this address; if it cannot listen, the command ends with one line.

    Called before the model is loaded, because the address may be taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fail(f"port {port} is taken: stop the server there, or choose another --port", 1)
        fail(f"check --host and --port: {error.strerror}", 1)
    # Connections inherit it. asyncio sets it for listeners of its own only, and without it the first piece of an
    # answer waits about 40 ms, until the client acknowledges the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def say_ready(url: str, name: str) -> None:
    """Print that the server is ready, with its URL and the name of the model."""
    print(f"ready on {url} (model {name}; a page for browsers, and OpenAI's API under /v1)", flush=True)


def begin(url: str, name: str) -> None:
    """Set what was loaded apart from garbage collections, which stop every stream; then say that all is ready."""
    gc.collect()
    gc.freeze()
    say_ready(url, name)


def server_of(options: argparse.Namespace, on_ready: Callable[[str], object] = lambda name: None) -> Any:
    """The server, not yet started.

    Args:
        on_ready: called with the name of the model once requests are accepted.

    Raises:
        ValueError: an option is out of range.
    """
    from ..server.openai_api.connections import ConnectionLimits
    from ..server.openai_api.draining_server import DrainingServer
    from ..server.server import create_app
    from ..trace.timeline.live import LiveTimeline

    opens, served = engine_opener(options), server_options(options)
    app = create_app(opens, served, LiveTimeline(served.model_name))
    limits = ConnectionLimits.within(options.max_connections)
    ready = partial(on_ready, served.model_name)
    return DrainingServer(app, options.host, options.port, options.access_log, limits, ready)


def engine_opener(options: argparse.Namespace) -> Callable[[], Any]:
    """What opens the `LLM` that the options ask for, in this process or in a replica.

    Raises:
        ValueError: an option is out of range.
    """
    check_layers(options.config, bool(options.random_weights), options.layers)
    options.backend = choose_backend(options.solution, options.backend)
    return partial(make_llm, options, engine_options(options))


def server_options(options: argparse.Namespace) -> Any:
    """The `ServerOptions` that the options ask for.

    Raises:
        ValueError: an option is out of range.
    """
    from ..server.openai_api.service import ServerOptions

    name = options.served_model_name or Path(options.model).resolve().name
    sizes = {
        each: getattr(options, each)
        for each in ("max_queue", "request_timeout", "drain_timeout", "max_body_bytes")
    }
    key = options.api_key if options.api_key is not None else os.environ.get(API_KEY)
    hosts = allowed_hosts(options.host, options.allowed_hosts)
    return ServerOptions(
        name, options.solution, api_key=key, allowed_hosts=hosts, live_controls=options.live_controls, **sizes
    )


def replica_application(options: argparse.Namespace) -> tuple[Any, Any]:
    """The application of Ray Serve that the options ask for, and its `ReplicaOptions`.

    Raises:
        ImportError: Ray Serve is not installed.
        ValueError: an option is out of range.
    """
    from ..server.replicas.replica_options import ReplicaOptions, check_ray

    opens, served, most = engine_opener(options), server_options(options), options.max_num_seqs
    replicas = ReplicaOptions(
        options.replicas,
        options.max_replicas,
        options.target_ongoing_requests or most,
        2 * (most + options.max_queue),
        options.device,
        options.block_size,
        max(1, (os.cpu_count() or 1) // (options.max_replicas or options.replicas)),
    )
    check_ray()
    from ..server.replicas.deployments import application

    return application(opens, options.model, served, replicas), replicas


def application(arguments: dict[str, str]) -> Any:
    """The application for Ray's own command; its arguments are the options of `pdm run serve` without dashes.

    serve run tiny_llm_kit.commands.serve:application replicas=2 max-num-seqs=4
    """
    argv = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    return replica_application(parser().parse_args(["--replicas", "2", *argv]))[0]


def serve_replicas(options: argparse.Namespace, url: str, port: int) -> None:
    """Serve with replicas until a signal."""
    try:
        made, replicas = replica_application(options)
    except (ImportError, ValueError) as error:
        fail(error)
    from ..server.replicas.run_replicas import serve_until_signal, start_replicas

    print(f"starting {options.replicas} replicas of {options.model}; then {url} takes requests", flush=True)
    start_replicas(made, options.host, port, replicas.most)
    print(f"ready on {url} ({options.replicas} replicas; OpenAI's API under /v1)", flush=True)
    serve_until_signal(lambda: print("draining", flush=True))


def allowed_hosts(host: str, names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The names that requests may have in their Host header; None for all.

    On a loopback address it is checked by default: no web page can have such a name, and so none can reach the server
    through a name of its own that leads to this address.
    """
    if names is None and (host in LOOPBACK or host.startswith("127.")):
        names = [host]
    return None if names is None or "*" in names else (*map(str.lower, names), *LOOPBACK)


@command
def main(argv: list[str] | None = None) -> None:
    options = parser().parse_args(argv)
    ranks = options.tensor_parallel_size * options.pipeline_parallel_size
    follow_if_launched(options.solution, choose_backend(options.solution, options.backend), ranks)
    if options.replicas is None and (options.max_replicas or options.target_ongoing_requests):
        fail("--max-replicas and --target-ongoing-requests need --replicas")
    if options.replicas is not None and ranks > 1:
        fail("--replicas starts engines on one device each: leave --tensor-parallel-size and the like out")
    with ends_at_a_blank(needs=Day(3, 6)), listen(options.host, options.port) as listener:
        url = url_of(options.host, port := listener.getsockname()[1])
        if options.replicas is not None:
            listener.close()  # Ray's proxy listens there
            serve_replicas(options, url, port)
            return
        try:
            server = server_of(options, partial(begin, url))
            sys.setswitchinterval(SWITCH_SECONDS)
        except (ImportError, ValueError) as error:
            fail(error)
        print(f"loading {options.model}; then {url} takes requests", flush=True)
        server.run(sockets=[listener])
        failure = server.service.failure
        if isinstance(failure, (NotImplementedError, FatalError)):
            raise failure
        if failure is not None:
            fail(failure if server.service.is_known(failure) else f"the engine is dead: {failure}")


if __name__ == "__main__":
    main()
