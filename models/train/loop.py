"""The training loop: AdamW, a short warm-up, a linear decay, loss on the answers only and on the balance of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from .balance import balance_loss
from .rows import IGNORED

LEARNING_RATE, FINAL_FRACTION, WARM_UP = 1e-3, 0.02, 50
WEIGHT_DECAY, BETAS, CLIP = 0.01, (0.9, 0.98), 1.0


def train(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    steps: int,
    on_step: Callable[[int, float], None],
) -> None:
    """Train `model` in place for `steps` batches; `on_step(step, loss)` is called after each."""
    optimizer = _optimizer(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    model.train()
    for step in range(steps):
        loss, routers = _loss(model, *next(batches))
        optimizer.zero_grad()
        (loss + balance_loss(routers, model.config)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        on_step(step, loss.item())
    model.eval()


def _loss(model: nn.Module, tokens: Tensor, labels: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Mean cross entropy over the answer tokens of a batch (B, L), and the logits (B · L, X) of each router.

    The head runs on the answers alone.
    """
    output = model.model(tokens, use_cache=False)
    learned = labels != IGNORED
    logits = linear(output.last_hidden_state[learned], model.lm_head.weight)
    return cross_entropy(logits, labels[learned]), output.get("router_logits") or ()


def _optimizer(model: nn.Module) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS)


def _rate(step: int, steps: int) -> float:
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    left = (steps - step) / max(1, steps - WARM_UP)
    return FINAL_FRACTION + (1 - FINAL_FRACTION) * left
