"""An OpenAI-compatible server around Week 3's engine."""

import argparse
import gc
import os
import signal
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tiny_llm_engine.machine.repo import run_line
from tiny_llm_engine.machine.terminal import FatalError, command, ends_at, fail
from tiny_llm_engine.models.weights.random_weights import check_layers
from tiny_llm_engine.solutions.solution import SOLUTIONS, resolve_serving
from tiny_llm_extensions.arguments import add_engine_arguments, add_model_arguments, engine_options, open_llm
from tiny_llm_extensions.engine_options import check_policy
from tiny_llm_extensions.job import Job
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.parallel.start import follow_if_launched
from tiny_llm_extensions.profiling.step_budget import begin_with_short_steps
from tiny_llm_server.arguments import add_server_arguments, server_options
from tiny_llm_server.listener import listen, url_of
from tiny_llm_server.vllm_flags import expanded

from ..doctor.probe import why_no_kernels
from ..trace.text import counted
from ..whose_code import check_filled, choose_backend, ends_at_a_blank, filled_options

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tiny_llm_server.openai_api.draining_server import DrainingServer
    from tiny_llm_server.openai_api.server_options import ServerOptions
    from tiny_llm_server.replicas.replica_options import ReplicaOptions

TLS = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs")
SPLIT = ("disaggregated", "prefill_servers", "decode_servers", "min_remote_prefill")
PROXY = (*TLS, *SPLIT, "host", "port", "uds", "root_path")  # options that engines behind a proxy do not get
SINGLE = ("uds", "ssl_keyfile", "chat_template")  # options that Ray's own HTTP server does not have
# The engine's thread releases the interpreter's lock in every kernel, and waits up to this long to have it back while
# the event loop writes to its readers. Python's 5 ms are as long as a step of a small model.
SWITCH_SECONDS = 0.0005
SLIDER_TOKENS = 2048  # of a step: the page's long prompt of 2,000 tokens among its short ones
WRONG_PEM = "not a PEM file of this kind, or a key that has a password or belongs to another certificate"
EXAMPLE = """when it is ready, in another terminal:

  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "What is chunked prefill?"}], "max_tokens": 64}'
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog=run_line("serve"),
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_server_arguments(top)
    add_model_arguments(top, solution="ref")
    add_engine_arguments(top, scheduling_policy="priority")
    return top


def parsed(argv: list[str]) -> argparse.Namespace:
    """The options of the command line, of files and of the environment; a wrong one ends the command with one line."""
    top = parser()
    with ends_at(ValueError):
        words = expanded(top, argv, os.environ)
        options = top.parse_args(words)
    options.engine_words = engine_words(words)
    options.model = options.model_tag or options.model
    if options.tokenizer not in (None, options.model):
        fail(f"--tokenizer is {options.tokenizer}: the tokenizer is the model's own; leave it out")
    if bool(options.ssl_keyfile) != bool(options.ssl_certfile):
        fail("TLS needs both --ssl-keyfile and --ssl-certfile")
    check_tls(options)
    return options


def is_proxy(options: argparse.Namespace) -> bool:
    """Whether the engines are in other processes, for prompts and for decodes."""
    return bool(options.disaggregated or options.decode_servers)


def engine_words(words: Sequence[str]) -> list[str]:
    """The words of a command line that engines behind a proxy get."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in PROXY:
        own.add_argument(f"--{name.replace('_', '-')}")
    return own.parse_known_args(words)[1]


