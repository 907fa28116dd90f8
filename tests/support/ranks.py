"""Several ranks of one model in one thread, for the tests of Day 3.7."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from tiny_llm_course.grading.small_models import SmallModel, random_checkpoint
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.sampling import SamplingParams
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array, ServingPackage
from tiny_llm_extensions.parallel.rank_parts import RankPart, StagePart

from .goldens import rank_checkpoint
from .lockstep import LockstepGroup, LockstepRunner
from .packed import PackedServing

Ranks = tuple[LockstepGroup, list[Any]]
# What engines of several ranks are asked, in little memory: chunks, preemptions, seeds and log-probabilities.
CHATS = [
    [{"role": "user", "content": text}]
    for text in ("What is chunked prefill?", "What is a KV cache?", "Who are you?")
]
TIGHT = {"num_blocks": 12, "block_size": 8, "max_num_batched_tokens": 16, "max_model_len": 80}
SAMPLINGS = [
    SamplingParams(max_tokens=24, logprobs=2),
    SamplingParams(max_tokens=24, temperature=0.8, top_p=0.9, seed=5),
    SamplingParams(max_tokens=24, temperature=1.2, top_k=20, seed=6),
]


def on_all_ranks(b: Port, size: int, compute: Callable[[Any], Array]) -> tuple[list[Any], list[str]]:
    """What `compute` of each rank's `Group` returns, in NumPy, and the collective calls on the way."""
    group = LockstepGroup(size, b.backend_module)
    found = group.run([lambda rank=rank: compute(rank) for rank in group.ranks])
    return [b.numpy(each) for each in found], group.calls


def shards_of(b: Port, s: ServingPackage, size: int, case: SmallModel) -> Ranks:
    """A group of ranks that divide every matrix, and their models."""
    group = LockstepGroup(size, b.backend_module)
    return group, [
        b.Qwen3ModelTensorParallel(rank_checkpoint(b, case, RankPart(s, each.rank, size)), group=each)
        for each in group.ranks
    ]


def stages_of(b: Port, s: ServingPackage, size: int, case: SmallModel) -> Ranks:
    """A group of stages, each with the weights of its layers alone, and their models; rank 0 is the last stage."""
    group, models = LockstepGroup(size, b.backend_module), []
    whole = random_checkpoint(b, case)
    for each in group.ranks:
        part = StagePart(s, each.rank, size)
        own = {name: array for name, array in whole.weights.items() if part.holds(name, case.config)}
        models.append(b.PipelineStage(Checkpoint(case.config, own), group=each))
    return group, models


def served_by(b: Port, s: ServingPackage, ranks: Ranks) -> PackedServing:
    """`PackedServing` whose steps run on all ranks."""
    group, models = ranks
    made = PackedServing(b, s, models[0])
    others = [b.packed_runner(model, 40, 4) for model in models[1:]]
    made.runner = LockstepRunner(group, [cast(PackedRunner, made.runner), *others])
    return made


def logits_of_two_steps(server: PackedServing, prompts: Sequence[list[int]]) -> dict[tuple[int, int], Array]:
    """Serve four prompts of at least 14, 5, 9 and 6 tokens in chunks, a whole prompt and decodes.

    Returns:
        The logits of all sampled rows, by request and position.
    """
    made = [server.sequence(text, i) for i, text in enumerate(prompts)]
    server.run([(made[0], 0, 9), (made[2], 0, 8), (made[3], 0, 5)])
    server.run([(made[0], 9, 5), (made[1], 0, 5), (made[2], 8, 1), (made[3], 5, 1)])
    return {(request, at): row for request, rows in server.logits.items() for at, row in rows.items()}
