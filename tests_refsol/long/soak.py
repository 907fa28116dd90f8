"""`pdm run soak`: random requests with cancellations and preemptions, each compared with the same request served alone.

With --server, hundreds of clients send them over HTTP at once; some disconnect or read slowly. With --requests N,
N short ones are served in bf16, and the memory of the process is reported after each thousand.
"""

import argparse
from typing import Any

from rich.console import Console

from tiny_llm_kit.engine.arguments import DEVICES, positive_number, whole_number
from tiny_llm_kit.engine.port import Port, installed_backends
from tiny_llm_kit.repo import BACKENDS
from tiny_llm_kit.terminal import command, fail

from .engine_soak import Soak, SoakCounts, SoakError


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run soak", description=__doc__)
    add = top.add_argument
    add(
        "--minutes",
        type=positive_number,
        default=20.0,
        help="of all ports and policies together; default: 20",
    )
    add("--backend", default="all", choices=["all", *BACKENDS])
    add("--device", default="auto", choices=DEVICES)
    add("--seed", type=whole_number(0), default=0, help="of the requests")
    add("--requests", type=whole_number(1), metavar="N", help="instead: process memory over N requests")
    add("--server", action="store_true", help="clients of a server, with two arrival patterns on each port")
    add("--clients", type=whole_number(1), default=500, help="with --server; default: 500")
    return top


@command
def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console(highlight=False)
    ports = installed_backends() if options.backend == "all" else [options.backend]
    if options.requests:
        soak_memory(ports, options, console)
        return
    if options.server:
        soak_servers(ports, options, console)
        return
    cases = [(port, policy) for port in ports for policy in ("hybrid", "separate")]
    for name, policy in cases:
        try:
            port = Port("tiny_llm_ref", name, options.device, "float32")
            counts = soak(port, policy, options.seed, 60 * options.minutes / len(cases), console)
        except (SoakError, ValueError) as error:
            fail(f"{name}, {policy}: {error}")
        show(console, f"{name}, {policy}", counts)


def show(console: Console, case: str, counts: Any) -> None:
    console.print(f"{case}: {counts}", soft_wrap=True)
    for line in counts.near_ties:
        console.print(f"  {line}", soft_wrap=True)


def soak_memory(ports: list[str], options: argparse.Namespace, console: Console) -> None:
    """Report the memory of this process while each port serves short requests."""
    from .memory_soak import MemorySoak

    for name in ports:
        try:
            made = MemorySoak(Port("tiny_llm_ref", name, options.device, "bfloat16"), options.seed)
            made.run(options.requests, lambda count, size: console.print(memory_line(name, count, size)))  # noqa: B023
        except ValueError as error:
            fail(f"{name}: {error}")


def memory_line(name: str, count: int, size: int) -> str:
    return f"{name}: {size / 2**20:,.0f} MiB after {count:,} requests"


def soak_servers(ports: list[str], options: argparse.Namespace, console: Console) -> None:
    """Soak a server on each port, once per arrival pattern."""
    from .server_soak import SHAPES, ServerSoak

    for name in ports:
        for shape, burstiness in SHAPES.items():
            try:
                made = ServerSoak(Port("tiny_llm_ref", name, options.device, "float32"), options.seed)
                with console.status(f"{name}, {shape}: {options.clients} clients"):
                    counts = made.run(options.clients, burstiness)
            except (SoakError, ValueError) as error:
                fail(f"{name}, {shape}: {error}")
            show(console, f"{name}, {shape}", counts)


def soak(port: Port, policy: str, seed: int, seconds: float, console: Console) -> SoakCounts:
    """Run one soak, with a spinner and the counts so far."""
    with console.status("") as status:
        made = Soak(port, seed, policy=policy)
        return made.run(seconds, lambda counts: status.update(f"{port.name}, {policy}: {counts}"))


if __name__ == "__main__":
    main()
