"""The loss that keeps the experts of a mixture equally busy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func


def balance_loss(routers: Sequence[Tensor], config: PreTrainedConfig) -> Tensor:
    """The load-balancing loss of a batch, times its coefficient: a scalar, 0 without routers.

    Every token counts, questions and lists too: they all need experts. Each layer is balanced by itself. (Given all
    layers at once, transformers adds up their loads, and two uneven layers may look even together.)

    Args:
        routers: logits (tokens, X) of each layer of experts.
        config: with num_experts, num_experts_per_tok and router_aux_loss_coef, if there are routers.
    """
    if not routers:
        return torch.zeros(())
    shares = [
        load_balancing_loss_func((logits,), config.num_experts, config.num_experts_per_tok)
        for logits in routers
    ]
    return config.router_aux_loss_coef * torch.stack(shares).mean()
