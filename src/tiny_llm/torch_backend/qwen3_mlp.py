"""Qwen3's MLP."""

import torch

from .basics import linear, silu


class Qwen3MLP:
    """The MLP of a layer, applied to each token: w_down @ (silu(w_gate @ x) · (w_up @ x)) (Shazeer, 2020).

    Args:
        dim: E, the width of the inputs.
        hidden_dim: F, the inner width.
        w_gate, w_up: (F, E).
        w_down: (E, F).

    Raises:
        ValueError: a weight has the wrong shape.
    """

    def __init__(
        self, dim: int, hidden_dim: int, w_gate: torch.Tensor, w_up: torch.Tensor, w_down: torch.Tensor
    ):
        for name, weight, shape in (
            ("w_gate", w_gate, (hidden_dim, dim)),
            ("w_up", w_up, (hidden_dim, dim)),
            ("w_down", w_down, (dim, hidden_dim)),
        ):
            if tuple(weight.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(weight.shape)}, this MLP needs {shape}")
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x: (..., E).

        Returns:
            (..., E).
        """
        # TASK 1.4.3: project up to F twice, multiply one result by the SiLU of the other, and project down again.
        raise NotImplementedError("week 1 day 4 task 3: Qwen3MLP.__call__")
