"""MLX under the names that both ports share. Outside folders of a port only this and a baseline import mlx.

Twin of `backend_torch.py`.
"""

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from ..machine import blas
from .samples import seconds_of

blas.preload()  # before mlx: on Linux its wheel would otherwise bind the slow reference BLAS

import mlx.core as mx  # noqa: E402

Array = mx.array
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
PRODUCT_DTYPES = ("bfloat16", "float32")  # whose products on a CPU are chosen by measurement


def devices() -> list[str]:
    """The devices of this machine, best first: the GPU where Metal exists, then the CPU."""
    return ["gpu"] * mx.metal.is_available() + ["cpu"]


def pick_device(device: str = "auto") -> str:
    """Choose MLX's default device: for `auto` the GPU where Metal exists, else the CPU.

    Raises:
        ValueError: this machine does not have the device.
    """
    present = devices()
    chosen = present[0] if device == "auto" else device
    if chosen not in present:
        raise ValueError(f"device {device!r}: MLX has only {', '.join(present)} here")
    mx.set_default_device(mx.gpu if chosen == "gpu" else mx.cpu)
    return chosen


def default_dtype(device: str) -> str:
    """bf16 on a GPU; float32 on a CPU, where MLX multiplies bf16 ten times slower."""
    return "bfloat16" if device == "gpu" else "float32"


def to_array(values: ArrayLike, dtype: str | None = None, device: str = "cpu") -> mx.array:
    """NumPy (or a list) to MLX; float64 becomes float32, integers int32. MLX's devices share their memory."""
    values = np.asarray(values)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    if values.dtype == np.int64:
        values = values.astype(np.int32)
    array = mx.array(values)
    return array if dtype is None else array.astype(DTYPES[dtype])


def to_numpy(array: mx.array) -> np.ndarray:
    """MLX to NumPy, evaluated; bf16 has no NumPy type and comes back as float32."""
    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


def start_read(array: mx.array) -> Callable[[], np.ndarray]:
    """Begins to compute an array; the result waits for it."""
    mx.async_eval(array)
    return lambda: to_numpy(array)


def threads_compute(device: str) -> bool:
    """Whether a call computes in the thread that makes it: MLX has threads of its own, also for a CPU."""
    return False


def extremes(array: mx.array) -> tuple[float, float]:
    """The smallest and the largest number of an array that is not empty; NaN if one of them is."""
    return float(mx.min(array)), float(mx.max(array))


def argmax(logits: mx.array) -> mx.array:
    """(B, V) to (B,): the largest of each row."""
    return mx.argmax(logits, axis=-1)


def largest(logits: mx.array) -> mx.array:
    """(R, 1): the largest of each row."""
    return mx.max(logits, axis=-1, keepdims=True)


def as_float32(array: mx.array) -> mx.array:
    return array.astype(mx.float32)


def score_tokens(logits: mx.array, ids: mx.array, count: int) -> mx.array:
    """Log-probabilities of the tokens that were chosen, and of the most probable ones.

    Args:
        logits: (R, V) float32.
        ids: (R,) of the chosen tokens.
        count: number of the most probable tokens.

    Returns:
        (R, 2 + 2·count) float32: chosen id, its log-probability, the `count` largest log-probabilities in descending
        order, their ids. Ids up to 2²⁴ are exact in float32.
    """
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    ids = ids[:, None]
    best = mx.argsort(-logprobs, axis=-1)[:, :count]
    parts = ids, mx.take_along_axis(logprobs, ids, -1), mx.take_along_axis(logprobs, best, -1), best
    return mx.concatenate([part.astype(mx.float32) for part in parts], axis=-1)


def most_probable(logits: mx.array, count: int) -> tuple[mx.array, mx.array, mx.array]:
    """The most probable tokens of each row.

    Args:
        logits: (R, V) float32.
        count: C, how many.

    Returns:
        ids: (R, C), ascending.
        values: (R, C), their logits.
        share: (R,), the probability of all of them together.
    """
    ids = mx.sort(mx.argpartition(-logits, count - 1, axis=-1)[:, :count], axis=-1)
    values = mx.take_along_axis(logits, ids, axis=-1)
    return ids, values, mx.exp(mx.logsumexp(values, axis=-1) - mx.logsumexp(logits, axis=-1))


def spread(values: mx.array, ids: mx.array, width: int) -> mx.array:
    """(R, width) of -inf, except for `values` at `ids`, both (R, C)."""
    empty = mx.full((values.shape[0], width), -mx.inf, values.dtype)
    return mx.put_along_axis(empty, ids, values, axis=-1)


def take(array: mx.array, ids: mx.array) -> mx.array:
    """(R, C): the numbers of each row of `array` (R, V) at its `ids` (R, C)."""
    return mx.take_along_axis(array, ids, axis=-1)


def put(array: mx.array, ids: mx.array, values: mx.array) -> mx.array:
    """A copy of `array` (R, V) with `values` (R, C) at `ids` (R, C); an id that comes twice has equal values."""
    return mx.put_along_axis(array, ids, values, axis=-1)


def where(condition: mx.array, a: mx.array | float, b: mx.array | float) -> mx.array:
    return mx.where(condition, a, b)


def random_normal(shape: tuple[int, ...], scale: float, mean: float, dtype: str, device: str) -> mx.array:
    """Normally distributed numbers with standard deviation `scale` and this mean."""
    numbers = (mx.random.normal(shape) * scale + mean).astype(DTYPES[dtype])
    mx.eval(numbers)
    return numbers


