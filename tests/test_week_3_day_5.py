"""Week 3 Day 5: latency targets and policies, on a virtual clock.

Oracles: lines and steps worked out by hand; for the incidents, the bounds of the corpus.
"""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_course.trace.incidents.corpus import incident
from tiny_llm_course.trace.incidents.incident import IncidentCase, Sent, group
from tiny_llm_course.trace.incidents.incident_run import IncidentRun, failures
from tiny_llm_course.trace.simulation.cost_fit import fit_line
from tiny_llm_course.trace.simulation.simulator import Simulation, StuckScheduler
from tiny_llm_course.trace.simulation.step_cost import Line
from tiny_llm_course.trace.workload import SHORT, RequestSpec

STEP, TOKEN = 0.010, 0.0001  # seconds of a step, and of a token of a prompt in it


def profile(s, math_line=(STEP, TOKEN), memory=(STEP, 0.0)):
    """A profile with these lines, each (a, b)."""
    return s.StepProfile(Line(*math_line, 0.0), Line(*memory, 0.0))


class Steps:
    """A loop and everything it did.

    Args:
        s: names of the policy.
        name: which policy it is.
        requests: (seconds of arrival, prompt, answer), or with a class at the end.
        options: passed on to `make_loop`.
    """

    def __init__(self, s, name, requests, /, **options):
        self.calls, self.tokens = [], {}
        options = {"max_num_batched_tokens": 512, "max_num_seqs": 8, **options}
        made = {name: options.pop(name) for name in ("num_blocks", "cost") if name in options}

        self.simulation = Simulation(s, policy=name, on_event=self._hear, **made, **options)
        self.prompts = [prompt for _, prompt, *_ in requests]
        self.sequences = [self._send(number, *request) for number, request in enumerate(requests)]

    def _send(self, number, at, prompt, answer, priority="interactive"):
        return self.simulation.send(RequestSpec(SHORT, prompt, answer, time=at, priority=priority), number)

    def _hear(self, event):
        if event.kind == "step":
            chunks = {
                part.requests[0].request_id: part.tokens for part in event.parts if part.kind == "chunk"
            }
            decodes = [
                one.request_id for part in event.parts if part.kind == "decode" for one in part.requests
            ]
            self.calls.append((chunks, sorted(decodes)))
        elif event.kind == "token":
            self.tokens.setdefault(event.request.request_id, []).append(event.time)

    def run(self, until=60.0):
        try:
            self.simulation.run(until)
        except StuckScheduler as error:
            pytest.fail(str(error))
        return self

    def gaps(self, number):
        return [b - a for a, b in pairwise(self.tokens[number])]

    def kinds(self):
        """Each step in a letter: "p" chunks, "d" decodes, "m" both."""
        return "".join("m" if c and d else "p" if c else "d" for c, d in self.calls)

    def most_long(self, threshold):
        """How many prompts were in progress at once, of those with more than `threshold` tokens left."""
        left, begun, most = list(self.prompts), set(), 0
        for chunks, _ in self.calls:
            for number, size in chunks.items():
                left[number] -= size
            begun |= set(chunks)
            most = max(most, sum(left[number] > threshold for number in begun))
        return most


# ---- what a step costs


@pytest.mark.task("3.5.1")
@pytest.mark.parametrize(
    ("tokens", "decodes", "seconds"),
    [(1, 0, 0.012), (100, 0, 0.030), (4, 4, 0.0136), (64, 64, 0.0376), (320, 64, 0.074)],
)
def test_step_seconds_is_the_slower_of_both_lines(s, tokens, decodes, seconds):
    """Arithmetic for all tokens, decodes included, or memory for the decodes: the larger of the two, never the sum."""
    made = s.StepProfile(Line(0.010, 0.0002, 0.0), Line(0.012, 0.0004, 0.0))
    assert made.seconds(tokens, decodes) == pytest.approx(seconds), (
        f"{tokens} tokens, {decodes} of them decodes: {made.seconds(tokens, decodes)}"
    )


