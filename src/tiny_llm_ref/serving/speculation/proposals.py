"""Which requests of a step have drafts, and how many of them pay. Budget and blocks come later. Given."""

from collections import abc
from collections.abc import Callable
from functools import cache
from typing import Protocol
from weakref import WeakKeyDictionary

from ..batching.packing import Scheduled
from ..batching.sequence import Sequence
from .draft_length import AcceptanceRate, choose_k
from .proposer import Proposer

MARGIN = 1.25  # a draft has to pay this multiple of its row's cost, which has no share of the host's work for drafts


class StepCosts(Protocol):
    """What a step takes."""

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with so many tokens, drafts included, for requests of which `decodes` decode."""
        ...

    def first_draft_seconds(self, decodes: int) -> float:
        """Seconds that a step of decodes takes besides when it has any drafts."""
        ...


class Proposals:
    """Asks a proposer for the drafts of a plan, and keeps those that pay.

    Args:
        proposer: guesses the drafts.
        num_speculative_tokens: drafts of one request in one step, at most.
        profile: what a step costs, see `choose_k`; without it every draft pays.

    Raises:
        ValueError: `num_speculative_tokens` is below 1.
    """

    def __init__(self, proposer: Proposer, num_speculative_tokens: int, profile: StepCosts | None = None):
        if num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens is {num_speculative_tokens}: give at least 1")
        self.proposer, self.num_speculative_tokens, self.profile = proposer, num_speculative_tokens, profile
        self.overall = AcceptanceRate()  # of all requests: where the estimate of a new one begins
        self._rates: WeakKeyDictionary[Sequence, AcceptanceRate] = WeakKeyDictionary()

    def of(self, plan: abc.Sequence[Scheduled], room: int) -> dict[int, list[int]]:
        """Drafts by the number of their entry in a plan. None of them is empty.

        Args:
            plan: a step without drafts.
            room: drafts of all requests together, at most.
        """
        wanted = {number: self.most(entry.sequence) for number, entry in enumerate(plan) if entry.is_decode}
        lengths = self.lengths(plan, wanted, room)  # nothing is looked up in vain
        asked = [(number, plan[number].sequence, k) for number, k in lengths.items() if k > 0]
        if asked:
            made = self.proposer.propose([(sequence, k) for _, sequence, k in asked])
            drafts = {
                number: before_end(sequence, ids)
                for (number, sequence, _), ids in zip(asked, made, strict=True)
            }
            lengths = self.lengths(plan, {number: len(ids) for number, ids in drafts.items()}, room)
        self.rest(plan, [number for number in wanted if not lengths.get(number)])
        return {number: drafts[number][:k] for number, k in lengths.items() if k > 0}

    def rest(self, plan: abc.Sequence[Scheduled], numbers: abc.Sequence[int]) -> None:
        """Records that these entries of a plan have no drafts."""
        for number in numbers:
            self.rate(plan[number].sequence).rest()
        if len(numbers) == len(plan):
            self.overall.rest()

    def most(self, sequence: Sequence) -> int:
        """How many drafts a request may have: its last token is drawn, so none is guessed for it."""
        return min(self.num_speculative_tokens, sequence.max_new_tokens - len(sequence.tokens) - 1)

    def lengths(self, plan: abc.Sequence[Scheduled], wanted: dict[int, int], room: int) -> dict[int, int]:
        """How many of the drafts that entries want pay in one step; earlier entries choose first."""
        seconds = self.seconds_of_rows(plan)
        planned = rows = useful = sum(entry.size for entry in plan)
        lengths = {}
        for number, most in wanted.items():
            rate, k = self.rate(plan[number].sequence).value, max(0, min(most, room))
            if seconds is not None:
                k = choose_k(rate, k, rows, useful, seconds)
            lengths[number] = k
            rows, room = rows + k, room - k
            useful += sum(rate**i for i in range(1, k + 1))
        if seconds is None or useful * seconds(planned) > planned * (seconds(rows) + self.first_draft(plan)):
            return lengths
        return dict.fromkeys(lengths, 0)

    def first_draft(self, plan: abc.Sequence[Scheduled]) -> float:
        """Seconds that any drafts cost in this step besides their rows; a step with chunks has paid them already."""
        if self.profile is None or not all(entry.is_decode for entry in plan):
            return 0.0
        return MARGIN * self.profile.first_draft_seconds(len(plan))

    def observe(self, sequence: Sequence, drafts: int, accepted: int) -> None:
        """Records that the first `accepted` of a request's drafts were right."""
        for rate in (self.rate(sequence), self.overall):
            rate.observe(drafts, accepted)

    def seconds_of_rows(self, plan: abc.Sequence[Scheduled]) -> Callable[[int], float] | None:
        """The seconds of this step by its number of rows, drafts included; None without a profile."""
        profile = self.profile
        if profile is None:
            return None
        planned, decodes = sum(entry.size for entry in plan), sum(entry.is_decode for entry in plan)
        draft_seconds, least = self.proposer.draft_seconds, profile.seconds(planned, decodes)

        @cache
        def seconds(rows: int) -> float:
            return (
                least + MARGIN * (profile.seconds(rows, decodes) - least) + (rows - planned) * draft_seconds
            )

        return seconds

    def rate(self, sequence: Sequence) -> AcceptanceRate:
        """How often the drafts of a request were right so far."""
        if sequence not in self._rates:
            self._rates[sequence] = AcceptanceRate(self.overall.value)
        return self._rates[sequence]


def before_end(sequence: Sequence, drafts: list[int]) -> list[int]:
    """The drafts before the first end token: nothing follows that, and it is drawn after them in any case."""
    ends = sequence.eos_token_ids
    return drafts[: next((number for number, token in enumerate(drafts) if token in ends), len(drafts))]
