"""Asynchronous scheduling: every answer is that of the request alone, whatever ends, waits or fails meanwhile."""

from contextlib import suppress
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from support.pipeline import FakeDevice, Pipeline
from tiny_llm_course.trace.simulation.step_cost import Line
from tiny_llm_ref import serving

POLICIES = ["hybrid", *serving.POLICIES]
LOADS = st.lists(
    st.tuples(
        st.integers(1, 20), st.integers(1, 8), st.booleans(), st.sampled_from(["interactive", "batch"])
    ),
    min_size=1,
    max_size=7,
)
PROFILE = serving.StepProfile(Line(0.0, 1.0, 0.0), Line(0.0, 1.0, 0.0))  # the fake device: a second per token
ENDS = st.sampled_from([0, 3, 6])  # one text in so many ends at each token


class Ahead(Pipeline):
    """A scheduler that runs ahead, with requests of which some must wait for each token.

    Attributes:
        late: entries in flight whose requests have ended, by request.
    """

    def __init__(self, policy="hybrid", blocks=64, whole=False, ends=0, **options):
        cuts = not whole and serving.POLICIES.get(policy, serving.HybridScheduler).cuts_prompts
        options = {"max_num_batched_tokens": 8 if cuts else 64, "enable_chunked_prefill": cuts, **options}
        if policy == "slack":
            options |= {"profile": PROFILE, "tile": 4, "enable_chunked_prefill": True}
        self.late: dict[int, set[int]] = {}
        super().__init__(
            serving,
            2,
            blocks,
            policy=policy,
            async_scheduling=True,
            device=FakeDevice,
            model={"ends": ends},
            **options,
        )

    def check_in_flight(self):
        """Also notes the entries of requests that have ended: nobody waits for them."""
        super().check_in_flight()
        for each in self.in_flight:
            for entry in each.plan:
                if entry.sequence.is_done:
                    self.late.setdefault(entry.sequence.request_id, set()).add(id(each))

    def add_all(self, loads):
        """Requests by size, limit, whether each token needs the one before it, and class."""
        for size, answer, waits, priority in loads:
            with suppress(OSError):
                self.add(size, answer, priority=priority, ignore_eos=False, presence_penalty=float(waits))

    def check(self):
        """Answers, blocks, and at most one late entry per request that has ended."""
        for made in self.sequences:
            if made.finish_reason not in ("abort", "error"):
                assert made.tokens == self.answer_of(made), made.request_id
        assert self.allocator.num_free == self.allocator.num_blocks
        assert all(len(steps) == 1 for steps in self.late.values()), self.late


@given(
    LOADS,
    st.sampled_from(POLICIES),
    st.integers(8, 24),
    st.booleans(),
    st.booleans(),
    ENDS,
    st.dictionaries(st.integers(0, 30), st.integers(0, 6), max_size=4),
    st.sets(st.integers(1, 90), max_size=3),
    st.sets(st.integers(0, 20), max_size=2),
)
def test_aborts_failures_and_listeners_that_raise_change_no_other_answer(
    loads, policy, blocks, caching, whole, ends, aborts, raising, failing
):
    """A step that fails ends the requests of both steps in flight: the second one read what the first had drawn."""
    run, heard = Ahead(policy, blocks, whole, ends, caching=caching), []
    run.model.fails = dict.fromkeys(failing, RuntimeError("the device is gone"))

    def listener(event):
        heard.append(event)
        if len(heard) in raising:
            raise OSError("the reader hung up")

    run.loop.events.listeners.append(listener)
    run.add_all(loads)
    for number in range(500):
        if not run.loop.has_work_remaining():
            break
        if aborts.get(number, 99) < len(run.sequences):
            run.sequences[aborts[number]].abort()
        with suppress(OSError, RuntimeError):
            run.loop.step()
        assert len(run.loop.calls.in_flight) == len(run.model.on_the_way)
    run.finish()
    assert all(made.is_done for made in run.sequences)
    run.check()


@given(LOADS, LOADS, st.sampled_from(POLICIES), ENDS, st.integers(0, 20), st.booleans())
def test_however_it_ends_nothing_is_in_flight(loads, later, policy, ends, steps, closes):
    """After an abort of all, later requests in the same blocks have their answers; after a close none is taken."""
    run = Ahead(policy, 24, ends=ends, caching=True)
    run.add_all(loads)
    for _ in range(steps):
        run.loop.step()
    if closes:
        run.loop.close()
    else:
        run.loop.abort_all()
    assert all(made.is_done for made in run.sequences)
    assert not run.model.on_the_way and run.allocator.num_free == run.allocator.num_blocks
    if not closes:
        run.add_all(later)
        run.finish()
    run.check()


def test_the_time_of_a_step_begins_when_the_one_before_it_ends():
    """Steps in flight overlap, and a chunker or a profile would see each of them twice."""
    run = Ahead()
    run.add(20, 8)
    run.finish()
    spans = [(event.start, event.time) for event in run.events if event.kind == "step"]
    assert all(start >= before for (_, before), (start, _) in pairwise(spans))
