"""The part of a model that one of several ranks reads and holds: of every matrix, or some layers. Knows no arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.expert_names import place_of
from tiny_llm_engine.models.formats import ModelFiles
from tiny_llm_engine.models.mixture import Mixture
from tiny_llm_engine.models.output_head import HEAD
from tiny_llm_engine.models.quantization import EMBEDDING
from tiny_llm_engine.models.safetensors_folder import TensorInfo
from tiny_llm_engine.solutions.backend import Backend
from tiny_llm_engine.solutions.solution_types import ServingPackage, Shard

from .parts_of_files import PartsOfFiles


class ReadsParts:
    """Reads what a rank holds of a model's files."""

    def opened(
        self,
        backend_module: Backend,
        files: ModelFiles,
        headers: Mapping[str, TensorInfo],
        config: ModelConfig,
    ) -> PartsOfFiles:
        """See `HeldPart`."""
        return PartsOfFiles(backend_module, files, headers, config, self)


@dataclass(frozen=True)
class RankPart(ReadsParts):
    """What one of several ranks holds of a model whose matrices are divided, by the solution's `shard_of`.

    Args:
        names: the module `serving` of a solution.
        rank: from 0 to size - 1.
        size: number of ranks.
        expert_parallel: whether ranks hold different experts, and not a part of each one.
    """

    names: ServingPackage
    rank: int
    size: int
    expert_parallel: bool = False

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model's configuration with the heads and hidden numbers of this rank, and the whole vocabulary.

        Raises:
            ValueError: the ranks would not get equal shares.
        """
        check_ranks(self.names, whole, self.size, self.expert_parallel)
        kv_heads = self.names.kv_heads_of(whole.num_key_value_heads, self.rank, self.size)
        return replace(
            whole,
            num_attention_heads=whole.num_attention_heads // self.size,
            num_key_value_heads=len(kv_heads),
            intermediate_size=whole.intermediate_size // self.size,
            mixture=self._mixture(whole.mixture),
        )

    def _mixture(self, whole: Mixture | None) -> Mixture | None:
        if whole is None:
            return None
        if self.expert_parallel:
            return replace(whole, ranks=self.size)
        return replace(whole, intermediate_size=whole.intermediate_size // self.size)

    def holds(self, name: str, whole: ModelConfig) -> bool:
        """Whether this rank holds some of a weight: of each one, but for other ranks' experts."""
        place = place_of(name) if self.expert_parallel and whole.mixture else None
        if place is None or whole.mixture is None:
            return True
        return place.expert in self.names.even_part(whole.mixture.num_experts, self.rank, self.size)

    def shard(self, name: str, shape: Sequence[int], whole: ModelConfig) -> Shard:
        """Which rows or columns of a weight this rank holds; `shape` is the weight's own."""
        if self.expert_parallel and place_of(name) is not None:
            return self.names.Shard()
        return self.names.shard_of(name, shape, self.rank, self.size, whole.num_key_value_heads)


@dataclass(frozen=True)
class StagePart(ReadsParts):
    """What one of several stages holds of a model: whole weights of some layers. Rank 0 is the last stage.

    Args:
        names: the module `serving` of a solution.
        rank: from 0 to size - 1.
        size: number of stages.
    """

    names: ServingPackage
    rank: int
    size: int

    @property
    def stage(self) -> int:
        """From 0; rank 0 is the last one."""
        return (self.rank - 1) % self.size

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model's configuration: a stage finds its layers by their number among all."""
        return whole

    def holds(self, name: str, whole: ModelConfig) -> bool:
        """Whether this stage holds a weight.

        Raises:
            ValueError: there are more stages than layers.
        """
        layers = self.names.stage_layers(whole.num_hidden_layers, self.size, self.stage)
        is_last = self.stage == self.size - 1
        if name == EMBEDDING:
            return self.stage == 0 or (is_last and whole.tie_word_embeddings)
        if name == HEAD:
            return is_last
        parts = name.split(".")
        return parts[1] != "layers" or int(parts[2]) in layers

    def shard(self, name: str, shape: Sequence[int], whole: ModelConfig) -> Shard:
        """All of a weight that this stage holds."""
        return self.names.Shard()


def check_ranks(names: ServingPackage, config: ModelConfig, size: int, expert_parallel: bool) -> None:
    """Check that a model can be divided among this many ranks.

    Raises:
        ValueError: ranks would not get equal shares; or there are no experts to share.
    """
    names.check_tensor_parallel(config, size)
    mixture = config.mixture
    if expert_parallel and mixture is None:
        raise ValueError("enable_expert_parallel: this model has no experts: leave it out")
    if mixture is None:
        return
    if expert_parallel and mixture.num_experts % size:
        raise ValueError(
            f"tensor_parallel_size is {size}: with enable_expert_parallel it must divide {mixture.num_experts} experts"
        )
    if not expert_parallel and mixture.intermediate_size % size:
        raise ValueError(
            f"tensor_parallel_size is {size}: it must divide the {mixture.intermediate_size} numbers in an expert's "
            "MLP; enable_expert_parallel shares whole experts"
        )
