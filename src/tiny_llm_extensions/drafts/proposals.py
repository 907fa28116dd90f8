"""Which requests of a step have drafts, and how many of them pay. Budget and blocks come later."""

from collections.abc import Callable, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.scheduled import Scheduled

from .drafted import Proposer, SpeculationCounts

MEMORY = 0.95  # weight of earlier drafts in a rate after a step with drafts,
REST = 0.98  # and after one without: slower, so that drafts that did not pay are tried again, but seldom
CUT_OFF = 1.25  # a draft has to pay this multiple of its cost: rate and cost are both estimates


class StepCosts(Protocol):
    """What a step takes, as it was measured before serving."""

    def seconds(self, tokens: int, decodes: int = 0) -> float:
        """Seconds of a step with this many tokens, drafts included, for requests of which `decodes` decode."""
        ...


class AcceptanceRate:
    """The probability that a draft of one request is right, given that all before it are.

    A moving estimate from the request's own drafts. In steps without drafts it moves back to where it began, so that a
    draft is tried from time to time.

    Args:
        prior: where it begins; it counts as one draft.
    """

    def __init__(self, prior: float = 0.7):
        self.prior = prior
        self._right, self._tried = 0.0, 0.0  # drafts, of which earlier ones count less
        self._step = 0  # of the last observation

    def at(self, step: int) -> float:
        """The estimate in a step, from 0 to 1."""
        kept = self._kept(step)
        return (kept * self._right + self.prior) / (kept * self._tried + 1)

    def observe(self, step: int, drafts: int, accepted: int) -> None:
        """Records a step whose first `accepted` drafts were right. Those after a wrong one were not tried."""
        kept = MEMORY * self._kept(step)
        self._right = kept * self._right + accepted
        self._tried = kept * self._tried + min(accepted + 1, drafts)
        self._step = step

    def _kept(self, step: int) -> float:
        return REST ** max(0, step - self._step - 1)


class Proposals:
    """Asks a proposer for the drafts of a plan, and keeps those that pay.

    Args:
        choose_k: how many drafts pay, see Task 4.3.6.
        proposer: guesses the drafts.
        num_speculative_tokens: drafts of one request in one step, at most.
        profile: what a step costs; without it every draft pays.

    Attributes:
        counts: what the drafts have come to.

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
        self.num_speculative_tokens, self.profile = num_speculative_tokens, profile
        self.counts = SpeculationCounts()
        self.overall = AcceptanceRate()  # of all requests: where the estimate of a new one begins
        self._step = 0
        self._rates: WeakKeyDictionary[SequenceState, AcceptanceRate] = WeakKeyDictionary()

    def of(self, plan: Sequence[Scheduled], room: int) -> dict[int, list[int]]:
        """Drafts by the number of their entry in a plan. None of them is empty.

        Args:
            plan: a step without drafts.
            room: drafts of all requests together, at most.
        """
        self._step += 1
        decodes = [number for number, entry in enumerate(plan) if entry.is_decode]
        if not self.may_pay(plan, decodes):
            return {}
        wanted = self.lengths(plan, {number: self.most(plan[number].sequence) for number in decodes}, room)
        asked = [(number, plan[number].sequence, k) for number, k in wanted.items() if k > 0]
        if not asked:
            return {}
        proposed = self.proposer.propose([(sequence, k) for _, sequence, k in asked])
        drafts = {
            number: before_end(sequence, ids)
            for (number, sequence, _), ids in zip(asked, proposed, strict=True)
        }
        lengths = self.lengths(plan, {number: len(ids) for number, ids in drafts.items()}, room)
        return {number: drafts[number][:k] for number, k in lengths.items() if k > 0}

    def may_pay(self, plan: Sequence[Scheduled], decodes: Sequence[int]) -> bool:
        """Whether a draft of the request with the best estimate pays. Under load the others are not asked."""
        seconds, rows = self.seconds_of_rows(plan), sum(entry.size for entry in plan)
        best = max((self.rate(plan[number].sequence).at(self._step) for number in decodes), default=0.0)
        return seconds is None or self.choose_k(best, 1, rows, rows, seconds) > 0

    def most(self, sequence: SequenceState) -> int:
        """How many drafts a request may have: its last token is drawn, so none is guessed for it."""
        return min(self.num_speculative_tokens, sequence.max_new_tokens - len(sequence.tokens) - 1)

    def lengths(self, plan: Sequence[Scheduled], wanted: dict[int, int], room: int) -> dict[int, int]:
        """How many of the drafts that entries want pay in one step; earlier entries choose first."""
        seconds = self.seconds_of_rows(plan)
        rows = useful = sum(entry.size for entry in plan)
        lengths = {}
        for number, most in wanted.items():
            rate, k = self.rate(plan[number].sequence).at(self._step), max(0, min(most, room))
            if seconds is not None:
                k = self.choose_k(rate, k, rows, useful, seconds)
            lengths[number] = k
            rows, room = rows + k, room - k
            useful += sum(rate**i for i in range(1, k + 1))
        return lengths

    def observe(self, sequence: SequenceState, drafts: int, accepted: int) -> None:
        """Records that the first `accepted` of a request's drafts were right."""
        for rate in (self.rate(sequence), self.overall):
            rate.observe(self._step, drafts, accepted)

    def seconds_of_rows(self, plan: Sequence[Scheduled]) -> Callable[[int], float] | None:
        """The seconds of this step by its number of rows, drafts included; None if every draft pays."""
        if self.profile is None or not plan:
            return None
        planned, decodes = sum(entry.size for entry in plan), sum(entry.is_decode for entry in plan)
        return self._seconds(self.profile, planned, decodes)

    def ever_pays(self, profile: StepCosts, most: int) -> bool:
        """Whether a draft pays in any step of 1 to `most` decodes, before one was tried; if not, none ever will be."""
        steps = ((count, self._seconds(profile, count, count)) for count in range(1, most + 1))
        return any(self.choose_k(self.overall.prior, 1, count, count, seconds) for count, seconds in steps)

    def _seconds(self, profile: StepCosts, planned: int, decodes: int) -> Callable[[int], float]:
        least, alone = profile.seconds(planned, decodes), max(1, decodes)
        row = profile.seconds(alone + 1, alone) - profile.seconds(alone, alone)
        draft = CUT_OFF * max(0.0, row + self.proposer.draft_seconds)
        return lambda rows: least + draft * (rows - planned)

    def rate(self, sequence: SequenceState) -> AcceptanceRate:
        """How often the drafts of a request were right so far."""
        rate = self._rates.get(sequence)
        if rate is None:
            rate = self._rates[sequence] = AcceptanceRate(self.overall.at(self._step))
        return rate


def before_end(sequence: SequenceState, drafts: list[int]) -> list[int]:
    """The drafts before the first end token: nothing follows that, and it is drawn after them in any case."""
    ends = sequence.eos_token_ids
    return drafts[: next((number for number, token in enumerate(drafts) if token in ends), len(drafts))]