def end_with_stdin() -> None:
    """Drain and end this process when standard input is closed."""

    def wait() -> None:
        while os.read(0, 4096):  # not by `sys.stdin`, whose lock would outlive the other threads
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def check_tls(options: argparse.Namespace) -> None:
    """End the command with one line if a file of TLS is missing, or is not what its option says."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, load in {
        "ssl_certfile": context.load_verify_locations,
        "ssl_ca_certs": context.load_verify_locations,
        "ssl_keyfile": partial(context.load_cert_chain, options.ssl_certfile, password=""),
    }.items():
        file = getattr(options, name)
        try:
            if file is not None:
                load(file)
        except OSError as error:
            reason = WRONG_PEM if isinstance(error, ssl.SSLError) else error.strerror
            fail(f"--{name.replace('_', '-')} {file}: {reason}")


def make_llm(options: argparse.Namespace, engine: dict[str, object]) -> LLM:
    """Open the `LLM` that the options ask for, also with random weights; runs on the engine's thread.

    Says so if it has to do without the kernels in C++.
    """
    llm = opened(options, engine)
    if options.chat_template is not None:
        llm.engine.tokenizer.use_chat_template(options.chat_template)
    if llm.engine.port.device == "cpu" and (why := why_no_kernels()) is not None:
        print(f"no kernels in C++, so steps take up to several times as long: {why}", file=sys.stderr)
    if (growing := llm.engine.extensions.get("growing")) is not None:
        print(growing.in_words(), flush=True)
    if (attention := llm.engine.extensions.get("attention")) is not None:
        print(f"attention: {attention}", flush=True)
    return llm


def opened(options: argparse.Namespace, engine: dict[str, object]) -> LLM:
    """The `LLM` that the options ask for."""
    if check_layers(options.config, bool(options.random_weights), options.layers):
        solution = SOLUTIONS[options.solution]
        where = solution, options.backend, options.device, options.dtype, options.model, options.quantize
        given = {**filled_options(solution, options.backend), **engine}
        shape = {"config": options.config, "layers": options.layers}
        return LLM.of_job(Job(*where, engine_options=given, random_weights=shape))
    return open_llm(options, **engine)


def begin(url: str, has_page: bool, name: str) -> None:
    """Set what was loaded apart from garbage collections, which stop every stream; then say that all is ready."""
    gc.collect()
    gc.freeze()
    page = "a page for browsers, and " if has_page else ""
    print(f"ready on {url} (model {name}; {page}OpenAI's API under /v1)", flush=True)


def server_of(
    options: argparse.Namespace, on_ready: Callable[[str], object] = lambda name: None
) -> "DrainingServer":
    """The server, not yet started.

    Args:
        on_ready: called with the name of the model once requests are accepted.

    Raises:
        ValueError: an option is out of range.
    """
    from tiny_llm_server.openai_api.draining_server import ConnectionLimits, DrainingServer

    served = server_options(options)
    limits = ConnectionLimits.within(options.max_connections)
    app = proxy_app(options, served) if is_proxy(options) else engine_app(options, served)
    ready = partial(on_ready, served.model_name)
    tls = {name: getattr(options, name) for name in TLS}
    level = options.uvicorn_log_level
    return DrainingServer(app, options.host, options.port, limits, ready, log_level=level, **tls)


def engine_app(options: argparse.Namespace, served: "ServerOptions") -> "FastAPI":
    """The server around an engine of this process."""
    from tiny_llm_server.server import create_app

    from ..trace.timeline.live import LiveTimeline

    return create_app(llm_opener(options, served), served, LiveTimeline(served.model_name))


def proxy_app(options: argparse.Namespace, served: "ServerOptions") -> "FastAPI":
    """The proxy in front of engines in other processes, which are started here if the options ask for it."""
    from tiny_llm_server.disaggregated.engines import DECODE, PREFILL, ProxiedEngine, started
    from tiny_llm_server.disaggregated.proxy_app import create_proxy_app

    option = "--disaggregated" if options.disaggregated else "--decode-servers"
    check_filled(options.solution, options.backend, 4, 6, option)
    command = ["-m", "tiny_llm_course.commands.serve", *options.engine_words]
    servers, counts = (options.prefill_servers, options.decode_servers), options.disaggregated or (0, 0)
    share, engines = max(1, (os.cpu_count() or 1) // max(1, sum(counts))), []
    for role, addresses, count in zip((PREFILL, DECODE), servers, counts, strict=True):
        engines += [ProxiedEngine(role, address) for address in addresses or ()]
        engines += started(role, count, command, share)
    return create_proxy_app(served, engines, options.min_remote_prefill)


def engine_opener(options: argparse.Namespace) -> Callable[[], LLM]:
    """What opens the `LLM` that the options ask for, in this process or in a replica.

    Raises:
        ValueError: an option is out of range.
    """
    check_layers(options.config, bool(options.random_weights), options.layers)
    check_policy(resolve_serving(options.solution), options.policy)
    options.backend = choose_backend(options.solution, options.backend)
    return partial(make_llm, options, engine_options(options))


def llm_opener(options: argparse.Namespace, served: "ServerOptions") -> Callable[[], LLM]:
    """As `engine_opener`; without --max-num-batched-tokens steps are as short as `max_step_seconds` wants them.

    With live controls the engine is planned for `SLIDER_TOKENS`, which the page's slider reaches. It is left as it is
    where the largest step decides more: in policies that measure steps, for chunks by load, and for drafts.
    """
    is_usual = options.policy in ("hybrid", "separate") and options.enable_chunked_prefill
    changes = options.max_num_batched_tokens, options.scale_chunks_by_load, options.speculative_config
    if not is_usual or any(changes):
        return engine_opener(options)
    if served.live_controls:
        options.max_num_batched_tokens = max(SLIDER_TOKENS, options.max_num_seqs)
    return partial(opened_with_short_steps, engine_opener(options))


def opened_with_short_steps(opens: Callable[[], LLM]) -> LLM:
    """An `LLM` whose tokens somebody reads as they come."""
    llm = opens()
    if chosen := begin_with_short_steps(llm.engine):
        print(chosen, flush=True)
    return llm


def replica_application(options: argparse.Namespace) -> tuple[Any, "ReplicaOptions"]:
    """The application of Ray Serve that the options ask for, and its `ReplicaOptions`.

    Raises:
        ImportError: Ray Serve is not installed.
        ValueError: an option is out of range.
    """
    from tiny_llm_server.replicas.replica_options import ReplicaOptions, check_ray

    served, most = server_options(options), options.max_num_seqs
    opens = llm_opener(options, replace(served, live_controls=False))
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
    from tiny_llm_server.replicas.deployments import application

    return application(opens, options.model, served, replicas), replicas


def application(arguments: dict[str, str]) -> Any:
    """The application for Ray's own command; its arguments are the options of `serve` without dashes.

    serve run tiny_llm_course.commands.serve:application replicas=2 max-num-seqs=4
    """
    argv = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    return replica_application(parsed(["--replicas", "2", *argv]))[0]


def serve_replicas(options: argparse.Namespace, url: str, port: int) -> None:
    """Serve with replicas until a signal."""
    with ends_at(ImportError, ValueError):
        made, replicas = replica_application(options)
    from tiny_llm_server.replicas.run_replicas import serve_until_signal, start_replicas

    replicas_in_words = counted(options.replicas, "replica")
    print(f"starting {replicas_in_words} of {options.model}; then {url} takes requests", flush=True)
    start_replicas(made, options.host, port, replicas.most)
    print(f"ready on {url} ({replicas_in_words}; OpenAI's API under /v1)", flush=True)
    serve_until_signal(lambda: print("draining", flush=True))


@command
def main(argv: list[str] | None = None) -> None:
    options = parsed(sys.argv[1:] if argv is None else argv)
    if options.ends_with_stdin:
        end_with_stdin()
    others = options.prefill_servers or options.decode_servers, options.disaggregated, options.replicas
    if sum(map(bool, others)) > 1:
        fail("give one of --disaggregated, --replicas, and --prefill-servers with --decode-servers")
    if options.prefill_servers and not options.decode_servers:
        fail("--prefill-servers need --decode-servers")
    ranks = options.tensor_parallel_size * options.pipeline_parallel_size
    follow_if_launched(options.solution, choose_backend(options.solution, options.backend), ranks)
    if options.replicas is None and (options.max_replicas or options.target_ongoing_requests):
        fail("--max-replicas and --target-ongoing-requests need --replicas")
    if options.replicas is not None and ranks > 1:
        fail("--replicas starts engines on one device each: leave --tensor-parallel-size and the like out")
    if options.replicas is not None and any(map(vars(options).get, SINGLE)):
        fail(f"--replicas: {', '.join(f'--{name}'.replace('_', '-') for name in SINGLE)} are for one engine")
    with (
        ends_at_a_blank(3, 6),
        listen(options.host, options.port, options.uds) as listener,
    ):
        port = options.port if options.uds else listener.getsockname()[1]
        url = options.uds or url_of(options.host, port, "https" if options.ssl_keyfile else "http")
        if options.replicas is not None:
            listener.close()  # Ray's proxy listens there
            serve_replicas(options, url, port)
            return
        with ends_at(ImportError, ValueError):
            server = server_of(options, partial(begin, url, not is_proxy(options)))
            sys.setswitchinterval(SWITCH_SECONDS)
        print(f"loading {options.model}; then {url} takes requests", flush=True)
        server.run(sockets=[listener])
        failure = server.service.failure
        if isinstance(failure, (NotImplementedError, FatalError)):
            raise failure
        if failure is not None:
            fail(failure if server.service.is_known(failure) else f"the engine is dead: {failure}")


if __name__ == "__main__":
    main()
