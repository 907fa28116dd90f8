"""What several screens share: the policy of the solution that is shown, and the requests of a chat."""

from collections.abc import Sequence
from typing import Any

from ...model.tokenizer import Tokenizer
from ...solution_types import AnswerSequence, ServingPackage
from ...trace.prompts import rendered
from ...trace.serve import Serving, serve
from ...trace.simulation.simulated_model import SimulatedModel
from ...trace.simulation.step_cost import StepCost
from ...trace.trace import Trace
from ...trace.workload import Workload


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