def inference() -> AbstractContextManager:
    """A context for inference. MLX records nothing for gradients unless it is asked to."""
    return nullcontext()


def product_machine() -> dict[str, Any]:
    """What decides how fast products on the CPU are, beside the processor."""
    return {"mlx": version("mlx"), "threads": blas.num_threads(), "blas": os.environ.get(blas.SWITCH)}


def set_threads(count: int) -> None:
    """Set the threads of the BLAS that MLX calls; the rest of its CPU backend runs on one thread."""
    blas.set_threads(count)


def keep_compiled(folder: Path) -> None:
    """Do nothing: MLX keeps its compiled kernels itself, on a CPU in the folder for temporary files."""


def read_bandwidth(device: str, size: int = 2**28) -> float:
    """Bytes per second that a reduction reads from memory: the best of five over `size` numbers of four bytes.

    On a CPU, NumPy reads, in a thread for each core: MLX's sum is several times slower there than the memory.
    """
    if device == "cpu":
        cores = os.cpu_count() or 1
        parts = np.array_split(np.ones(size, np.float32), cores)
        with ThreadPoolExecutor(cores) as threads:
            seconds = seconds_of(lambda: [*threads.map(lambda part: part @ part, parts)], 5, warmup=0)
        return 4 * size / min(seconds)
    numbers = mx.ones((size,))
    mx.eval(numbers)
    return 4 * size / min(seconds_of(lambda: mx.sum(numbers).item(), 5, warmup=0))


def product_speed(device: str, dtype: str, size: int) -> float:
    """Operations per second of the product of two matrices of size · size numbers: the best of three."""
    a, b = (random_normal((size, size), 1.0, 0.0, dtype, device) for _ in "ab")
    # The first product, not counted, compiles kernels.
    return 2 * size**3 / min(seconds_of(lambda: mx.eval(a @ b), 3))


def concatenate(arrays: list[mx.array], axis: int) -> mx.array:
    return mx.concatenate(arrays, axis=axis)


def seed(number: int) -> None:
    mx.random.seed(number)


def evaluate(array: mx.array) -> None:
    """Compute the array, which may still be lazy."""
    mx.eval(array)


def materialize(pools: Sequence[Any]) -> None:
    """Compute what is still lazy in the pools of all layers."""
    # Those whose addresses are known were computed when a kernel asked for them.
    mx.eval([pool.arrays for pool in pools if not pool.known_addresses])


def launch(pools: Sequence[Any]) -> None:
    """Begin to compute what is still lazy in the pools of all layers, and do not wait."""
    mx.async_eval([pool.arrays for pool in pools])


def synchronize(device: str) -> None:
    mx.synchronize()


def peak_bytes(run: Callable[[], mx.array], device: str) -> int:
    """Peak bytes of memory that `run()` holds, with its result and without its inputs."""
    mx.eval(run())  # inputs that were still lazy are counted here
    # On a busy machine arrays may be freed late: a run may show more memory than it needs, but never less.
    return min(_peak_bytes_once(run) for _ in range(3))


def _peak_bytes_once(run: Callable[[], mx.array]) -> int:
    mx.synchronize()
    mx.clear_cache()  # MLX would reuse a freed buffer of up to twice the size, and count it whole
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(run())
    return mx.get_peak_memory() - before


def device_memory(device: str) -> tuple[int, int] | None:
    """Free and total bytes that Metal recommends to use; None on a CPU, whose RAM all programs share."""
    if device == "cpu":
        return None
    total = int(mx.device_info()["max_recommended_working_set_size"])
    return total - mx.get_active_memory(), total


def release_memory(device: str) -> None:
    """Give back what closed engines held on an accelerator; on a CPU Python's collector does it in its own time.

    An engine's parts refer to each other, so its memory goes with a collection, and MLX keeps it then in its cache.
    """
    if device == "cpu":
        return
    gc.collect()
    mx.clear_cache()


def like(array: mx.array) -> dict:
    """Keyword arguments that create an array on the device of `array`: none, since MLX's devices share their memory."""
    return {}


def trace(function: Callable, *arrays: mx.array) -> Any:
    """Run function(*arrays) as a compiler does: shapes and types are known, and reading a number raises."""
    return mx.compile(function)(*arrays)


def open_safetensors(file: Path) -> dict[str, mx.array]:
    """The tensors of a file by name, as they are stored; nothing is read before a tensor is evaluated.

    `mx.load` reads each tensor directly into MLX's memory, which its devices share. safetensors'
    `safe_open(framework="mlx")` goes through NumPy, and held the file in memory twice.
    """
    return cast(dict[str, mx.array], mx.load(str(file)))


def from_stored(numbers: np.ndarray, dtype: str) -> mx.array:
    """Numbers of a file as an array; "BF16" comes as its bits in 16-bit integers."""
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if dtype == "BF16" else array


def place(array: mx.array, dtype: str | None, device: str) -> mx.array:
    """The array in type `dtype`, or in its own, evaluated now so that the stored one is freed before the next."""
    array = array if dtype is None else array.astype(DTYPES[dtype])
    mx.eval(array)
    return array


def prepare(prepare_weights: Callable, weights: Any, form: str, device: str) -> Any:
    """A solution's quantised matrix in the device's form, evaluated now as in `place`."""
    weights = prepare_weights(weights, form)
    mx.eval(weights.weight, weights.scales, weights.biases)
    return weights


def dequantize(
    weight: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int, device: str
) -> mx.array:
    """Dequantise U32 words [O, I·bits/32] with scales and biases [O, I/group_size] to float32 [O, I]."""
    scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    return mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits)
