"""Expert parallelism: every rank holds some of the experts, and rows go to the rank of their expert and back."""

from collections.abc import Callable

import torch

from tiny_llm_extensions.parallel.groups import Group

from ..serving.parallel.expert_exchange import exchange_plan
from .router import sort_by_expert


def run_on_ranks(
    rows: torch.Tensor,
    counts: torch.Tensor,
    compute: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    group: Group,
) -> torch.Tensor:
    """Computes rows on the ranks that hold their experts (Lepikhin et al., 2020).

    Args:
        rows: (N, E), this rank's rows, sorted by expert; other ranks may have other numbers of rows.
        counts: (X,) integers, how many of them each expert has; `group.size` divides X.
        compute: rows (M, E) that are sorted by this rank's experts, and their counts (X / size,), to outputs (M, O).
        group: all ranks; rank r holds experts r · X / size to (r + 1) · X / size - 1.

    Returns:
        (N, O), the outputs of this rank's rows, in their order.
    """
    # TASK 4.2.6: all ranks' counts make the plan; exchange rows, sort them by expert, compute, undo the sort, and send
    # the outputs back. What a rank sends on the way back is what it has received on the way there.
    # The rows arrive rank by rank: an expert's rows from two ranks do not follow each other yet.
    raise NotImplementedError("week 4 day 2 task 6: run_on_ranks")
