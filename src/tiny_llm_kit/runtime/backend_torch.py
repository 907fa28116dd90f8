"""PyTorch behind the names that both ports share. Of kit, only this file and a peer of the benchmarks import torch.

Twin of `backend_mlx.py`.

`record` has no twin there: it says what a graph compiler would see, and MLX compiles nothing unless it is asked to.
On a Gaudi the solution's `hpu.py` has loaded Intel's plug-in before this module asks for `torch.hpu`.
"""

import itertools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

# Its profiler, which measures memory for the screens, writes notes of its own between their lines otherwise.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
import torch
from torch.utils._python_dispatch import TorchDispatchMode

Array = torch.Tensor
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def devices() -> list[str]:
    """Best first: hpu, then cuda, then cpu."""
    hpu = hasattr(torch, "hpu") and torch.hpu.is_available()
    return ["hpu"] * hpu + ["cuda"] * torch.cuda.is_available() + ["cpu"]


def pick_device(device: str = "auto") -> str:
    """`auto` is hpu, else cuda, else cpu; anything else must be there."""
    present = devices()
    chosen = present[0] if device == "auto" else device
    if chosen not in present:
        raise ValueError(f"device {device!r}: torch has only {', '.join(present)} here")
    return chosen


def default_dtype(device: str) -> str:
    """bf16 on an accelerator; float32 on a CPU, where the tests compare logits exactly."""
    return "float32" if device == "cpu" else "bfloat16"


def to_array(values, dtype: str | None = None, device: str = "cpu") -> torch.Tensor:
    """NumPy (or a list) to torch on `device`; float64 becomes float32, integers int64."""
    values = np.asarray(values)
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return torch.tensor(values, dtype=None if dtype is None else DTYPES[dtype], device=device)


def to_numpy(array: torch.Tensor) -> np.ndarray:
    """torch to NumPy on the host; bf16 has no NumPy type and comes back as float32."""
    array = array.detach().cpu()
    return (array.float() if array.dtype == torch.bfloat16 else array).numpy()


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """(B, V) to (B,): the largest of each row."""
    return torch.argmax(logits, dim=-1)


def as_float32(array: torch.Tensor) -> torch.Tensor:
    return array.float()