@pytest.mark.task("3.5.1")
def test_step_seconds_without_decodes(s):
    """A step of prompts alone still reads the weights: the memory line holds with 0 decodes."""
    made = profile(s, (0.001, 0.0001), (0.010, 0.0))
    assert made.seconds(16) == pytest.approx(0.010), "16 tokens cost less arithmetic than reading the weights"
    assert made.seconds(256) == pytest.approx(0.001 + 0.0256)


@pytest.mark.task("3.5.1")
def test_profile_steps_finds_both_lines(s):
    """Prompts and decodes cost different amounts: each kind has its own line, through its own samples."""
    calls = []

    def measure(tokens, decodes):
        calls.append((tokens, decodes))
        assert decodes in (0, tokens), f"a sample is of one kind: {tokens} tokens, {decodes} decodes"
        return 0.020 + 0.0005 * decodes if decodes else 0.015 + 0.0002 * tokens

    made = s.profile_steps(measure, (16, 64, 256), fit_line)
    assert sorted(calls) == sorted([(n, 0) for n in (16, 64, 256)] + [(n, n) for n in (16, 64, 256)])
    assert (made.math.a, made.math.b) == pytest.approx((0.015, 0.0002)), f"prompts: {made.math}"
    assert (made.memory.a, made.memory.b) == pytest.approx((0.020, 0.0005)), f"decodes: {made.memory}"


@pytest.mark.task("3.5.1")
def test_profile_steps_has_sizes_of_their_own_for_decodes(s):
    """Fewer requests run than a step has tokens: each kind is measured at its own sizes."""
    calls = []
    s.profile_steps(lambda *step: calls.append(step) or 0.01 + 0.001 * step[0], (64, 512), fit_line, (1, 8))
    assert sorted(calls) == [(1, 1), (8, 8), (64, 0), (512, 0)], f"(tokens, decodes), measured: {calls}"


@pytest.mark.task("3.5.1")
def test_profile_steps_uses_the_fit_that_is_passed_in(s):
    """`fit` gets (tokens, 0, seconds) of one kind, and what it returns is the line."""
    seen = []

    def fit(samples):
        seen.append(sorted(samples))
        return SimpleNamespace(a=float(len(seen)), b=0.0)

    made = s.profile_steps(lambda tokens, decodes: tokens + 0.5 * bool(decodes), (8, 2), fit)
    assert seen == [[(2, 0, 2.0), (8, 0, 8.0)], [(2, 0, 2.5), (8, 0, 8.5)]], f"samples of each kind: {seen}"
    assert (made.math.a, made.memory.a) == (1.0, 2.0), "prompts first, then decodes"


@pytest.mark.task("3.5.1")
@pytest.mark.parametrize("sizes", [(), (64,), (64, 64)])
def test_profile_steps_needs_two_sizes(s, sizes):
    """One size is no line; measuring it would be in vain."""
    with pytest.raises(ValueError, match="two different"):
        s.profile_steps(lambda tokens, decodes: 1.0, sizes, fit_line)
    s.profile_steps(lambda tokens, decodes: 1.0 + tokens, (1, 2), fit_line)  # two are enough


# ---- how many tokens a target allows


@pytest.mark.task("3.5.2")
@pytest.mark.parametrize(
    ("seconds", "tile", "most", "tokens"),
    [
        (0.062, 64, 8192, 512),
        (0.0612, 64, 8192, 512),
        (0.0611, 64, 8192, 448),
        (0.062, 1, 8192, 520),
        (0.062, 128, 300, 256),
        (1.0, 64, 512, 512),
        (1.0, 64, 500, 448),
        (0.0163, 64, 8192, 0),
        (math.inf, 64, 1000, 960),
        (-1.0, 64, 512, 0),
    ],
)
def test_tokens_within_is_the_largest_tile_multiple(s, seconds, tile, most, tokens):
    """10 ms and 0.1 ms per token: whole tiles, at most the limit and at most `most`; 0 if not even one fits."""
    found = profile(s).tokens_within(seconds + 1e-9, 0, tile, most)
    assert found == tokens, f"{seconds} s in tiles of {tile}, at most {most}: {found} tokens, not {tokens}"


