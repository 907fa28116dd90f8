"""Which products with plain matrices an engine uses on a CPU: measured once on each machine, and kept in a file.

The file is in the user's cache folder. It holds the seconds, and names the processor, the library and the threads with
which they were measured: with others, or when it cannot be read, they are measured again. So are those of a machine
that was busy and is quiet now.
"""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.machine.ram import load_per_core, processor_name
from tiny_llm_engine.machine.user_cache import user_cache
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Network

from ..given import given_of
from ..kernels.product_ways import NATIVE, OF_ATTENTION, OF_MLP

MEASURED, USUAL = "measured", "usual"
VARIABLE = "TINY_LLM_PRODUCTS"  # one of these two, where nothing else is asked for
VERSION = 2  # of the file
BUSY, QUIET = 0.75, 0.25  # load for each core
ROUNDS = 3
SHAPE = (3072, 1024)  # of each matrix
# Bytes of weights of a measured pass, by rows: more than caches hold. Many rows wait for arithmetic, not for memory.
BYTES = {1: 2**27, 4: 2**26, 16: 2**26, 128: 2**24}
# The load for which a layout is chosen: how many products of 1 row, of 4, and so on. Each kind takes a similar time.
MIX = {1: 16, 4: 8, 16: 4, 128: 1}
# What a layer takes besides its products where the step is not one native call: 1.2 and 1.6 ms on a Xeon with two
# threads, layers of 7 and 0.9 MB. Less is counted, so that only small layers are decided by it.
LAYER_SECONDS = 0.0005

Seconds = Mapping[str, Mapping[int, float]]  # by the name of a way and its rows, per byte of weights


def choose_products(port: Port, network: Network, wanted: str | None = None, compiles: bool = False) -> str:
    """Put the fastest products on a network on a CPU, and pack its weights if a packed layout is faster.

    Args:
        wanted: "measured"; "usual" is what the port takes without a measurement; None reads TINY_LLM_PRODUCTS, and is
            "measured".
        compiles: whether the network is compiled afterwards, which puts the usual products on it.

    Returns:
        What was chosen, in words; nothing where there is no choice.

    Raises:
        ValueError: the variable is something else.
    """
    wanted = wanted or wanted_here()
    ways = given_of(port).product_ways() if has_choice(port) else {}
    if not ways or wanted == USUAL:
        if not compiles and port.device == "cpu":
            given_of(port).use_products(network, "plain")
        return ""
    layouts = {name: way.layout for name, way in ways.items()}
    layout, plain = choice_of(measured_seconds(port), layouts, bytes_of_layer(network.layers[0]))
    given_of(port).use_products(network, layout, plain)
    return in_words(layout, plain)


def wanted_here() -> str:
    """What TINY_LLM_PRODUCTS asks for: "measured", unless it is "usual". Raises ValueError if it is something else."""
    wanted = os.environ.get(VARIABLE) or MEASURED
    if wanted not in (MEASURED, USUAL):
        raise ValueError(f'{VARIABLE} is {wanted!r}: give "measured" or "usual"')
    return wanted


def has_choice(port: Port) -> bool:
    """Whether matrices of this type may have several products on this device."""
    return port.device == "cpu" and port.float_dtype in port.backend_module.PRODUCT_DTYPES


def report(port: Port) -> str:
    """The chosen products of the port's type in one line, with the speed at which each way reads weights."""
    layouts = {name: way.layout for name, way in given_of(port).product_ways().items()}
    if not layouts:
        return "nothing to choose"
    seconds = measured_seconds(port)
    return f"{in_words(*choice_of(seconds, layouts))}; {speeds_in_words(seconds)}"


def speeds_in_words(seconds: Seconds) -> str:
    """How fast each way reads weights."""
    speeds = [
        f"{name} {', '.join(f'{1e-9 / each[rows]:.3g}' for rows in sorted(each))}"
        for name, each in seconds.items()
    ]
    rows = ", ".join(map(str, MIX))
    return f"GB/s of weights at {rows} rows: {'; '.join(speeds)}"


def in_words(layout: str, plain: tuple[str, ...]) -> str:
    """A choice in a few words."""
    return "plain weights by " + ", ".join(plain) if layout == "plain" else f"{layout} weights"


def bytes_of_layer(layer: Any) -> int:
    """Bytes of the matrices that every token is multiplied by."""
    owned = [(layer, name) for name in OF_ATTENTION] + [(layer.mlp, name) for name in OF_MLP]
    return sum(getattr(owner, name).nbytes for owner, name in owned if hasattr(owner, name))


