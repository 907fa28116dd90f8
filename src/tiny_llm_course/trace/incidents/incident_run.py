"""Runs a scheduler through the trace of an incident, on a virtual clock."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from statistics import fmean
from typing import TYPE_CHECKING, Any

from tiny_llm_engine.events import TokenTimes
from tiny_llm_engine.solutions.solution_types import (
    AnswerSequence,
    BlockAllocator,
    Event,
    PackedModel,
    ServingPackage,
)
from tiny_llm_engine.step_loop import StepLoop
from tiny_llm_extensions.make_loop import make_loop

from ..simulation.cost_fit import fit_line
from ..simulation.simulator import Simulation, StuckScheduler
from ..simulation.step_cost import INCIDENTS, StepCost, StepWork
from ..text import counted
from ..workload import SHORT, RequestSpec
from .incident import Bound, Incident, IncidentCase, Sent

if TYPE_CHECKING:
    import numpy as np

BUDGET, SEQS = 512, 8  # tokens of a step, requests that run
UNTIL = 120.0  # seconds: a request that has not ended by then never does
NEVER = 1000 * UNTIL
LATE = 0.010  # seconds until freed blocks come back, where they come late
COUNTS_STEPS = "paced"  # the policy of which no step may be skipped
SIZES = (64, 128, 256, 512, 1024)


class IncidentRun:
    """One run of a policy of `POLICIES` through one trace, with `options` besides those of the case; times in ms."""

    def __init__(
        self,
        names: ServingPackage,
        policy: str,
        case: IncidentCase,
        cost: StepCost = INCIDENTS,
        **options: Any,
    ):
        self.names, self.policy, self.case = names, policy, case
        self.times = {sent.name: TokenTimes(sent.at) for sent in case.requests}
        self.step_tokens: list[int] = []  # prompt tokens of each step
        self.stuck = ""
        self.simulation = Simulation(
            names,
            cost,
            loop=self._loop,
            recorder=self,
            jump=policy != COUNTS_STEPS and case.options.get("mixed_steps", True),
            num_blocks=case.blocks,
            watermark=case.watermark,
            max_model_len=max(sent.prompt + sent.answer for sent in case.requests),
            **self._options(cost, options),
        )
        self.sequences = {sent.name: self._send(sent, i) for i, sent in enumerate(case.requests)}
        try:
            self.simulation.run(UNTIL)
        except StuckScheduler as error:
            self.stuck = str(error)

    def _options(self, cost: StepCost, options: dict[str, Any]) -> dict[str, Any]:
        made = {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS, **self.case.options, **options}
        kind = self.names.POLICIES[self.policy]
        if not kind.cuts_prompts:
            longest = max(sent.prompt + sent.answer for sent in self.case.requests)
            made["max_num_batched_tokens"] = max(longest, made["max_num_batched_tokens"])
        if kind is self.names.SlackScheduler:
            profile = self.names.profile_steps(measured_by(cost), SIZES, fit_line)
            made = {"profile": profile, "latency_target": self.case.target / 1000, **made}
        if self.case.adapters:
            made["can_join"] = self._shares_adapter
        return made

    def _loop(self, model: PackedModel, allocator: BlockAllocator, **options: Any) -> StepLoop:
        kind = self.names.POLICIES[self.policy]
        if self.case.late_frees:
            kind, allocator = late_scheduler(kind), late_allocator(self.names, allocator, self._late)
        return make_loop(self.names, kind, model, allocator, **options)

    def _late(self, come_back: Callable[[], None]) -> None:
        self.simulation.at(self.simulation.clock() + LATE, come_back)

    def _send(self, sent: Sent, number: int) -> AnswerSequence:
        spec = RequestSpec(SHORT, sent.prompt, sent.answer, time=sent.at / 1000, priority=sent.priority)
        sequence = self.simulation.send(spec, number)
        if sent.aborted is not None:
            self.simulation.at(sent.aborted / 1000, sequence.abort)
        return sequence

    def _sent(self, sequence: AnswerSequence) -> Sent:
        return self.case.requests[sequence.request_id]

    def _shares_adapter(self, one: AnswerSequence, other: AnswerSequence) -> bool:
        return self._sent(one).adapter == self._sent(other).adapter

    def arrive(self, sequence: AnswerSequence, time: float) -> None:
        """See `Recorder`."""

    def stretch(self, sequences: Sequence[AnswerSequence], times: "np.ndarray") -> None:
        """Record a token of each of these requests at each of these times."""
        for sequence in sequences:
            self._times(sequence).add_tokens(1000 * times)

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if event.kind == "step":
            self.step_tokens.append(sum(part.tokens for part in event.parts if part.kind == "chunk"))
        elif event.kind == "token":
            self._times(event.request).add_token(1000 * event.time)
        elif event.kind == "finish":
            self._times(event.request).finished_time = 1000 * event.time

    def _times(self, sequence: AnswerSequence) -> TokenTimes:
        return self.times[self._sent(sequence).name]

    # What is measured, of all requests whose names match.

    def _named(self, of: str) -> list[TokenTimes]:
        return [times for name, times in self.times.items() if fnmatchcase(name, of)]

    def _sequences(self, of: str) -> list[AnswerSequence]:
        return [sequence for name, sequence in self.sequences.items() if fnmatchcase(name, of)]

    def ttfts(self, of: str = "*") -> list[float]:
        """Time to first token of each request; the end of the run if it had none."""
        named = self._named(of)
        return [NEVER - times.arrival_time if times.ttft is None else times.ttft for times in named]

    def ttft(self, of: str) -> float:
        return max(self.ttfts(of))

    def mean_ttft(self, of: str) -> float:
        return fmean(self.ttfts(of))

    def gap(self, of: str) -> float:
        """The longest time between two tokens of one answer."""
        return max(times.longest_gap or 0.0 for times in self._named(of))

    def end(self, of: str) -> float:
        """The time when the last of these requests ended."""
        return max(times.finished_time or NEVER for times in self._named(of))

    def preemptions(self, of: str) -> float:
        return max(sequence.num_preemptions for sequence in self._sequences(of))

    def refused(self, of: str) -> float:
        return len([one for one in self._sequences(of) if one.error is not None])

    def prompt_tokens(self, of: str) -> float:
        """The largest number of prompt tokens in one step."""
        return max(self.step_tokens, default=0)

    def broken(self) -> list[str]:
        """The bounds that do not hold, each with the value that was measured."""
        broken = [self.stuck] if self.stuck else []
        open_ = [name for name, sequence in self.sequences.items() if not sequence.is_done]
        if open_ and not self.stuck:
            broken.append(f"{counted(len(open_), 'request')} never finished, {open_[0]} first")
        loop, allocator = self.simulation.loop, self.simulation.loop.allocator
        if not open_ and allocator.num_free + loop.scheduler.num_returning < allocator.num_blocks:
            broken.append("blocks were not freed")
        return broken + [text for bound in self.case.bounds if (text := self._broken(bound))]

    def _broken(self, bound: Bound) -> str:
        seen = getattr(self, bound.what)(bound.of)
        if bound.least <= seen <= bound.most + 1e-6:
            return ""
        limit = f"most {bound.most:,.0f}" if seen > bound.most else f"least {bound.least:,.0f}"
        return f"{bound}: {seen:,.0f}, at {limit}"


def measured_by(cost: StepCost) -> Callable[[int, int], float]:
    """A `measure` for `profile_steps`: seconds of a simulated step, at short contexts."""
    return lambda tokens, decodes: cost.seconds(StepWork(tokens - decodes, 0, 0, decodes, decodes))


def late_scheduler(kind: type) -> type:
    """A scheduler of this kind that knows how many blocks its `late_allocator` will give back."""

    class LateScheduler(kind):
        @property
        def num_returning(self) -> int:
            return len(self.allocator.returning)

    return LateScheduler


def late_allocator(
    names: ServingPackage, like: BlockAllocator, later: Callable[[Callable[[], None]], None]
) -> BlockAllocator:
    """An allocator like this one whose freed blocks come back late, as after a step that still runs on the device."""

    class LateAllocator(names.BlockAllocator):
        def __init__(self):
            self.returning: list[int] = []
            options = {"watermark": like.watermark_blocks / like.num_blocks, "enable_prefix_caching": False}
            super().__init__(like.num_blocks, like.block_size, **options)

        def free(self, blocks: Sequence[int]) -> None:
            before = len(self.blank)
            super().free(blocks)
            late, self.blank[before:] = self.blank[before:], []
            self.returning += late
            if late:
                later(lambda: self._come_back(late))

        def _come_back(self, late: list[int]) -> None:
            self.returning = [block for block in self.returning if block not in late]
            self.blank += late

    return LateAllocator()


def failures(names: ServingPackage, policy: str, one: Incident, **options: Any) -> list[str]:
    """The bounds of an incident that a policy breaks, in any of its cases."""
    return [broken for case in one.cases for broken in IncidentRun(names, policy, case, **options).broken()]
