"""What an engine rounds activations to, for products with quantised matrices on a CPU: measured once on each machine.

The kernel of Day 4.1 multiplies them by 4 or 8 bits as integers; the usual way is that of Day 2.3. What is measured is
kept as that of `product_choice` is.
"""

from dataclasses import dataclass, replace
from typing import Any

from tiny_llm_engine.solutions.port import Port

from ..given import given_of
from ..kernels.native.kernel import available_threads
from ..kernels.native.peak_products import peak_products
from .product_choice import (
    MIX,
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

FLOAT, ROUNDED = "float", ("int8", "int16")  # the last two name the ways that round them
# Of the ways, those that may be a default. int8 changes probabilities too much: the mean |Δ log p| of SmolLM2's five
# most probable tokens is above 0.05.
DEFAULTS = ("usual", "int16")
GROUP_SIZE = 64
# Bytes of weights of a measured pass, by rows. Where there is no kernel for 8 bits, tiles take a hundred times as long.
BYTES = {1: 2**26, 4: 2**24, 16: 2**23, 128: 2**21}


@dataclass(frozen=True)
class ActivationChoice:
    """`RoundedProducts` by the kernel of Day 4.1.

    Args:
        wanted: see `activation_choice`.
    """

    port: Port
    wanted: str | None

    def rounds(self, bits: int) -> str:
        """ "int8", "int16" or, if activations are not rounded, ""."""
        return rounds_activations(self.port, self.wanted, bits)

    def prepare(self, weights: Any) -> Any:
        """The matrix for the kernel."""
        return given_of(self.port).quantized_ways()[self.rounds(weights.bits)].prepare(weights)


def activation_choice(port: Port, wanted: str | None) -> ActivationChoice:
    """What activations are rounded to for products with quantised weights.

    Args:
        wanted: "int8", "int16", "float", or None for the faster one of the last two on this machine: measured when it
            is first asked for.

    Raises:
        ValueError: they are to be rounded, and the kernel does not run here. `rounds` raises it if TINY_LLM_PRODUCTS is
            unknown.
    """
    if wanted in ROUNDED and (problem := kernel_problem(port)):
        raise ValueError(f'activations is "{wanted}", and {problem}; leave activations out to do without')
    return ActivationChoice(port, wanted)


def rounds_activations(port: Port, wanted: str | None, bits: int) -> str:
    """See `ActivationChoice.rounds`."""
    if wanted is not None:
        return "" if wanted == FLOAT else wanted
    if wanted_here() == USUAL or kernel_problem(port):
        return ""
    seconds = {name: each for name, each in measured_seconds(port, bits).items() if name in DEFAULTS}
    chosen, _ = choice_of(seconds, layouts(port))
    return chosen if chosen in ROUNDED else ""


def kernel_problem(port: Port) -> str | None:
    """Why the kernel cannot multiply for a port, or None."""
    if port.device != "cpu":
        return f"the kernel is for a CPU, not for {port.device}"
    if port.float_dtype not in ("float32", "bfloat16"):
        return f"the kernel has no {port.float_dtype}: choose bfloat16 or float32"
    if problem := given_of(port).kernels.quantized_product.problem:
        return f"the kernel does not run here: {problem}"
    return (
        None
        if ROUNDED[0] in given_of(port).quantized_ways()
        else f"the port {port.name} does not use the kernel"
    )


def layouts(port: Port) -> dict[str, str]:
    """The layout of each way that may be a default."""
    return {name: way.layout for name, way in given_of(port).quantized_ways().items() if name in DEFAULTS}


def report(port: Port, bits: int) -> str:
    """The chosen activations in one line, with the speed at which each way reads weights."""
    if problem := kernel_problem(port):
        return f"{bits} bits: float activations ({problem})"
    chosen = rounds_activations(port, None, bits) or FLOAT
    seconds = measured_seconds(port, bits)
    peak = peak_products(available_threads())
    return f"{bits} bits: {chosen} activations; {speeds_in_words(seconds)}; {arithmetic_in_words(seconds, bits, peak)}"


def arithmetic_in_words(seconds: Seconds, bits: int, peak: float) -> str:
    """How fast each way computes many rows.

    Args:
        peak: operations per second of int16's instructions, on numbers in registers.
    """
    rows = max(MIX)
    operations = 2 * rows * 8 / bits  # for each byte of weights
    speeds = ", ".join(f"{name} {1e-9 * operations / each[rows]:,.0f}" for name, each in seconds.items())
    return f"GOP/s at {rows} rows: {speeds}; registers give int16 {1e-9 * peak:,.0f}"


def measured_seconds(port: Port, bits: int) -> Seconds:
    """The seconds of each way per byte of weights, from the file or measured now."""
    what = {"bits": bits, "dtype": port.float_dtype}
    return kept_seconds(port, what, set(given_of(port).quantized_ways()), lambda: measure(port, bits))


def measure(port: Port, bits: int) -> Seconds:
    """Time all ways at each number of rows, as `product_choice.measure` does."""
    plain_copy = port.quantize_matrix(matrix(port, SHAPE), GROUP_SIZE, bits)

    def copy() -> Any:
        names = "weight", "scales", "biases"
        return replace(plain_copy, **{name: copy_of(port, getattr(plain_copy, name)) for name in names})

    return measure_ways(port, given_of(port).quantized_ways(), copy, SHAPE[0] * SHAPE[1] * bits // 8, BYTES)
