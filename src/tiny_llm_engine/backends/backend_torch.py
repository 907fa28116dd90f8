"""PyTorch under the names that both ports share. Few other files beside the folders of a port may import torch.

Twin of `backend_mlx.py`.

On a Gaudi the given `hpu.py` has loaded Intel's plug-in before this module asks for `torch.hpu`.
"""

import gc
import itertools
import os
import platform
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from safetensors import safe_open

# Otherwise torch's profiler, which measures memory for the screens, writes its own notes between their lines.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
# On a CPU oneDNN compiles a bf16 product for each number of rows, and by default it and its wrapper in torch keep 1,024
# of them each: a process grew by half a GiB over 10,000 short requests. 64 are enough for ten numbers of rows in turn.
# Both are read at the first product, so they may be set after torch was imported.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
# Linux gives large pages to large arrays that ask for them. Read at the first allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
import torch

from .samples import seconds_of

Array = torch.Tensor
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PRODUCT_DTYPES = ("bfloat16",)  # whose products on a CPU are chosen by measurement


def devices() -> list[str]:
    """The devices of this machine, best first: hpu, cuda, cpu."""
    hpu = hasattr(torch, "hpu") and torch.hpu.is_available()  # pyright: ignore[reportAttributeAccessIssue] Intel adds it
    return ["hpu"] * hpu + ["cuda"] * torch.cuda.is_available() + ["cpu"]


def pick_device(device: str = "auto") -> str:
    """Choose a device: for `auto` the first of hpu, cuda and cpu that exists; any other must exist.

    Raises:
        ValueError: this machine does not have the device.
    """
    present = devices()
    chosen = present[0] if device == "auto" else device
    if chosen not in present:
        raise ValueError(f"device {device!r}: torch has only {', '.join(present)} here")
    return chosen


def default_dtype(device: str) -> str:
    """bf16 on an accelerator; float32 on a CPU, where the tests compare logits exactly."""
    return "float32" if device == "cpu" else "bfloat16"


