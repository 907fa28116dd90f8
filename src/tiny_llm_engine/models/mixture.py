"""The numbers of a mixture of experts, read from `config.json` by the rules of transformers. Knows no arrays."""

from dataclasses import dataclass

from .files import CheckpointError, Json, is_count, require, require_count

MOST_EXPERTS = 2**12  # larger than in any model


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """The layers whose MLP is a mixture of experts.

    Args:
        num_experts: X, of each layer.
        num_experts_per_tok: k, how many of them compute a token.
        intermediate_size: F, the inner width of an expert.
        norm_topk_prob: whether the k weights of a token are divided by their sum.
        layers: their indices.
        ranks: that share the experts of each layer; the held ones are X / ranks.

    Raises:
        CheckpointError: a number is out of range.
    """

    num_experts: int
    num_experts_per_tok: int
    intermediate_size: int
    norm_topk_prob: bool
    layers: tuple[int, ...]
    ranks: int = 1

    def __post_init__(self):
        X, k = self.num_experts, self.num_experts_per_tok
        require_count("num_experts", X, MOST_EXPERTS)
        require("num_experts_per_tok", k, is_count(k, X), f"a whole number from 1 to num_experts, {X}")
        require_count("moe_intermediate_size", self.intermediate_size)
        require("norm_topk_prob", self.norm_topk_prob, isinstance(self.norm_topk_prob, bool), "a bool")
        if X % self.ranks:
            raise CheckpointError(f"{X} experts cannot be shared by {self.ranks} ranks")

    @property
    def held_experts(self) -> int:
        """Experts of each layer that a rank has."""
        return self.num_experts // self.ranks


def mixtral(data: Json, layers: int) -> Mixture:
    """All layers are mixtures, and weights are renormalised."""
    return Mixture(
        num_experts=_experts(data, 8),
        num_experts_per_tok=data.get("num_experts_per_tok", 2),
        intermediate_size=data.get("intermediate_size", 14336),
        norm_topk_prob=True,
        layers=tuple(range(layers)),
    )


def qwen3_moe(data: Json, layers: int) -> Mixture:
    """Every `decoder_sparse_step`-th layer, without those in `mlp_only_layers`."""
    step, dense = data.get("decoder_sparse_step", 1), data.get("mlp_only_layers") or []
    require("decoder_sparse_step", step, is_count(step), "a whole number from 1")
    is_list = isinstance(dense, list) and all(type(each) is int for each in dense)
    require("mlp_only_layers", dense, is_list, "a list of whole numbers")
    return Mixture(
        num_experts=_experts(data, 128),
        num_experts_per_tok=data.get("num_experts_per_tok", 8),
        intermediate_size=data.get("moe_intermediate_size", 768),
        norm_topk_prob=data.get("norm_topk_prob", False),
        layers=tuple(index for index in range(layers) if (index + 1) % step == 0 and index not in dense),
    )


def _experts(data: Json, default: int) -> int:
    """X: transformers 5 writes num_local_experts for every family, and Qwen's own files have num_experts."""
    return data.get("num_local_experts", data.get("num_experts", default))
