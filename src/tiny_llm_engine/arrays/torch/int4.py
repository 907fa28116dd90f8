"""torch's kernel for matrices of 4 bits, which multiplies in bf16: on a CPU with vectors, and on CUDA."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


def has_int4_kernel(device: torch.device | str) -> bool:
    """Whether the kernel runs on a device: on a CPU only with vectors, for its plain loops are slower than tiles."""
    kind = str(device).partition(":")[0]
    if kind == "cuda":
        return torch.cuda.get_device_capability() >= (8, 0)
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return kind == "cpu" and vectors and hasattr(torch, "_weight_int4pack_mm_for_cpu")


def _on_cuda(array: torch.Tensor) -> bool:
    return array.device.type == "cuda"


@dataclass(frozen=True, eq=False)
class Int4Matrix:
    """A 4-bit matrix (O, I) in the layout of the kernel.

    Args:
        words: the numbers in the layout of this device's kernel; O is padded to a multiple of 16.
        table: (I / group_size, O padded, 2), bf16, from Day 2.3's `kernel_constants`.
        group_size: numbers that share a scale and a zero.
        shape: (O, I).
        dtype: the type of the matrix before it was quantised.
    """

    words: torch.Tensor
    table: torch.Tensor
    group_size: int
    shape: tuple[int, int]
    dtype: torch.dtype

    @classmethod
    def of(
        cls,
        numbers: torch.Tensor,
        table: torch.Tensor,
        group_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> "Int4Matrix":
        """Lays out numbers (O, I), one to an element, and the table of all O outputs."""
        O, I = numbers.shape
        numbers = F.pad(numbers, (0, 0, 0, -O % 16)).to(device)
        if _on_cuda(numbers):
            pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
            # The last argument is the number of blocks of 16 columns that are stored together: 2, 4 or 8.
            words = torch._convert_weight_to_int4pack(pairs, 8 if I % 128 == 0 else 2)
        else:
            words = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)
        return cls(words, F.pad(table, (0, 0, 0, -O % 16)).to(device), group_size, (O, I), dtype)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.table.nbytes

    @property
    def device(self) -> torch.device:
        return self.words.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x @ Wᵀ, (..., I) to (..., O), in x's type; x and the product are rounded to bf16."""
        multiply = torch._weight_int4pack_mm if _on_cuda(x) else torch._weight_int4pack_mm_for_cpu
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        out = multiply(rows, self.words, self.group_size, self.table)[:, : self.shape[0]]
        return out.reshape(*x.shape[:-1], self.shape[0]).to(x.dtype)
