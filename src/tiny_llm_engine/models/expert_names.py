"""The names of experts' weights, in files and in a model. Knows no arrays."""

import re
from dataclasses import dataclass

# By the name of an expert's matrix: Qwen's, then Mixtral's.
PARTS = {
    "gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 1), "down_proj": ("down_proj", 0),
    "w1": ("gate_up_proj", 0), "w3": ("gate_up_proj", 1), "w2": ("down_proj", 0),
}  # fmt: skip
MATRICES = {"gate_up_proj": 2, "down_proj": 1}  # of one expert in each stack
EXPERT = re.compile(r"(model\.layers\.\d+\.)(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight")
ROUTER = re.compile(r"model\.layers\.\d+\.(mlp|block_sparse_moe)\.gate\.weight")


@dataclass(frozen=True)
class ExpertPlace:
    """Where an expert's matrix is in a model: its stack, its expert, and its place within that expert's matrix."""

    stack: str
    expert: int
    part: int


def place_of(name: str) -> ExpertPlace | None:
    """The place of a weight by its name in a file; None if it belongs to no expert."""
    found = EXPERT.fullmatch(name)
    if found is None or found[3] not in PARTS:
        return None
    stack, part = PARTS[found[3]]
    return ExpertPlace(f"{found[1]}mlp.experts.{stack}", int(found[2]), part)


def is_router(name: str) -> bool:
    """Whether a weight is the router of a mixture."""
    return ROUTER.fullmatch(name) is not None


def model_name(name: str) -> str:
    """The name by which a model asks for a weight that belongs to no expert: Mixtral's files call the MLP otherwise."""
    return name.replace(".block_sparse_moe.", ".mlp.")