@pytest.mark.task("3.5.2")
def test_tokens_within_takes_a_step_exactly_at_the_limit(s):
    """ "At most this long": half a second and a quarter per token, which are exact in binary."""
    made = profile(s, (0.5, 0.25))
    for seconds, tokens in ((1.5, 4), (1.25, 3), (0.75, 1)):
        found = made.tokens_within(seconds, 0, 1, 8)
        assert found == tokens, f"{tokens} tokens take exactly {seconds} s, which is in time: {found}"


@pytest.mark.task("3.5.2")
def test_tokens_within_counts_the_decodes(s):
    """Decodes are among the tokens, and reading their keys may take longer than all arithmetic."""
    made = profile(s, (0.010, 0.0001), (0.010, 0.002))
    assert made.tokens_within(0.0501, 20, 64, 8192) == 384, "20 decodes take 50 ms, as 400 tokens do"
    assert made.tokens_within(0.0499, 20, 64, 8192) == 0, (
        "the decodes alone take 50 ms: no step is fast enough"
    )


@pytest.mark.task("3.5.2")
def test_token_budget_is_predicted_then_checked_by_running(s):
    """A measured step that is slower than predicted makes the budget smaller, tile by tile, until one is in time."""
    ran = []

    def measure(tokens, decodes):
        ran.append((tokens, decodes))
        return 0.010 + 0.00015 * tokens  # half more than the profile says

    found = profile(s).token_budget(0.062, 64, decodes=8, measure=measure)
    assert found == 320, f"10 ms + 0.15 ms · 320 is 58 ms, and 384 would be 67.6: {found}"
    assert ran == [(512, 8), (448, 8), (384, 8), (320, 8)], (
        f"from the prediction down, with the decodes: {ran}"
    )


@pytest.mark.task("3.5.2")
def test_token_budget_keeps_what_was_predicted_if_it_holds(s):
    """A step in time is measured once, and the budget does not grow: the target is a promise, not a goal."""
    ran = []
    found = profile(s).token_budget(0.062, 64, measure=lambda *step: ran.append(step) or 0.020)
    assert (found, ran) == (512, [(512, 0)]), f"{found} after {ran}"
    assert profile(s).token_budget(0.062, 64) == 512, "without `measure` the prediction is the answer"
    assert profile(s).token_budget(0.062, 64, most=200) == 192


@pytest.mark.task("3.5.2")
def test_token_budget_predicts_with_the_decodes(s):
    """The same target allows nothing, not even a measurement, when the decodes alone take longer."""
    made, ran = profile(s, memory=(0.010, 0.002)), []
    with pytest.raises(ValueError, match="higher target"):
        made.token_budget(0.049, 64, decodes=20, measure=lambda *step: ran.append(step) or 0.001)
    assert ran == [], f"20 decodes take 50 ms, so nothing is left to run: {ran}"
    assert made.token_budget(0.051, 64, decodes=20) == 384, "they take 50 ms, and so do 400 tokens"


@pytest.mark.task("3.5.2")
def test_token_budget_takes_a_step_exactly_at_the_target(s):
    """ "At most the target" holds for a measured step as well."""
    found = profile(s).token_budget(0.062, 64, measure=lambda tokens, decodes: 0.062 / 512 * tokens)
    assert found == 512, f"512 tokens take exactly 62 ms: {found}"


@pytest.mark.task("3.5.2")
def test_token_budget_says_when_no_step_is_fast_enough(s):
    """A target below one tile, predicted or measured, is an error that names the way out."""
    with pytest.raises(ValueError, match="higher target"):
        profile(s).token_budget(0.012, 64)
    with pytest.raises(ValueError, match="higher target"):
        profile(s).token_budget(0.062, 64, measure=lambda *step: 1.0)


# ---- two policies of the literature


