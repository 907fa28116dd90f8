"""Whether an engine rounds activations for products with quantised matrices on a CPU: measured once on each machine.

The kernel of Day 4.1 multiplies them by 4 or 8 bits as integers; the usual way is that of Day 2.3. What is measured is
kept as that of `product_choice` is.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

from ..port import Port
from .product_choice import (
    SHAPE,
    USUAL,
    Seconds,
    choice_of,
    copy_of,
    kept_seconds,
    matrix,
    measure_ways,
    speeds_in_words,
    wanted_here,
)

INT8, FLOAT = "int8", "float"
NATIVE = "native"  # the way that rounds them
GROUP_SIZE = 64
# Bytes of weights of a measured pass, by rows. Where there is no kernel for 8 bits, tiles take a hundred times as long.
BYTES = {1: 2**26, 4: 2**24, 16: 2**23, 128: 2**21}


def activation_choice(port: Port, wanted: str | None) -> Callable[[int], bool]:
    """Whether activations are rounded for matrices of this many bits.

    Args:
        port: of the network.
        wanted: "int8", "float", or None for what is faster on this machine: measured when it is first asked for.

    Raises:
        ValueError: "int8", and the kernel does not run here. The answer raises it if TINY_LLM_PRODUCTS is unknown.
    """
    if wanted == INT8 and (problem := kernel_problem(port)):
        raise ValueError(f'activations is "int8", and {problem}; leave activations out to do without')
    return partial(rounds_activations, port, wanted)


def rounds_activations(port: Port, wanted: str | None, bits: int) -> bool:
    """The answer of `activation_choice`."""
    if wanted is not None:
        return wanted == INT8
    if wanted_here() == USUAL or kernel_problem(port):
        return False
    return choice_of(measured_seconds(port, bits), layouts(port))[0] == NATIVE


def kernel_problem(port: Port) -> str | None:
    """Why the kernel cannot multiply for a port, or None."""
    if port.device != "cpu":
        return f"the kernel is for a CPU, not for {port.device}"
    if port.float_dtype not in ("float32", "bfloat16"):
        return f"the kernel has no {port.float_dtype}: choose bfloat16 or float32"
    solution = port.solution.__name__.partition(".")[0]
    if problem := import_module(f"{solution}.native.quantized_product").problem():
        return f"the kernel does not run here: {problem}"
    return None if NATIVE in port.quantized_ways() else f"the port {port.name} does not use the kernel"


def layouts(port: Port) -> dict[str, str]:
    """The layout of each way."""
    return {name: way.layout for name, way in port.quantized_ways().items()}


def report(port: Port, bits: int) -> str:
    """The chosen activations in one line, with the speed at which each way reads weights."""
    if problem := kernel_problem(port):
        return f"{bits} bits: float activations ({problem})"
    chosen = INT8 if rounds_activations(port, None, bits) else FLOAT
    return f"{bits} bits: {chosen} activations; {speeds_in_words(measured_seconds(port, bits))}"


def measured_seconds(port: Port, bits: int) -> Seconds:
    """The seconds of each way per byte of weights, from the file or measured now."""
    what = {"bits": bits, "dtype": port.float_dtype}
    return kept_seconds(port, what, set(port.quantized_ways()), lambda: measure(port, bits))


def measure(port: Port, bits: int) -> Seconds:
    """Time both ways at each number of rows, as `product_choice.measure` does."""
    one = port.quantize_matrix(matrix(port, SHAPE), GROUP_SIZE, bits)

    def copy() -> Any:
        names = "weight", "scales", "biases"
        return replace(one, **{name: copy_of(port, getattr(one, name)) for name in names})

    return measure_ways(port, port.quantized_ways(), copy, SHAPE[0] * SHAPE[1] * bits // 8, BYTES)