def to_array(values: ArrayLike, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
    """NumPy (or a list) to torch on `device`; float64 becomes float32, integers int64."""
    # A copy, whose memory torch takes: for a few numbers that is faster than `torch.tensor`.
    values = np.array(values)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    array = torch.from_numpy(values)
    array = array if dtype is None else array.to(DTYPES[dtype])
    # The device copies it while Python goes on; the copy is in order with what is launched after it.
    return array if device == "cpu" else array.to(device, non_blocking=True)


def to_numpy(array: torch.Tensor) -> np.ndarray:
    """torch to NumPy on the host; bf16 has no NumPy type and comes back as float32."""
    if array.device.type != "cpu" or array.requires_grad:
        array = array.detach().cpu()
    return (array.float() if array.dtype == torch.bfloat16 else array).numpy()


def start_read(array: torch.Tensor) -> Callable[[], np.ndarray]:
    """Begins to copy an array to the host; the result waits for it.

    The copy follows the work that the device has been given so far, and does not wait for what it is given later.
    """
    if array.device.type == "cpu":
        return lambda: to_numpy(array)
    of_device = getattr(torch, array.device.type)
    array = array.float() if array.dtype == torch.bfloat16 else array
    # Pageable memory would make the host wait at once. A Gaudi's torch does not pin.
    pinned = array.device.type == "cuda"
    copy = torch.empty(array.shape, dtype=array.dtype, pin_memory=pinned).copy_(array, non_blocking=True)
    event = of_device.Event()
    event.record()

    def read() -> np.ndarray:
        event.synchronize()
        return copy.numpy()

    return read


def threads_compute(device: str) -> bool:
    """Whether a call computes in the thread that makes it, so that only another thread lets the host go on."""
    return device == "cpu"


def extremes(array: torch.Tensor) -> tuple[float, float]:
    """The smallest and the largest number of an array that is not empty; NaN if one of them is."""
    low, high = torch.aminmax(array)
    return float(low), float(high)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """(B, V) to (B,): the largest of each row. On a CPU by NumPy: a twelfth of the time for 151,936 tokens."""
    if logits.device.type == "cpu" and logits.dtype != torch.bfloat16:  # a type that NumPy lacks
        return torch.from_numpy(np.argmax(logits.numpy(), axis=-1))
    return torch.argmax(logits, dim=-1)


def largest(logits: torch.Tensor) -> torch.Tensor:
    """(R, 1): the largest of each row."""
    return torch.amax(logits, dim=-1, keepdim=True)


def as_float32(array: torch.Tensor) -> torch.Tensor:
    return array if array.dtype == torch.float32 else array.float()


def score_tokens(logits: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Log-probabilities of the tokens that were chosen, and of the most probable ones.

    Args:
        logits: (R, V) float32.
        ids: (R,) of the chosen tokens.
        count: number of the most probable tokens.

    Returns:
        (R, 2 + 2·count) float32: chosen id, its log-probability, the `count` largest log-probabilities in descending
        order, their ids. Ids up to 2²⁴ are exact in float32.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    values, best = torch.topk(logprobs, count, dim=-1)
    ids = ids[:, None]
    parts = ids, torch.gather(logprobs, -1, ids), values, best
    return torch.cat([part.float() for part in parts], dim=-1)


def most_probable(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The most probable tokens of each row.

    Args:
        logits: (R, V) float32.
        count: C, how many.

    Returns:
        ids: (R, C), ascending.
        values: (R, C), their logits.
        share: (R,), the probability of all of them together.
    """
    ids = torch.topk(logits, count, dim=-1, sorted=False).indices.sort(dim=-1).values
    values = torch.gather(logits, -1, ids)
    return ids, values, torch.exp(torch.logsumexp(values, -1) - torch.logsumexp(logits, -1))


def spread(values: torch.Tensor, ids: torch.Tensor, width: int) -> torch.Tensor:
    """(R, width) of -inf, except for `values` at `ids`, both (R, C)."""
    return values.new_full((values.shape[0], width), -torch.inf).scatter(-1, ids, values)


def take(array: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """(R, C): the numbers of each row of `array` (R, V) at its `ids` (R, C)."""
    return torch.gather(array, -1, ids)


def put(array: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A copy of `array` (R, V) with `values` (R, C) at `ids` (R, C); an id that comes twice has equal values."""
    return array.scatter(-1, ids, values)


def where(condition: torch.Tensor, a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    return torch.where(condition, a, b)


def random_normal(shape: tuple[int, ...], scale: float, mean: float, dtype: str, device: str) -> torch.Tensor:
    """Normally distributed numbers with standard deviation `scale` and this mean."""
    return torch.randn(shape, device=device).mul_(scale).add_(mean).to(DTYPES[dtype])


def inference() -> AbstractContextManager:
    """A context for inference, in which torch records nothing for gradients: every operation starts sooner."""
    return torch.inference_mode()


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def product_machine() -> dict[str, Any]:
    """What decides how fast products on the CPU are, beside the processor."""
    return {
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "oneDNN": os.environ.get("ONEDNN_MAX_CPU_ISA"),
    }


def keep_compiled(folder: Path) -> None:
    """Let torch.compile keep its results below `folder`, one folder for each build of torch and kind of processor.

    A home may be shared by machines, and code for one processor can end a process on another.

    Raises:
        OSError: nothing can be written there.
    """
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not have it
    processor = zlib.crc32(repr([platform.machine(), sorted(found.items())]).encode())
    folder = folder / f"inductor-{torch.__version__}-{processor:08x}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def read_bandwidth(device: str, size: int = 2**28) -> float:
    """Bytes per second that a reduction reads from memory: the best of five over `size` numbers of four bytes."""
    numbers = torch.ones(size, device=device)
    return 4 * size / min(seconds_of(lambda: numbers.sum().item(), 5, warmup=0))


def product_speed(device: str, dtype: str, size: int) -> float:
    """Operations per second of the product of two matrices of size · size numbers: the best of three."""
    a, b = (random_normal((size, size), 1.0, 0.0, dtype, device) for _ in "ab")

    def multiply() -> None:
        torch.matmul(a, b)
        synchronize(device)

    return 2 * size**3 / min(seconds_of(multiply, 3))  # the first product, not counted, compiles kernels


def concatenate(arrays: list[torch.Tensor], axis: int) -> torch.Tensor:
    return torch.cat(arrays, dim=axis)


def seed(number: int) -> None:
    torch.manual_seed(number)


def evaluate(array: torch.Tensor) -> None:
    """Do nothing: torch starts to compute before a call returns."""


def materialize(pools: Sequence[Any]) -> None:
    """Launch what a Gaudi's lazy mode has collected; elsewhere torch has computed already.

    Args:
        pools: of all layers.
    """
    if pools and pools[0].keys.device.type == "hpu":
        pools[0].materialize()  # which launches all that was collected


launch = materialize  # nothing here waits


def synchronize(device: str) -> None:
    """Wait until the device has finished.

    A CPU has finished when a call returns, and `meta` computes nothing.
    """
    if device not in ("cpu", "meta"):
        getattr(torch, device).synchronize()


def peak_bytes(run: Callable[[], torch.Tensor], device: str) -> int:
    """Peak bytes of memory that `run()` holds, with its result and without its inputs."""
    if device == "cpu":
        return _peak_bytes_cpu(run)
    statistics = getattr(torch, device)
    before = statistics.memory_allocated()
    statistics.reset_peak_memory_stats()
    run()
    return statistics.max_memory_allocated() - before


def _peak_bytes_cpu(run: Callable[[], torch.Tensor]) -> int:
    """Peak bytes from a profiler, since torch's CPU allocator keeps no count. A release has negative bytes."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        run()
    events: Any = profiler.profiler and profiler.profiler.kineto_results
    calls = [e for e in events.events() if e.name() == "[memory]"]
    sizes = [call.nbytes() for call in sorted(calls, key=lambda call: call.start_ns())]
    return max(itertools.accumulate(sizes), default=0)


def device_memory(device: str) -> tuple[int, int] | None:
    """Free and total bytes of an accelerator; None on a CPU, whose RAM all programs share."""
    return None if device == "cpu" else getattr(torch, device).mem_get_info()


def release_memory(device: str) -> None:
    """Give back what closed engines held on an accelerator; on a CPU Python's collector does it in its own time.

    An engine's parts refer to each other, so its memory goes with a collection, and torch's allocator keeps it then.
    """
    if device == "cpu":
        return
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def like(array: torch.Tensor) -> dict:
    """Keyword arguments that create an array on the device of `array`."""
    return {"device": array.device}


def trace(function: Callable, *arrays: torch.Tensor) -> Any:
    """Run function(*arrays) on the `meta` device: shapes and types are known, and reading a number raises."""
    return function(*(array.to("meta") for array in arrays))


def open_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, as they are stored: views of the mapped file, read when they are touched."""
    with safe_open(file, framework="pt") as tensors:
        stored = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
    # A vector that were part of the mapped file would keep all of it in memory after its matrices are packed.
    return {name: array.clone() if array.ndim < 2 else array for name, array in stored.items()}


def from_stored(numbers: np.ndarray, dtype: str) -> torch.Tensor:
    """Numbers of a file as an array on the CPU, without a copy; "BF16" comes as its bits in 16-bit integers."""
    array = torch.from_numpy(numbers)
    return array.view(torch.bfloat16) if dtype == "BF16" else array


def place(array: torch.Tensor, dtype: str | None, device: str) -> torch.Tensor:
    """The array in type `dtype`, or in its own, on `device`; if nothing changes, it stays in the mapped file."""
    return array.to(device=device, dtype=None if dtype is None else DTYPES[dtype])


def prepare(prepare_weights: Callable, weights: Any, form: str, device: str) -> Any:
    """A solution's quantised matrix, which is on the CPU, in the form of `device`."""
    return prepare_weights(weights, form, device=device)


def dequantize(
    weight: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group_size: int, bits: int, device: str
) -> torch.Tensor:
    """Dequantise U32 words [O, I·bits/32] with scales and biases [O, I/group_size] to float32 [O, I].

    The first number of a word is in its lowest bits. The words are copied to the device, and dequantised there.
    """
    # torch cannot shift unsigned words; the sign bits that a signed shift brings in are masked out.
    words = weight.view(torch.int32).to(device).unsqueeze(-1)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=device)
    numbers = ((words >> shifts) & (2**bits - 1)).view(*scales.shape, group_size)
    scales, biases = (part.to(device=device, dtype=torch.float32).unsqueeze(-1) for part in (scales, biases))
    return (numbers * scales + biases).flatten(-2)