def score_tokens(logits: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Log-probabilities of the tokens that were chosen, and of the most probable ones.

    Args:
        logits: (R, V) float32.
        ids: (R,) of the chosen tokens.
        count: how many of the most probable.

    Returns:
        (R, 2 + 2·count) float32: chosen id, its log-probability, the `count` largest log-probabilities in descending
        order, their ids. Ids up to 2²⁴ are exact in float32.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    values, best = torch.topk(logprobs, count, dim=-1)
    ids = ids[:, None]
    parts = ids, torch.gather(logprobs, -1, ids), values, best
    return torch.cat([part.float() for part in parts], dim=-1)


def where(condition: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.where(condition, a, b)


def random_normal(shape: tuple[int, ...], scale: float, mean: float, dtype: str, device: str) -> torch.Tensor:
    """Normal numbers with this deviation and mean."""
    return torch.randn(shape, device=device).mul_(scale).add_(mean).to(DTYPES[dtype])


def inference():
    """A context in which torch notes nothing for gradients: every operation starts sooner."""
    return torch.inference_mode()


def set_threads(count: int) -> None:
    torch.set_num_threads(count)


def read_bandwidth(device: str, size: int = 2**28) -> float:
    """Bytes a second that a reduction reads from memory: the best of five over `size` numbers of four bytes."""
    numbers = torch.ones(size, device=device)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        numbers.sum().item()
        seconds.append(time.perf_counter() - start)
    return 4 * size / min(seconds)


def product_speed(device: str, dtype: str, size: int) -> float:
    """Operations a second of the product of two matrices of size · size numbers: the best of three."""
    a, b = (random_normal((size, size), 1.0, 0.0, dtype, device) for _ in "ab")
    seconds = []
    for _ in range(4):  # the first one makes kernels
        synchronize(device)
        start = time.perf_counter()
        a @ b
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds[1:])


def concatenate(arrays: list[torch.Tensor], axis: int) -> torch.Tensor:
    return torch.cat(arrays, dim=axis)


def seed(number: int) -> None:
    torch.manual_seed(number)


def evaluate(array: torch.Tensor) -> None:
    """Nothing to do: torch has begun to compute when a call returns."""


def synchronize(device: str) -> None:
    """Waits until the device has done what it was asked for. A CPU has when a call returns, and `meta` never begins."""
    if device not in ("cpu", "meta"):
        getattr(torch, device).synchronize()


def peak_bytes(run: Callable[[], torch.Tensor], device: str) -> int:
    """The most memory that `run()` held at once, its result included; its inputs are there before."""
    if device == "cpu":
        return _peak_bytes_cpu(run)
    statistics = getattr(torch, device)
    before = statistics.memory_allocated()
    statistics.reset_peak_memory_stats()
    run()
    return statistics.max_memory_allocated() - before


def _peak_bytes_cpu(run: Callable[[], torch.Tensor]) -> int:
    """The CPU's allocator counts nothing, but a profiler sees each of its calls, with negative bytes for a release."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        run()
    calls = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [call.nbytes() for call in sorted(calls, key=lambda call: call.start_ns())]
    return max(itertools.accumulate(sizes), default=0)


def device_memory(device: str) -> tuple[int, int] | None:
    """Free and total bytes of an accelerator; None on a CPU, whose RAM everybody shares."""
    return None if device == "cpu" else getattr(torch, device).mem_get_info()


def like(array: torch.Tensor) -> dict:
    """The options that make a new array where `array` is."""
    return {"device": array.device}


def trace(function: Callable, *arrays: torch.Tensor):
    """function(*arrays) without numbers: shapes, types and the device are known, and reading a number raises."""
    return function(*(array.to("meta") for array in arrays))


def open_safetensors(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file by name, as they are stored: views of the mapped file, read when they are touched."""
    with safe_open(file, framework="pt") as tensors:
        return {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)


def place(array: torch.Tensor, dtype: str | None, device: str) -> torch.Tensor:
    """The array in its final type on `device`, or in its own; on a CPU one that has it stays in the mapped file."""
    return array.to(device=device, dtype=None if dtype is None else DTYPES[dtype])


def prepare(prepare_weights: Callable, weights, form: str, device: str):
    """A solution's quantised matrix in the form of `device`; until here it is on the CPU."""
    return prepare_weights(weights, form, device=device)


def dequantize(
    weight: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group_size: int, bits: int, device: str
) -> torch.Tensor:
    """Dequantises U32 words [O, I·bits/32] with scales and biases [O, I/group_size] to float32 [O, I].

    The first number of a word is in its lowest bits. It is the words that travel to the device.
    """
    # torch shifts no unsigned words; the sign that a signed shift brings in is masked away.
    words = weight.view(torch.int32).to(device).unsqueeze(-1)
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=device)
    numbers = ((words >> shifts) & (2**bits - 1)).view(*scales.shape, group_size)
    scales, biases = (part.to(device=device, dtype=torch.float32).unsqueeze(-1) for part in (scales, biases))
    return (numbers * scales + biases).flatten(-2)


@dataclass(frozen=True)
class Recording:
    """What a run asked torch for.

    Args:
        signature: each operation in order, with the shapes, strides and types of its arrays and with the numbers that
            Python put into it. A compiler for fixed shapes makes one graph for each signature.
        host_reads: the operations that brought a number back to Python; each makes the host wait for the device.
            `.cpu()` and `.tolist()` are not among them; on the `meta` device they raise.
    """

    signature: tuple
    host_reads: tuple[str, ...]


# What .item(), int(t), bool(t) and `if t:` end in.
HOST_READS = {"aten::_local_scalar_dense", "aten::item", "aten::is_nonzero"}


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.calls.append((operation.name(), _described(args), _described(kwargs or {})))
        return operation(*args, **(kwargs or {}))


def _described(part):
    """An argument of an operation as a compiler sees it: of arrays the form, of everything else the value."""
    if isinstance(part, torch.Tensor):
        return ("array", tuple(part.shape), part.stride(), str(part.dtype))
    if isinstance(part, list | tuple):
        return tuple(map(_described, part))
    if isinstance(part, dict):
        return tuple((name, _described(value)) for name, value in sorted(part.items()))
    return repr(part)  # 1, 1.0 and True are three different things


def record(run: Callable[[], object]) -> Recording:
    """Runs `run()` and writes down every operation of torch in it."""
    with _Recorder() as recorder:
        run()
    operations = (name for name, *_ in recorder.calls)
    reads = tuple(name for name in operations if name.split(".")[0] in HOST_READS)
    return Recording(tuple(recorder.calls), reads)
