"""`pdm run soak`: random requests with cancellations and preemptions, each compared with the same request served alone.

With --server, hundreds of clients send them over HTTP at once; some disconnect or read slowly. With --requests N,
N short ones are served in bf16, and the memory of the process is reported after each thousand. With --replicas N,
clients use N replicas on Ray Serve, one of which is killed under load.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console

from tiny_llm_course.capabilities import tested_ports
from tiny_llm_engine.machine.repo import BACKENDS
from tiny_llm_engine.machine.terminal import command, fail
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.arguments import DEVICES, positive_number, whole_number
from tiny_llm_server.replicas.replica_options import check_ray

from .engine_soak import Soak
from .harness import Counts, SoakError
from .memory_soak import soak_memory
from .server_soak import SHAPES, ServerSoak

POLICIES = ("hybrid", "separate")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run soak", description=__doc__)
    add = top.add_argument
    add("--minutes", type=positive_number, default=20.0, help="of the engine's cases together; default: 20")
    add("--backend", choices=["all", *BACKENDS], help="default: all")
    add("--device", default="auto", choices=DEVICES)
    add("--seed", type=whole_number(0), default=0, help="of the requests")
    add("--requests", type=whole_number(1), metavar="N", help="instead: process memory over N requests")
    add("--server", action="store_true", help="clients of a server, with two arrival patterns on each port")
    add("--replicas", type=whole_number(2), metavar="N", help="replicas on Ray Serve, one of which is killed")
    add("--clients", type=whole_number(1), default=500, help="with --server; default: 500")
    return top


@command
def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console(highlight=False)
    for case, run in cases(options, console):
        try:
            counts = run()
        except (SoakError, ImportError, ValueError) as error:
            fail(f"{case}: {error}")
        if counts is not None:
            console.print(f"{case}: {counts}", soft_wrap=True)
            for line in counts.near_ties:
                console.print(f"  {line}", soft_wrap=True)


def cases(options: argparse.Namespace, console: Console) -> Iterator[tuple[str, Callable[[], Counts | None]]]:
    """The soaks that were asked for, by port and by what else distinguishes them."""
    ports = tested_ports(options.backend)
    for name in ports:
        port = Port("tiny_llm_ref", name, options.device, "bfloat16" if options.requests else "float32")
        if options.requests:
            yield name, partial(soak_process, port, options, console)
        elif options.replicas:
            yield f"{name}, {options.replicas} replicas", partial(soak_replicas, port, options, console)
        elif options.server:
            for shape, burstiness in SHAPES.items():
                yield f"{name}, {shape}", partial(soak_server, port, options, console, burstiness)
        else:
            for policy in POLICIES:
                seconds = 60 * options.minutes / len(ports) / len(POLICIES)
                yield f"{name}, {policy}", partial(soak_engine, port, options, console, policy, seconds)


def soak_engine(
    port: Port, options: argparse.Namespace, console: Console, policy: str, seconds: float
) -> Counts:
    """Soak the engine under one policy, with a spinner and the counts so far."""
    with console.status("") as status:
        made = Soak(port, options.seed, policy=policy)
        return made.run(seconds, lambda counts: status.update(f"{port.name}, {policy}: {counts}"))


def soak_server(port: Port, options: argparse.Namespace, console: Console, burstiness: float) -> Counts:
    """Soak a server whose clients arrive with this burstiness."""
    with console.status(f"{port.name}, {options.clients} clients"):
        return ServerSoak(port, options.seed).run(options.clients, burstiness)


def soak_replicas(port: Port, options: argparse.Namespace, console: Console) -> Counts:
    """Soak replicas on Ray Serve."""
    check_ray()
    from .replica_soak import ReplicaSoak

    with console.status(f"{port.name}, {options.replicas} replicas"):
        return ReplicaSoak(port, options.seed, options.replicas).run()


def soak_process(port: Port, options: argparse.Namespace, console: Console) -> None:
    """Report the memory of this process while short requests are served."""

    def report(count: int, size: int) -> None:
        console.print(f"{port.name}: {size / 2**20:,.0f} MiB after {count:,} requests")

    soak_memory(port, options.seed, options.requests, report)


if __name__ == "__main__":
    main()