@pytest.mark.task("3.5.3")
def test_orca_computes_a_whole_prompt_beside_the_decodes(s):
    """One step has both: a token of everybody who decodes, and all of a prompt that has arrived."""
    run = Steps(
        s, "orca", [(0, 16, 20), (0.05, 700, 2)], max_num_batched_tokens=1024, max_model_len=1024
    ).run()
    both = [call for call in run.calls if 1 in call[0]]
    assert both == [({1: 700}, [0])], f"the prompt in one piece, beside the decode: {both}"


@pytest.mark.task("3.5.3")
def test_orca_lets_requests_join_and_leave_at_every_step(s):
    """Nobody waits for a batch to end, and no decode is left out of a step."""
    run = Steps(
        s,
        "orca",
        [(0, 16, 9), (0.025, 30, 3), (0.035, 30, 3)],
        max_num_batched_tokens=1024,
        max_model_len=1024,
    ).run()
    assert len(run.tokens[0]) == 9
    assert max(run.gaps(0)) < 0.020, f"every step serves the request that runs: {run.gaps(0)}"
    assert run.tokens[1][0] < 0.06 and run.tokens[2][0] < 0.07, "they join in the next step"
    assert "m" in run.kinds() and "p" not in run.kinds()[1:], f"prompts share steps of decodes: {run.kinds()}"


@pytest.mark.task("3.5.3")
def test_orca_plans_the_decodes_before_the_prompts(s):
    """Decodes take their tokens of the budget first; a prompt that does not fit beside them waits for an end."""
    requests = [(0, 16, 12), (0, 16, 6), (0.05, 1023, 1)]
    run = Steps(s, "orca", requests, max_num_batched_tokens=1024, max_model_len=1024).run()
    sizes = [sum(chunks.values()) + len(decodes) for chunks, decodes in run.calls]
    assert max(sizes) == 1024, f"the budget of a step is 1,024, not {max(sizes)}: plan the decodes first"


@pytest.mark.task("3.5.3")
@pytest.mark.parametrize("between", [1, 4])
def test_paced_prefill_spaces_its_steps_of_chunks(s, between):
    """After a step of chunks come so many of decodes, and never both in one."""
    run = Steps(s, "paced", [(0, 16, 60), (0.05, 2048, 2)], decodes_between=between).run()
    kinds, first = run.kinds(), next(i for i, call in enumerate(run.calls) if 1 in call[0])
    assert "m" not in kinds, f"a step has one kind: {kinds}"
    assert kinds[first:].startswith(("p" + "d" * between) * 4), f"{between} between: {kinds[first:]}"


@pytest.mark.task("3.5.3")
def test_paced_prefill_does_not_wait_when_nobody_decodes(s):
    """Without a request that is ready to decode a pause would be an idle device."""
    run = Steps(s, "paced", [(0, 2048, 3)], decodes_between=4).run()
    assert run.kinds() == "ppppdd", f"chunk after chunk, then the decodes: {run.kinds()}"


@pytest.mark.task("3.5.3")
def test_paced_prefill_begins_at_once_when_no_prompt_was_computed_lately(s):
    """The pause is between two steps of chunks; a prompt that arrives later finds none."""
    run = Steps(s, "paced", [(0, 16, 40), (0.25, 100, 1)], decodes_between=16).run()
    step = next(i for i, call in enumerate(run.calls) if 1 in call[0])
    assert run.tokens[1][0] - 0.25 < 0.035, (
        f"step {step} of {run.kinds()}: it waits for the running one alone"
    )


@pytest.mark.task("3.5.3")
def test_paced_prefill_makes_those_that_arrive_wait_for_the_pause(s):
    """A prompt that arrives in a pause does not end it: a stream of short prompts would leave no decodes between."""
    requests = [(0, 16, 60), *[(0.02 + 0.01 * i, 16, 8) for i in range(6)]]
    kinds = Steps(s, "paced", requests, decodes_between=4).run().kinds()
    assert "m" not in kinds and "pp" not in kinds, f"a step has one kind, and a pause after chunks: {kinds}"
    between = [len(run) for run in kinds.strip("d").split("p") if run]
    assert between and min(between) >= 4, f"4 steps of decodes between two of chunks, not {between}: {kinds}"


