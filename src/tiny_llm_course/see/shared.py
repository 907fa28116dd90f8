"""What several screens share: the shipped model, the policy of the solution that is shown, and its requests."""

from collections.abc import Iterable, Sequence
from typing import Any

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, ServingPackage
from tiny_llm_engine.step_loop import StepLoop

from ..trace.prompts import rendered
from ..trace.serve import Serving, serve
from ..trace.simulation.simulated_model import SimulatedModel
from ..trace.simulation.step_cost import StepCost
from ..trace.trace import Trace
from ..trace.workload import Workload

MODEL = "tiny-qwen3"  # that is shipped


def shipped(b: Port, dtype: str | None = None) -> Checkpoint:
    """The shipped model's weights on a port, of its own type by default."""
    return load_checkpoint(MODEL, b.name, b.device, dtype or b.float_dtype)


def chats(
    s: ServingPackage, tokenizer: Tokenizer, questions: Sequence[str], **options: Any
) -> list[AnswerSequence]:
    """A sequence of Week 3 for each question."""
    ids = (tokenizer.encode(rendered(tokenizer, question)) for question in questions)
    return [s.Sequence(prompt, tokenizer, request_id=number, **options) for number, prompt in enumerate(ids)]


def simulated(
    s: ServingPackage, cost: StepCost, workload: Workload, chunk: int | None = None, **options: Any
) -> Trace:
    """The trace of a workload in virtual time."""
    model = SimulatedModel(cost)
    return serve(Serving(s, model, clock=model.clock), workload, chunk, **options).trace()


def run_all(loop: StepLoop, sequences: Iterable[AnswerSequence]) -> int:
    """Serve sequences to their end; return how often the model was called."""
    for sequence in sequences:
        loop.add(sequence)
    steps = 0
    while loop.has_work_remaining():
        steps += loop.step()
    return steps
