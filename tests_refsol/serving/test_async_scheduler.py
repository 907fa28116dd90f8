"""Asynchronous scheduling: every answer is that of the request alone, whatever ends, waits or fails meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from support.pipeline import FakeDevice, Pipeline
from tiny_llm_ref import serving

POLICIES = ["hybrid", *(name for name in serving.POLICIES if name != "slack")]
LOADS = st.lists(
    st.tuples(
        st.integers(1, 20), st.integers(1, 8), st.booleans(), st.sampled_from(["interactive", "batch"])
    ),
    min_size=1,
    max_size=7,
)


class Async(Pipeline):
    """A scheduler that runs ahead, with requests of which some must wait for each token."""

    def __init__(self, policy="hybrid", blocks=64, **options):
        def make(model, allocator, **more):
            return serving.make_scheduler(policy, model, allocator, async_scheduling=True, **more)

        self.late: dict[tuple[int, int], object] = {}
        super().__init__(serving, 2, blocks, scheduler=make, device=FakeDevice, **options)

    def check_in_flight(self):
        """Also notes the entries of requests that have ended: nobody waits for them."""
        super().check_in_flight()
        for each in self.scheduler.in_flight:
            for entry in each.plan:
                if entry.sequence.is_done:
                    self.late[entry.sequence.request_id, id(each)] = each

    def check(self):
        """Answers, blocks, and at most one late entry per request."""
        self.check_answers()
        requests = [request for request, _ in self.late]
        assert len(requests) == len(set(requests)), f"late more than once: {requests}"


@given(
    LOADS,
    st.sampled_from(POLICIES),
    st.integers(8, 24),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0, 3, 6]),
)
def test_answers_are_those_of_the_requests_alone(loads, policy, blocks, caching, whole, ends):
    queue = serving.PriorityScheduler()
    cuts = not whole and serving.POLICIES.get(policy, serving.HybridScheduler).cuts_prompts
    budget = 8 if cuts else 64
    options = {"enable_chunked_prefill": not whole, "max_num_batched_tokens": budget, "queue": queue}
    run = Async(policy, blocks, caching=caching, model={"ends": ends}, **options)
    for size, answer, waits, priority in loads:
        run.add(size, answer, priority=priority, ignore_eos=False, presence_penalty=float(waits))
    run.finish()
    run.check()
