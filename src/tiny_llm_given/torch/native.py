"""The kernels of Day 4.1 with torch's arrays on a CPU."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from tiny_llm_common.layer_weights import ModelShape
from tiny_llm_common.packed_model import PastReads

from ..native.attention import DecodeKernel, KeptArray, fits
from ..native.kernel import LINE, NativeArray, ProductKernel, pack
from .quantized_pages import QuantizedPages

TYPES = torch.bfloat16, torch.float32, torch.int64, torch.int8, torch.uint8
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in TYPES}


def native_array(array: torch.Tensor) -> NativeArray:
    """An array of torch as a kernel sees it; its numbers follow each other in memory."""
    return NativeArray(array.data_ptr(), tuple(array.shape), NAMES[array.dtype], array)


def kept_array(pages: torch.Tensor | QuantizedPages) -> KeptArray:
    """Pages (num_blocks + 1, page_size, Hkv, D) as a kernel sees their slots."""
    parts = pages.arrays if isinstance(pages, QuantizedPages) else (pages,)
    return KeptArray(*(native_array(part.flatten(0, 1)) for part in parts))


@dataclass(frozen=True, eq=False)
class NativeMatrix:
    """A matrix (O, I) in bf16 or float32, packed in lines.

    Args:
        lines: (O / 16, I / C, 16, C), see `kernel.pack`.
        shape: (O, I).
        kernel: of the solution in use.
    """

    lines: torch.Tensor
    shape: tuple[int, int]
    kernel: ProductKernel

    @classmethod
    def of(cls, w: torch.Tensor, kernel: ProductKernel) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.contiguous().view(torch.uint16) if w.dtype == torch.bfloat16 else w.contiguous()
        lines = torch.from_numpy(pack(numbers.numpy()))
        return cls(lines.view(w.dtype), (w.shape[0], w.shape[1]), kernel)

    @classmethod
    def joined(cls, matrices: Sequence["NativeMatrix"]) -> "NativeMatrix":
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns or type, or one has a number of outputs that is no multiple of 16.
        """
        first = matrices[0]
        for each in matrices:
            if each.kind != first.kind or each.shape[0] % LINE:
                raise ValueError(
                    f"{each.shape} {each.dtype} and {first.shape} {first.dtype} cannot be joined: they need the same "
                    f"columns and type, and a multiple of {LINE} outputs"
                )
        lines = torch.cat([each.lines for each in matrices])
        return cls(lines, (sum(each.shape[0] for each in matrices), first.shape[1]), first.kernel)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What matrices that are joined have in common."""
        return self.shape[1], self.dtype

    @cached_property
    def _array(self) -> NativeArray:
        """The lines as the kernel sees them."""
        return native_array(self.lines)

    @property
    def dtype(self) -> torch.dtype:
        return self.lines.dtype

    @property
    def device(self) -> torch.device:
        return self.lines.device

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Some rows of the matrix: (...) integers to (..., I)."""
        lines = self.lines[ids // LINE, :, ids % LINE]
        return lines.flatten(-2)[..., : self.shape[1]]

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""
        if torch.compiler.is_compiling():
            return _LINEAR(x, self.lines, bias, self.shape[0], self.kernel.package)
        return _multiply(x, self._array, bias, self.shape[0], self.kernel)


def _multiply(
    x: torch.Tensor, lines: NativeArray, bias: torch.Tensor | None, outputs: int, kernel: ProductKernel
) -> torch.Tensor:
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], outputs)
    rows, columns = y.numel() // outputs, x.shape[-1]
    kernel.multiply(
        NativeArray(x.data_ptr(), (rows, columns), NAMES[x.dtype], x),
        lines,
        None if bias is None else native_array(bias.float()),
        NativeArray(y.data_ptr(), (rows, outputs), NAMES[y.dtype], y),
        torch.get_num_threads(),
    )
    return y


