"""What given code asks of one port of a solution."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ..native import NativeKernels


class TorchSolution(Protocol):
    """The names of the package of a port, for example of the module `tiny_llm_ref.torch_backend`."""

    NATIVE: NativeKernels
    Embedding: type
    PackedEmbedding: type

    def linear(self, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Day 1.1's."""
        ...

    def prepare_weights(self, w: Any, form: str = "kernel") -> Any:
        """Day 2.3's."""
        ...

    # Days 2.4, 3.2 and 3.3, of which the attention of a Gaudi is made.
    packed_mask: Callable[..., Any]
    packed_attention: Callable[..., torch.Tensor]
    gather_pages: Callable[..., torch.Tensor]
    paged_decode_statistics: Callable[..., Any]
    merge_attention: Callable[..., Any]
    finish_attention: Callable[..., torch.Tensor]
