"""Which requests of a step have drafts, and how many of them pay. Budget and blocks come later. Given."""

from collections import abc
from collections.abc import Callable
from weakref import WeakKeyDictionary

from ..batching.packing import Scheduled
from ..batching.sequence import Sequence
from .draft_length import AcceptanceRate, choose_k
from .observed_costs import ObservedCosts, StepCosts
from .proposer import Proposer

MARGIN = 1.25  # a draft has to pay this multiple of its cost: both estimates may be wrong
REST_EVERY = 8  # steps


class Proposals:
    """Asks a proposer for the drafts of a plan, and keeps those that pay.

    Args:
        proposer: guesses the drafts.
        num_speculative_tokens: drafts of one request in one step, at most.
        profile: what a step costs, see `ObservedCosts`; without it every draft pays.

    Raises:
        ValueError: `num_speculative_tokens` is below 1.
    """

    def __init__(self, proposer: Proposer, num_speculative_tokens: int, profile: StepCosts | None = None):
        if num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens is {num_speculative_tokens}: give at least 1")
        self.proposer, self.num_speculative_tokens = proposer, num_speculative_tokens
        self.costs = None if profile is None else ObservedCosts(profile, proposer.draft_seconds)
        self.overall = AcceptanceRate()  # of all requests: where the estimate of a new one begins
        self._steps = 0
        self._rates: WeakKeyDictionary[Sequence, AcceptanceRate] = WeakKeyDictionary()

    def of(self, plan: abc.Sequence[Scheduled], room: int) -> dict[int, list[int]]:
        """Drafts by the number of their entry in a plan. None of them is empty.

        Args:
            plan: a step without drafts.
            room: drafts of all requests together, at most.
        """
        decodes = [number for number, entry in enumerate(plan) if entry.is_decode]
        drafts = self.made(plan, decodes, room) if self.may_pay(plan, decodes) else {}
        lengths = self.lengths(plan, {number: len(ids) for number, ids in drafts.items()}, room)
        self.rest(plan, [number for number in decodes if not lengths.get(number)])
        return {number: drafts[number][:k] for number, k in lengths.items() if k > 0}

    def made(
        self, plan: abc.Sequence[Scheduled], decodes: abc.Sequence[int], room: int
    ) -> dict[int, list[int]]:
        """The proposer's drafts by the number of their entry, for entries of which some would pay."""
        wanted = self.lengths(plan, {number: self.most(plan[number].sequence) for number in decodes}, room)
        asked = [(number, plan[number].sequence, k) for number, k in wanted.items() if k > 0]
        if not asked:
            return {}
        made = self.proposer.propose([(sequence, k) for _, sequence, k in asked])
        return {
            number: before_end(sequence, ids) for (number, sequence, _), ids in zip(asked, made, strict=True)
        }

    def may_pay(self, plan: abc.Sequence[Scheduled], decodes: abc.Sequence[int]) -> bool:
        """Whether a draft of the request with the best estimate pays. Under load the others are not asked."""
        seconds, rows = self.seconds_of_rows(plan), sum(entry.size for entry in plan)
        best = max((self.rate(plan[number].sequence).value for number in decodes), default=0.0)
        return seconds is None or choose_k(best, 1, rows, rows, seconds) > 0

    def rest(self, plan: abc.Sequence[Scheduled], numbers: abc.Sequence[int]) -> None:
        """Records that these entries of a plan have no drafts: in every eighth step for eight, which is less work."""
        self._steps += 1
        if self._steps % REST_EVERY:
            return
        for number in numbers:
            self.rate(plan[number].sequence).rest(REST_EVERY)
        if len(numbers) == len(plan):
            self.overall.rest(REST_EVERY)

    def most(self, sequence: Sequence) -> int:
        """How many drafts a request may have: its last token is drawn, so none is guessed for it."""
        return min(self.num_speculative_tokens, sequence.max_new_tokens - len(sequence.tokens) - 1)

    def lengths(self, plan: abc.Sequence[Scheduled], wanted: dict[int, int], room: int) -> dict[int, int]:
        """How many of the drafts that entries want pay in one step; earlier entries choose first."""
        seconds = self.seconds_of_rows(plan)
        rows = useful = sum(entry.size for entry in plan)
        lengths = {}
        for number, most in wanted.items():
            rate, k = self.rate(plan[number].sequence).value, max(0, min(most, room))
            if seconds is not None:
                k = choose_k(rate, k, rows, useful, seconds)
            lengths[number] = k
            rows, room = rows + k, room - k
            useful += sum(rate**i for i in range(1, k + 1))
        return lengths

    def observe(self, sequence: Sequence, drafts: int, accepted: int) -> None:
        """Records that the first `accepted` of a request's drafts were right."""
        for rate in (self.rate(sequence), self.overall):
            rate.observe(drafts, accepted)

    def seconds_of_rows(self, plan: abc.Sequence[Scheduled]) -> Callable[[int], float] | None:
        """The seconds of this step by its number of rows, drafts included; None if every draft pays."""
        costs = self.costs
        if costs is None or not plan:
            return None
        planned, decodes = sum(entry.size for entry in plan), sum(entry.is_decode for entry in plan)
        has_chunks = decodes < len(plan)
        least = costs.before.seconds(planned, decodes) if has_chunks else costs.plain(decodes)
        draft = MARGIN * costs.draft(max(1, decodes))
        return lambda rows: least + draft * (rows - planned)

    def rate(self, sequence: Sequence) -> AcceptanceRate:
        """How often the drafts of a request were right so far."""
        rate = self._rates.get(sequence)
        if rate is None:
            rate = self._rates[sequence] = AcceptanceRate(self.overall.value)
        return rate


def before_end(sequence: Sequence, drafts: list[int]) -> list[int]:
    """The drafts before the first end token: nothing follows that, and it is drawn after them in any case."""
    ends = sequence.eos_token_ids
    return drafts[: next((number for number, token in enumerate(drafts) if token in ends), len(drafts))]