# To a compiler, an operator of our own. It gets the package of the kernel: a learner's is never the reference's.
_library = torch.library.Library("tiny_llm", "FRAGMENT")
if not hasattr(torch.ops.tiny_llm, "native_linear"):
    _library.define("native_linear(Tensor x, Tensor lines, Tensor? bias, int outputs, str package) -> Tensor")

    @torch.library.impl(_library, "native_linear", "CompositeExplicitAutograd")
    def _linear(
        x: torch.Tensor, lines: torch.Tensor, bias: torch.Tensor | None, outputs: int, package: str
    ) -> torch.Tensor:
        return _multiply(x, native_array(lines), bias, outputs, sys.modules[package].NATIVE.product)

    @torch.library.register_fake("tiny_llm::native_linear", lib=_library)
    def _shape_of_linear(
        x: torch.Tensor, lines: torch.Tensor, bias: Any, outputs: int, package: str
    ) -> torch.Tensor:
        return x.new_empty(*x.shape[:-1], outputs)


_LINEAR = torch.ops.tiny_llm.native_linear.default


@dataclass(frozen=True)
class DecodeRuns:
    """What R requests of one row read: runs of neighbouring slots, in the order of their texts.

    Args:
        rows: (R,) rows of the step.
        starts, counts: (N,), of each run its first slot and how many.
        runs: (R + 1,): row r reads the runs from `runs[r]` to `runs[r + 1] - 1`.
        kernel: of the solution in use.
    """

    rows: torch.Tensor
    starts: torch.Tensor
    counts: torch.Tensor
    runs: torch.Tensor
    kernel: DecodeKernel

    @cached_property
    def _arrays(self) -> tuple[NativeArray, NativeArray, NativeArray]:
        """Starts, counts and runs as the kernel sees them; all layers read the same."""
        return native_array(self.starts), native_array(self.counts), native_array(self.runs)


Runs = list[tuple[int, int]]


def past_runs(past: PastReads | None, page_size: int) -> dict[int, Runs]:
    """For each decode the runs of its past, first slot and count, by its row. A run is at most a page."""
    if past is None:
        return {}
    runs: dict[int, Runs] = {group: [] for group in past.groups.tolist()}
    blocks = past.blocks
    listed = blocks.block_groups, blocks.block_list, blocks.block_starts, blocks.block_usage
    for group, block, start, end in zip(*(part.tolist() for part in listed), strict=True):
        if group in runs and end > start:
            runs[group].append((block * page_size + start, end - start))
    # Rows and groups of padding, see `padding.py`, read nothing.
    rows = zip(past.rows.tolist(), past.groups.tolist(), strict=True)
    return {row: runs[group] for row, group in rows if group >= 0 and runs[group]}


def decode_runs(texts: dict[int, Runs], slots: torch.Tensor, kernel: DecodeKernel) -> DecodeRuns | None:
    """The runs of some decodes, each with its own row last; None when there are none.

    Args:
        texts: from `past_runs`.
        slots: (T,) where the rows of the step are.
        kernel: of the solution in use.
    """
    if not texts:
        return None
    rows = sorted(texts)
    own = slots.tolist()
    listed = [[*texts[row], (own[row], 1)] for row in rows]
    starts, counts = zip(*(run for runs in listed for run in runs), strict=True)
    ends = accumulate(map(len, listed), initial=0)
    return DecodeRuns(_integers(rows), _integers(starts), _integers(counts), _integers(ends), kernel)


def _integers(numbers: Iterable[int]) -> torch.Tensor:
    """(N,), of a few numbers in a third of the time of `torch.tensor`."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


def attend_runs(
    query: torch.Tensor,
    key_pages: torch.Tensor | QuantizedPages,
    value_pages: torch.Tensor | QuantizedPages,
    reads: DecodeRuns,
    scale: float,
) -> torch.Tensor:
    """Attention of one row of each of R requests; no key or value is copied.

    Args:
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type or in eight bits.
        reads: see `DecodeRuns`.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    query = query.contiguous()
    out = torch.empty_like(query)
    reads.kernel.attend(
        native_array(query),
        kept_array(key_pages),
        kept_array(value_pages),
        native_array(out),
        *reads._arrays,
        scale,
        torch.get_num_threads(),
    )
    return out


def computes(kernel: DecodeKernel, config: ModelShape) -> bool:
    """Whether a kernel runs on this machine, and computes the heads of a model."""
    sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    return fits(*sizes) and kernel.works
