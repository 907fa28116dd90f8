"""Prompts elsewhere, in virtual time: what a device for prompts sends, and how one that decodes takes it."""

from collections.abc import Callable, Iterable, Sequence

from tiny_llm_engine.solutions.solution_types import Event, ServingPackage
from tiny_llm_extensions.kv_transfer.transfers import Computed


def computed_of(events: Iterable[Event], ends: Callable[[int], tuple[str, str]]) -> list[Computed]:
    """What the steps among some events have computed of prompts, but for the last token of each prompt.

    Args:
        ends: the names of sender and receiver, from the number of a request.
    """
    computed: list[Computed] = []
    for event in events:
        for part in event.parts:
            [sequence] = part.requests
            number, left = sequence.request_id, sequence.num_prompt_tokens - 1 - part.context
            computed.append(Computed(event.time, number, min(part.tokens, left), *ends(number)))
    return computed


def table_of_arrived(names: ServingPackage) -> type:
    """A block table of requests whose prompt has arrived. One that is preempted has to compute all of its text."""

    class ArrivedTable(names.BlockTable):
        has_begun = False

        def share(self, tokens: Sequence[int]) -> int:
            return 0 if self.has_begun else len(tokens) - 1

        def register(self, tokens: Sequence[int], num_computed: int) -> None:
            self.has_begun = True

    return ArrivedTable