@pytest.mark.task("3.5.3")
def test_paced_prefill_goes_on_decoding_without_prompts(s):
    """Decodes are not limited to their pause when no prompt waits."""
    assert Steps(s, "paced", [(0, 16, 12)], decodes_between=2).run().kinds() == "p" + "d" * 11


# ---- short first, with ageing


def waiting(s, left, since=0.0, priority="interactive", preempted=0, computed=0):
    made = SimpleNamespace(num_uncomputed=left, waiting_since=since, priority=priority, is_done=False)
    made.num_preemptions, made.num_computed, made.tokens = preempted, computed, []
    made.num_prompt_tokens = left + computed
    made.prompt_tokens = made.known_tokens = [1] * made.num_prompt_tokens
    return made


def order(queue, requests):
    for one in requests:
        queue.add(one)
    numbers = {id(one): number for number, one in enumerate(requests)}
    return [numbers[id(queue.schedule_next())] for _ in requests]


@pytest.mark.task("3.5.4")
def test_aged_queue_short_first(s):
    """Of prompts that arrive together the shorter goes first; of equals the first."""
    requests = [waiting(s, tokens) for tokens in (900, 100, 500, 100)]
    assert order(s.AgedQueue(0.001), requests) == [1, 3, 2, 0]


@pytest.mark.task("3.5.4")
@pytest.mark.parametrize(("ageing", "overtakers"), [(1.0, 8), (2.0, 4), (0.5, 17)])
def test_aged_queue_bounds_how_many_go_before_a_long_prompt(s, ageing, overtakers):
    """Short prompts every 0.1 s go before a long one only if they arrive within its extra work / ageing."""
    queue = s.AgedQueue(0.001, ageing=ageing)
    long = waiting(s, 1000)
    shorts = [waiting(s, 140, since=0.1 * i) for i in range(1, 40)]
    found = order(queue, [long, *shorts]).index(0)
    assert found == overtakers, f"0.86 s more work, ageing {ageing}: {found} go before it, not {overtakers}"


@pytest.mark.task("3.5.4")
def test_aged_queue_orders_by_what_is_left(s):
    """A prompt that is nearly done counts as short: its rest decides, and so does a cached beginning."""
    queue = s.AgedQueue(0.001)
    begun, short = waiting(s, 40, computed=900), waiting(s, 50)
    assert queue.key(begun) < queue.key(short), (
        "40 of 940 tokens are left of the one, and all 50 of the other: the work is what is left, not the whole prompt"
    )


@pytest.mark.task("3.5.4")
def test_aged_queue_batch_counts_as_later(s):
    """A batch request goes after interactive ones, but only those of the next `batch_delay` seconds."""
    queue = s.AgedQueue(0.001, batch_delay=2.0)
    batch = waiting(s, 100, priority="batch")
    others = [waiting(s, 100, since=0.5 * i) for i in range(8)]
    assert order(queue, [batch, *others]).index(0) == 4, (
        "those of 0, 0.5, 1 and 1.5 s go first; at 2 s it is its turn"
    )
    ageing = s.AgedQueue(0.001, ageing=4.0, batch_delay=2.0)
    assert order(ageing, [batch, *others]).index(0) == 4, (
        "the delay is in seconds of waiting, whatever the ageing"
    )


@pytest.mark.task("3.5.4")
def test_aged_queue_a_preempted_request_has_waited_already(s):
    """It goes before everybody who came after it, long as it is: its prompt was computed once."""
    queue = s.AgedQueue(0.001)
    preempted = waiting(s, 5000, since=1.0, preempted=1)
    assert order(queue, [waiting(s, 1, since=1.5), preempted, waiting(s, 100)]) == [2, 1, 0]


# ---- slack


def slack_run(s, requests, target=0.062, **options):
    return Steps(s, "slack", requests, profile=profile(s), latency_target=target, **options)


