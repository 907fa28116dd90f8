"""What an engine needs for drafts: a proposer, and the costs of rows."""

import sys
from dataclasses import replace
from typing import Any

from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Network, ServingPackage
from tiny_llm_extensions.drafts.speculative_config import SpeculativeConfig

from ..engine_options import EngineOptions
from ..graphs.step_shapes import StepShapes
from ..nvidia.text_steps import why_no_texts
from .draft_model import DraftModel
from .proposals import Proposals
from .row_costs import measured_row_costs

NEVER = (
    "speculative_config: nothing will be drafted, because no draft pays on this machine: a step of one request takes "
    "{0.plain:.2g} s, and each draft {0.row:.2g} s more"
)
CONTEXT = 256  # tokens that a request reads while costs are measured


class Speculation:
    """Speculative decoding of one engine. Costs are measured when it is made.

    Attributes:
        costs: seconds of a step by its rows.
        proposals: which requests of a step have how many drafts.

    Args:
        names: the module `serving` of the solution.
        options, limits, runner: those of the engine that verifies the drafts.
        config: its speculative options.
        proposer: `PromptLookup` of the solution, or a `DraftModel`.
    """

    def __init__(
        self,
        names: ServingPackage,
        options: EngineOptions,
        limits: EngineLimits,
        runner: PackedRunner,
        config: SpeculativeConfig,
        proposer: Any,
    ):
        self.proposer = proposer
        half = (limits.max_model_len - 1) // 2  # the first row is at the position after the context
        most, context = min(config.num_speculative_tokens, half), min(CONTEXT, half)
        self.costs = measured_row_costs(names, runner, options.max_num_seqs, most, context)
        self.proposals = Proposals(names.choose_k, proposer, config.num_speculative_tokens, self.costs)
        if not self.proposals.ever_pays(self.costs, options.max_num_seqs):
            print(NEVER.format(self.costs.costs[1]), file=sys.stderr)


def draft_model(
    port: Port, network: Network, options: EngineOptions, limits: EngineLimits, target: PackedRunner
) -> DraftModel:
    """A draft model with as many KV blocks as the model has.

    Args:
        port: the solution on its backend.
        network: `Qwen3ModelWeek3` of the draft model.
        options, limits: those of the engine that verifies the drafts.
        target: the model's runner.

    Raises:
        ValueError: the vocabularies differ.
    """
    if network.config.vocab_size != target.vocab_size:
        raise ValueError(
            f"speculative_config: the draft model has {network.config.vocab_size:,} token ids, and the model "
            f"{target.vocab_size:,}: give a model with the same tokenizer"
        )
    limits = replace(limits, max_model_len=min(limits.max_model_len, network.config.context))
    has_texts = why_no_texts(port, network, options) is None
    shapes = StepShapes(port, port.serving, options, limits, target.num_blocks, has_texts=has_texts)
    runner = shapes.new_runner(network)
    if shapes.is_compiled:
        shapes.warm_up(runner)
    return DraftModel(port.serving, runner, limits.max_num_batched_tokens)
