"""Which requests of a step have drafts, and how many of them pay. Budget and blocks come later."""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from tiny_llm_common.drafted import Proposer
from tiny_llm_common.scheduled import Scheduled
from tiny_llm_common.sequence_state import SequenceState

from .observed_costs import ObservedCosts, StepCosts

MEMORY = 0.95  # weight of earlier drafts in the estimate after a step with drafts,
REST = 0.98  # and after a step whose drafts did not pay: slower, so that few are tried in vain
PRIOR = 1.0  # number of drafts that a request counts before it has had any,
PRIOR_RATE = 0.7  # and the share of them that counts as right before any request has had drafts
MARGIN = 1.25  # a draft has to pay this multiple of its cost: both estimates may be wrong
REST_EVERY = 8  # steps


class AcceptanceRate:
    """The probability that a draft of one request is right, given that all before it are.

    A moving estimate from the request's own drafts. While its drafts do not pay, the estimate moves back to where it
    began, so that one is tried from time to time.

    Args:
        prior: where it begins.
    """

    def __init__(self, prior: float = PRIOR_RATE):
        self.prior = prior
        self._right, self._tried = 0.0, 0.0  # drafts, of which earlier ones count less

    @property
    def value(self) -> float:
        """From 0 to 1."""
        return (self._right + PRIOR * self.prior) / (self._tried + PRIOR)

    def observe(self, drafts: int, accepted: int) -> None:
        """Records a step: the first `accepted` drafts were right. Those after a wrong one were not tried."""
        self._right = MEMORY * self._right + accepted
        self._tried = MEMORY * self._tried + min(accepted + 1, drafts)

    def rest(self, steps: int = 1) -> None:
        """Records steps in which drafts did not pay."""
        kept = REST**steps
        self._right, self._tried = kept * self._right, kept * self._tried


class Proposals:
    """Asks a proposer for the drafts of a plan, and keeps those that pay.

    Args:
        choose_k: how many drafts pay, see Task 4.3.6.
        proposer: guesses the drafts.
        num_speculative_tokens: drafts of one request in one step, at most.
        profile: what a step costs, see `ObservedCosts`; without it every draft pays.

    Raises:
        ValueError: `num_speculative_tokens` is below 1.
    """

    def __init__(
        self,
        choose_k: Callable[..., int],
        proposer: Proposer,
        num_speculative_tokens: int,
        profile: StepCosts | None = None,
    ):
        if num_speculative_tokens < 1:
            raise ValueError(f"num_speculative_tokens is {num_speculative_tokens}: give at least 1")
        self.choose_k, self.proposer = choose_k, proposer
        self.num_speculative_tokens = num_speculative_tokens
        self.costs = None if profile is None else ObservedCosts(profile, proposer.draft_seconds)
        self.overall = AcceptanceRate()  # of all requests: where the estimate of a new one begins
        self._steps = 0
        self._rates: WeakKeyDictionary[SequenceState, AcceptanceRate] = WeakKeyDictionary()

    def of(self, plan: Sequence[Scheduled], room: int) -> dict[int, list[int]]:
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

    def made(self, plan: Sequence[Scheduled], decodes: Sequence[int], room: int) -> dict[int, list[int]]:
        """The proposer's drafts by the number of their entry, for entries of which some would pay."""
        wanted = self.lengths(plan, {number: self.most(plan[number].sequence) for number in decodes}, room)
        asked = [(number, plan[number].sequence, k) for number, k in wanted.items() if k > 0]
        if not asked:
            return {}
        made = self.proposer.propose([(sequence, k) for _, sequence, k in asked])
        return {
            number: before_end(sequence, ids) for (number, sequence, _), ids in zip(asked, made, strict=True)
        }

    def may_pay(self, plan: Sequence[Scheduled], decodes: Sequence[int]) -> bool:
        """Whether a draft of the request with the best estimate pays. Under load the others are not asked."""
        seconds, rows = self.seconds_of_rows(plan), sum(entry.size for entry in plan)
        best = max((self.rate(plan[number].sequence).value for number in decodes), default=0.0)
        return seconds is None or self.choose_k(best, 1, rows, rows, seconds) > 0

    def rest(self, plan: Sequence[Scheduled], numbers: Sequence[int]) -> None:
        """Records that these entries of a plan have no drafts: in every eighth step for eight, which is less work."""
        self._steps += 1
        if self._steps % REST_EVERY:
            return
        for number in numbers:
            self.rate(plan[number].sequence).rest(REST_EVERY)
        if len(numbers) == len(plan):
            self.overall.rest(REST_EVERY)

    def most(self, sequence: SequenceState) -> int:
        """How many drafts a request may have: its last token is drawn, so none is guessed for it."""
        return min(self.num_speculative_tokens, sequence.max_new_tokens - len(sequence.tokens) - 1)

    def lengths(self, plan: Sequence[Scheduled], wanted: dict[int, int], room: int) -> dict[int, int]:
        """How many of the drafts that entries want pay in one step; earlier entries choose first."""
        seconds = self.seconds_of_rows(plan)
        rows = useful = sum(entry.size for entry in plan)
        lengths = {}
        for number, most in wanted.items():
            rate, k = self.rate(plan[number].sequence).value, max(0, min(most, room))
            if seconds is not None:
                k = self.choose_k(rate, k, rows, useful, seconds)
            lengths[number] = k
            rows, room = rows + k, room - k
            useful += sum(rate**i for i in range(1, k + 1))
        return lengths

    def observe(self, sequence: SequenceState, drafts: int, accepted: int) -> None:
        """Records that the first `accepted` of a request's drafts were right."""
        for rate in (self.rate(sequence), self.overall):
            rate.observe(drafts, accepted)

    def seconds_of_rows(self, plan: Sequence[Scheduled]) -> Callable[[int], float] | None:
        """The seconds of this step by its number of rows, drafts included; None if every draft pays."""
        costs = self.costs
        if costs is None or not plan:
            return None
        planned, decodes = sum(entry.size for entry in plan), sum(entry.is_decode for entry in plan)
        has_chunks = decodes < len(plan)
        least = costs.before.seconds(planned, decodes) if has_chunks else costs.plain(decodes)
        draft = MARGIN * costs.draft(max(1, decodes))
        return lambda rows: least + draft * (rows - planned)

    def rate(self, sequence: SequenceState) -> AcceptanceRate:
        """How often the drafts of a request were right so far."""
        rate = self._rates.get(sequence)
        if rate is None:
            rate = self._rates[sequence] = AcceptanceRate(self.overall.value)
        return rate


def before_end(sequence: SequenceState, drafts: list[int]) -> list[int]:
    """The drafts before the first end token: nothing follows that, and it is drawn after them in any case."""
    ends = sequence.eos_token_ids
    return drafts[: next((number for number, token in enumerate(drafts) if token in ends), len(drafts))]