@pytest.mark.task("3.5.5")
def test_slack_is_that_of_the_most_urgent_request(s):
    """A request is due `latency_target` after its last token; only those that are ready to decode count."""
    scheduler = slack_run(s, []).simulation.loop.scheduler
    assert scheduler.slack() == math.inf, "nobody decodes, so nobody waits"
    scheduler.running = [
        SimpleNamespace(is_decoding=ready, token_time=time)
        for ready, time in ((True, 2.0), (True, 1.5), (False, 1.0))
    ]
    scheduler.state.now = 1.52
    assert scheduler.slack() == pytest.approx(0.042), f"due at 1.562: {scheduler.slack()} s are left at 1.52"
    scheduler.state.now = 1.6
    assert scheduler.slack() == pytest.approx(-0.038), "it is late already"
    scheduler.running = scheduler.running[1::-1]
    assert scheduler.slack() == pytest.approx(-0.038), "the one that is due first, anywhere in `running`"


@pytest.mark.task("3.5.5")
@pytest.mark.parametrize("budget", [512, 2048, 8192])
@pytest.mark.parametrize("target", [0.035, 0.062, 0.12])
def test_slack_chunks_follow_the_target_and_not_the_budget(s, budget, target):
    """Beside a decode a step has as many tokens as fit into the target, in whole tiles; no gap is longer."""
    run = slack_run(s, [(0, 16, 120), (0.05, 4096, 1)], target, max_num_batched_tokens=budget).run()
    chunks = [call[0][1] for call in run.calls if 1 in call[0] and call[1]]
    within = int((target - STEP) / TOKEN + 1e-6) // 64 * 64
    assert max(chunks) == min(within, budget) - 1, (
        f"{target} s allow {within} tokens, one is the decode's: {chunks}"
    )
    assert max(run.gaps(0)) <= target, f"{max(run.gaps(0)):.4f} s between two tokens, the target is {target}"


@pytest.mark.task("3.5.5")
def test_slack_is_not_spent_when_nobody_waits(s):
    """While nobody decodes a prompt gets the whole budget: chunks would only make it slower."""
    run = slack_run(s, [(0, 4096, 2)], target=0.02, max_num_batched_tokens=2048).run()
    assert run.calls[:2] == [({0: 2048}, []), ({0: 2048}, [])], run.calls


@pytest.mark.task("3.5.5")
def test_slack_always_leaves_a_tile_for_prompts(s):
    """Late decodes do not starve prompts: a step has at least a tile of them, more than the decodes' tokens."""
    run = slack_run(s, [*[(0, 16, 80)] * 40, (0.2, 640, 1)], 0.0205, max_num_seqs=41).run()
    chunks = [call[0][40] for call in run.calls if 40 in call[0]]
    assert chunks and min(chunks[:-1]) >= 64, f"one tile is 64 tokens: {chunks}"
    tight = slack_run(s, [(0, 16, 100), (0.1, 640, 1)], 0.0175).run()
    assert len(tight.tokens[1]) == 1 and min(c[0][1] for c in tight.calls if 1 in c[0]) >= 63


@pytest.mark.task("3.5.5")
def test_slack_in_steps_of_one_kind_counts_the_decodes_after_the_chunk(s):
    """A decode that waits for a chunk waits for its own step as well: both fit into the target."""
    run = slack_run(s, [(0, 16, 100), (0.05, 4096, 1)], 0.133, mixed_steps=False).run()
    assert "m" not in run.kinds(), f"one kind per step: {run.kinds()}"
    assert "ppd" in run.kinds() and "ppp" not in run.kinds()[1:], f"two chunks, then a decode: {run.kinds()}"
    assert max(run.gaps(0)) <= 0.133, f"{max(run.gaps(0)):.4f} s"
    for target in (
        0.125,
        0.050,
    ):  # two chunks fit, and then the decodes do not; and a chunk that has to be cut
        run = slack_run(s, [(0, 16, 100), (0.05, 4096, 1)], target, mixed_steps=False).run()
        assert max(run.gaps(0)) <= target, f"{max(run.gaps(0)):.4f} s, the target is {target}"