def choice_of(
    seconds: Seconds, layouts: Mapping[str, str], layer_bytes: float = math.inf
) -> tuple[str, tuple[str, ...]]:
    """The layout that computes `MIX` soonest, and for each number of rows the fastest way of the plain layout.

    Args:
        seconds: of each way; a way that cannot compute this many rows has no entry for them.
        layer_bytes: of the weights of a layer. The fewer, the more it counts that native weights are for the kernel
            that computes whole steps.
    """

    def fastest(layout: str, rows: int) -> str:
        names = [name for name in seconds if layouts[name] == layout and rows in seconds[name]]
        return min(names, key=lambda name: seconds[name][rows])

    def cost(layout: str) -> float:
        rest = 0 if layout == NATIVE else LAYER_SECONDS / layer_bytes
        return sum(share * (seconds[fastest(layout, rows)][rows] + rest) for rows, share in MIX.items())

    best = min(dict.fromkeys(layouts.values()), key=cost)
    return best, tuple(fastest("plain", rows) for rows in MIX)


def measured_seconds(port: Port) -> Seconds:
    """The seconds of each way, from the file or measured now."""
    return kept_seconds(
        port, {"dtype": port.float_dtype}, set(given_of(port).product_ways()), lambda: measure(port)
    )


def kept_seconds(
    port: Port, what: Mapping[str, Any], names: set[str], measure: Callable[[], Seconds]
) -> Seconds:
    """Seconds from the file of this machine, or measured now and kept.

    Args:
        what: further things that decide how long it takes.
        names: the ways to measure, by their names.
    """
    library = port.backend_module.product_machine()
    machine = {"version": VERSION, "processor": processor_name(), **library, **what}
    try:
        path = user_cache() / f"products-{zlib.crc32(json.dumps(machine).encode()):08x}.json"
    except OSError:  # no home: each engine measures
        return measure()
    kept = read_file(path, machine, names)
    if kept is None:
        load = load_per_core()
        kept = measure()
        write_file(path, machine, kept, load)
    return kept


def read_file(path: Path, machine: Mapping[str, Any], names: set[str]) -> Seconds | None:
    """What was measured on this machine; None if the file is absent, broken or from another machine.

    Also None if other programs were using the cores then, and are not now.
    """
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        seconds = {
            name: {int(rows): float(one) for rows, one in each.items()}
            for name, each in stored["seconds"].items()
        }
        is_stale = stored["load"] > BUSY and load_per_core() < QUIET
        whole = stored["machine"] == machine and set(seconds) == names and not is_stale
        return seconds if whole and all(min(each.values()) > 0 for each in seconds.values()) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_file(path: Path, machine: Mapping[str, Any], seconds: Seconds, load: float) -> None:
    """Keep what was measured. Written under another name first: two engines may start at once."""
    part = path.with_name(f"{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({"machine": machine, "seconds": seconds, "load": load}), encoding="utf-8")
        part.replace(path)
    except OSError:  # a cache that cannot be written: each engine measures
        with suppress(OSError):
            part.unlink()


def measure(port: Port) -> Seconds:
    """Time every way at each number of rows, in turns: medians, in seconds per byte of weights."""
    weights = matrix(port, SHAPE)
    return measure_ways(
        port, given_of(port).product_ways(), lambda: copy_of(port, weights), weights.nbytes, BYTES
    )


def measure_ways(
    port: Port, ways: Mapping[str, Any], copy: Callable[[], Any], one_size: int, sizes: Mapping[int, int]
) -> Seconds:
    """Time ways on copies of a matrix of `SHAPE`.

    Args:
        copy: makes another copy, for a way to prepare.
        one_size: bytes of weights of one.
        sizes: bytes of weights of a measured pass, by rows.
    """
    prepared: dict[str, list[Any]] = {}
    for way in ways.values():
        if way.layout not in prepared:
            copies = range(max(sizes.values()) // one_size)
            prepared[way.layout] = [way.prepare(copy()) for _ in copies]
    seconds: dict[str, dict[int, float]] = {name: {} for name in ways}
    for rows, size in sizes.items():
        x, count = matrix(port, (rows, SHAPE[1])), max(1, size // one_size)
        calls = {
            name: partial(multiply_all, port, way.multiply, x, prepared[way.layout][:count])
            for name, way in ways.items()
            if way.most_rows is None or rows <= way.most_rows
        }
        # The first round, which is not counted, starts threads; these share the cores only after a while.
        for name, taken in medians(calls, ROUNDS).items():
            seconds[name][rows] = taken / (count * one_size)
    return seconds


def matrix(port: Port, shape: tuple[int, int]) -> Any:
    """Random numbers in the port's type."""
    return port.backend_module.random_normal(shape, 1.0, 0.0, port.float_dtype, port.device)


def copy_of(port: Port, array: Any) -> Any:
    """The same numbers in other memory."""
    copy = array * 1
    port.backend_module.evaluate(copy)
    return copy


def multiply_all(port: Port, multiply: Any, x: Any, matrices: list[Any]) -> None:
    """The products of x with each matrix, computed."""
    for w in matrices:
        port.backend_module.evaluate(multiply(x, w, None))