@pytest.mark.task("3.5.5")
@pytest.mark.parametrize(
    ("mixed", "budget", "decodes", "target", "tokens"),
    [
        (True, 500, 0, 0.062, 500),  # nobody waits: no whole tiles either
        (True, 512, 20, 0.0501, 364),  # 384 tokens in time, 20 of them decodes
        (True, 512, 20, 0.0499, 64),  # the decodes alone are late: a tile all the same
        (True, 60, 20, 0.0499, 40),  # but no more than the budget has beside them
        (False, 512, 20, 0.110, 448),  # the decodes need 50 ms after the chunk
    ],
)
def test_prompt_budget_counts_what_the_decodes_cost(s, mixed, budget, decodes, target, tokens):
    """20 decodes read memory for 50 ms, with 12 ms of arithmetic: prompts get what that leaves of the target."""
    made = profile(s, memory=(STEP, 0.002))
    options = {"max_num_batched_tokens": budget, "max_num_seqs": 20, "mixed_steps": mixed, "tile": 16}
    scheduler = Steps(s, "slack", [], profile=made, latency_target=1.0, **options).simulation.loop.scheduler
    scheduler.latency_target, scheduler.tile, scheduler.state.now = target, 64, 0.0
    scheduler.running = [SimpleNamespace(is_decoding=True, token_time=0.0) for _ in range(decodes)]
    plan = list(scheduler.running) if mixed else []
    found = scheduler.prompt_budget(plan)
    assert found == tokens, (
        f"mixed_steps={mixed}, {decodes} decodes, {target} s: {found} tokens of prompts, not {tokens}"
    )


@pytest.mark.task("3.5.5")
@pytest.mark.parametrize("number", [1, 3, 4, 5, 19])
def test_slack_passes_an_incident(s, number):
    """A public incident of a serving engine, as a small trace with the bound that was broken there."""
    broken = failures(s, "slack", incident(number))
    assert not broken, f"{incident(number).title}: {'; '.join(broken)}"


@pytest.mark.task("3.5.5")
def test_long_prefill_threshold_and_max_partial_prefills_bound_who_is_in_progress(s):
    """Ever shorter prompts interrupt each other: only so many of those that count as long are in progress at a time."""
    requests = [(0.05 * i, size, 1) for i, size in enumerate((6000, 4800, 3700, 2700, 1800, 1000))]

    assert slack_run(s, requests, ageing=0.1, max_partial_prefills=8).run().most_long(512) > 3
    bounded = slack_run(s, requests, ageing=0.1, max_partial_prefills=2).run()
    assert bounded.most_long(512) == 2, f"{bounded.most_long(512)} long prompts in progress at once"
    assert all(one.finish_reason == "length" for one in bounded.sequences), (
        "the others wait, and are not forgotten"
    )
    free = slack_run(s, requests, ageing=0.1, max_partial_prefills=2, long_prefill_threshold=10_000).run()
    assert free.most_long(512) > 3, "below the threshold nobody counts as long"


# ---- preemption by class


def running(*kinds):
    return [
        SimpleNamespace(name=name, priority=priority, num_preemptions=count)
        for name, priority, count in kinds
    ]


@pytest.mark.task("3.5.4")
def test_victims_are_batch_requests_the_youngest_first(s):
    """Never an interactive one, nobody above the limit, and those who gave way before come last."""
    scheduler = slack_run(s, [], max_preemptions=2).simulation.loop.scheduler
    scheduler.running = running(
        ("old", "batch", 0),
        ("chat", "interactive", 0),
        ("twice", "batch", 2),
        ("once", "batch", 1),
        ("young", "batch", 0),
    )
    found = [one.name for one in scheduler.victims()]
    assert found == ["young", "old", "once"], f"least preempted, of those the youngest: {found}"
    assert scheduler.running[0].name == "old", "nobody is removed here"


@pytest.mark.task("3.5.4", after="3.5.5")
def test_an_interactive_request_takes_the_slot_of_a_batch_request(s):
    """Incident 13: it runs in the next step, one victim per request, and equals leave each other alone."""
    broken = failures(s, "slack", incident(13))
    assert not broken, "; ".join(broken)


@pytest.mark.task("3.5.4", after="3.5.5")
@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_request_makes_way_only_so_often(s, most):
    """With endless interactive requests a batch one is preempted `max_preemptions` times, and then ends."""
    requests = [(0, 16, 60, "batch"), *[(0.1 * i, 16, 4) for i in range(1, 30)]]
    run = slack_run(s, requests, max_num_seqs=1, max_preemptions=most).run()
    assert run.sequences[0].num_preemptions == most, run.sequences[0].num_preemptions
    assert all(len(one.tokens) == one.max_new_tokens for one in run.sequences), "all have the whole answer"


@pytest.mark.task("3.5.4", after="3.5.5")
def test_blocks_are_taken_from_batch_requests(s):
    """Without a free block an interactive request takes those of the batch request, and nobody else's."""
    requests = [(0, 320, 40), (0, 320, 80, "batch"), (0.3, 320, 10)]
    run = slack_run(s, requests, num_blocks=50).run()
    assert [one.num_preemptions for one in run.sequences] == [0, 1, 0]
    assert run.tokens[2][0] < 0.4, f"first token at {run.tokens[2][0]:.2f} s"


# ---- all of it, in general form


@st.composite
def traces(draw):
    """Requests of both classes, with long and short prompts, in memory that may be short."""
    names = iter(range(20))
    return [
        Sent(
            f"r{next(names)}",
            draw(st.integers(0, 400)),
            draw(st.sampled_from([1, 16, 100, 700, 2000])),
            draw(st.sampled_from([1, 5, 40])),
            draw(st.sampled_from(["interactive", "interactive", "batch"])),
        )
        for _ in range(draw(st.integers(1, 9)))
    ]


@pytest.mark.task("3.5.4", after="3.5.5")
@settings(max_examples=25, deadline=None)
@given(
    requests=traces(),
    blocks=st.sampled_from([130, 200, 2000]),
    seqs=st.sampled_from([1, 3, 8]),
    mixed=st.booleans(),
)
def test_bounds_hold_for_random_traces(s, requests, blocks, seqs, mixed):
    """Everybody ends, blocks come back, steps stay in the budget, and no answer pauses longer than the target.

    Unless it was preempted; for its class a request makes way at most `max_preemptions` times.
    """
    target = 62.0 if mixed else 133.0
    case = IncidentCase(
        tuple(requests),
        (),
        target=target,
        blocks=blocks,
        options={"max_num_seqs": seqs, "mixed_steps": mixed},
    )
    run = IncidentRun(s, "slack", case)
    assert not run.broken(), run.broken()
    assert run.prompt_tokens("*") <= 512
    for sent in requests:
        if not run.sequences[sent.name].num_preemptions:
            assert run.gap(sent.name) <= target + 1e-6, f"{sent}: {run.gap(sent.name):.1f} ms"


@pytest.mark.task("3.5.5")
@settings(max_examples=10, deadline=None)
@given(tokens=st.integers(600, 6000), every=st.integers(20, 80), size=st.integers(50, 500))
def test_a_long_prompt_has_a_bounded_wait(s, tokens, every, size):
    """Whatever short prompts arrive, and for how long: only those of the first w / ageing seconds go before it.

    After them it has at least half of every step, so twice its own work w is left, and each step costs its 10 ms.
    """
    requests = (Sent("L", 0, tokens, 1), *group(150, Sent("s", 5, size, 1), every=every))
    run = IncidentRun(s, "slack", IncidentCase(requests, ()))
    window = 0.1 * tokens / 0.5
    before = 0.1 * size * window / every
    most = 1.25 * (max(window, before) + 2 * 0.1 * tokens) + 5 * 61.2
    assert run.ttft("L") <= most, f"{run.ttft('L'):,.0f} ms for {tokens} tokens, at most {most:,.0f}"
