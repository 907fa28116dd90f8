"""Routing to replicas: the choice, what the router remembers, and incident 16 of the corpus in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.routing_incident import ROUTED_CASES, THREADS, share_of_one
from tiny_llm_ref import serving as s

BLOCK = 4
TWO = ("a", "b")


def loads(*names, **options):
    made = s.ReplicaLoads(BLOCK, **options)
    made.set_replicas(names or TWO)
    return made


# The three functions.


def test_full_blocks_have_names_and_a_tail_has_none():
    assert [len(s.prefix_hashes(range(length), BLOCK)) for length in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_the_names_are_those_of_the_prefix_cache():
    first = s.block_hash(None, [5, 6, 7, 8])
    assert s.prefix_hashes([5, 6, 7, 8, 1, 2, 3, 4], BLOCK) == [first, s.block_hash(first, [1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("seen", "tokens"), [("", 0), ("a", 4), ("ab", 8), ("abc", 12), ("bc", 0), ("ac", 4), ("xyz", 0)]
)
def test_only_an_unbroken_run_from_the_first_block_is_cached(seen, tokens):
    hashes = [letter.encode() for letter in "abc"]
    assert s.cached_tokens(hashes, {letter.encode() for letter in seen}, BLOCK) == tokens


def test_a_prompt_without_a_full_block_has_nothing_cached():
    assert s.cached_tokens([], {b"a"}, BLOCK) == 0


def test_no_replica_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no replica is running"):
        s.choose_replica({}, {})


# What the router remembers.


def test_a_request_counts_from_the_moment_it_is_sent():
    made = loads()
    assert made.send(1, range(10), 5) == "a"
    assert made.outstanding == {"a": 15, "b": 0}
    assert made.send(2, range(20, 30), 5) == "b"


def test_a_cached_prefix_is_not_counted():
    made = loads("a")
    made.send(1, range(10), 5)
    made.finish(1)
    made.send(2, range(10), 5)
    assert made.outstanding == {"a": 10 - 8 + 5}, "two full blocks are cached"


def test_an_answer_without_a_limit_counts_as_the_estimate():
    made = loads(answer_estimate=7)
    made.send(1, range(3), None)
    assert sum(made.outstanding.values()) == 10


def test_a_request_that_ends_gives_its_tokens_back_once():
    made = loads()
    made.send(1, range(10), 5)
    made.finish(1)
    made.finish(1)
    made.finish("unknown")
    assert made.outstanding == {"a": 0, "b": 0}


def test_a_request_that_is_sent_again_counts_once():
    made = loads()
    assert made.send(1, range(10), 5) == "a"
    assert made.send(1, range(10), 5, among=["b"]) == "b"
    assert made.outstanding == {"a": 0, "b": 15} and made.replica_of(1) == "b"


def test_a_dead_replica_takes_its_tokens_and_its_prefixes_with_it():
    made = loads()
    made.send(1, range(10), 5)
    made.set_replicas(["b", "c"])
    assert made.outstanding == {"b": 0, "c": 0} and made.replica_of(1) is None
    assert made.send(1, range(10), 5) in ("b", "c")
    assert sum(made.outstanding.values()) == 15, "no replica has the prefix any more"


def test_a_replica_that_stays_keeps_what_is_known_about_it():
    made = loads()
    made.send(1, range(10), 5)
    made.set_replicas(["a", "b", "c"])
    assert made.outstanding == {"a": 15, "b": 0, "c": 0}


def test_only_so_many_blocks_are_remembered_and_the_front_of_a_prompt_longest():
    made = loads("a", max_blocks=2)
    prompt = list(range(12))
    made.send(1, prompt, 1)
    made.finish(1)
    made.send(2, prompt, 1)
    assert made.outstanding == {"a": 12 - 8 + 1}, "the first two of three blocks"


def test_max_blocks_of_zero_is_no_affinity():
    made = loads("a", max_blocks=0)
    made.send(1, range(8), 1)
    made.finish(1)
    made.send(2, range(8), 1)
    assert made.outstanding == {"a": 9}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"answer_estimate": 0}, "answer_estimate is 0"),
        ({"max_blocks": -1}, "max_blocks is -1"),
    ],
)
def test_a_number_out_of_range_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        s.ReplicaLoads(**options)


PROMPTS = st.lists(st.integers(0, 1), max_size=16)
SENDS = st.tuples(st.just("send"), st.integers(0, 9), PROMPTS, st.integers(1, 20))
FINISHES = st.tuples(st.just("finish"), st.integers(0, 9))
REPLICAS = st.tuples(st.just("set_replicas"), st.sets(st.sampled_from("abcd"), min_size=1))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(SENDS, FINISHES, REPLICAS), max_size=40))
def test_outstanding_tokens_are_those_of_open_requests_and_never_negative(actions):
    made, whole = loads(), {}
    for name, first, *others in actions:
        getattr(made, name)(first, *others)
        if name == "send":
            whole[first] = len(others[0]) + others[1]
        open_ = [number for number in range(10) if made.replica_of(number) is not None]
        assert all(tokens >= 0 for tokens in made.outstanding.values())
        assert sum(made.outstanding.values()) <= sum(whole[number] for number in open_)
        assert set(made.outstanding) == set(made.replicas) >= {made.replica_of(number) for number in open_}
    for number in range(10):
        made.finish(number)
    assert not any(made.outstanding.values())


# Incident 16, with the policies that caused it and others that seem to do.


class RoundRobin:
    def set_replicas(self, names):
        self.names, self.sent = list(names), 0

    def send(self, request, prompt, max_tokens):
        self.sent += 1
        return self.names[self.sent % len(self.names)]

    def finish(self, request):
        pass


class CountsWhenTheAnswerStarts(RoundRobin):
    """sgl-project/sglang#27547: until a first token is there, all replicas look idle."""

    def set_replicas(self, names):
        self.names, self.cost, self.started_on, self.sent_to = list(names), {}, {}, {}

    def send(self, request, prompt, max_tokens):
        outstanding = dict.fromkeys(self.names, 0)
        for one, name in self.started_on.items():
            outstanding[name] += self.cost[one]
        chosen = s.choose_replica(outstanding, dict.fromkeys(self.names, 0))
        self.cost[request], self.sent_to[request] = len(prompt) + max_tokens, chosen
        return chosen

    def started(self, request):
        if request in self.sent_to:
            self.started_on[request] = self.sent_to[request]

    def finish(self, request):
        self.started_on.pop(request, None)
        self.sent_to.pop(request, None)


class AbsoluteAffinity(s.ReplicaLoads):
    """vllm-project/tpu-inference#3307: whoever has one cached block gets the request, however busy it is."""

    def send(self, request, prompt, max_tokens):
        hashes = s.prefix_hashes(prompt, self.block_size)
        cached = {name: s.cached_tokens(hashes, self._seen[name], self.block_size) for name in self._seen}
        best = max(cached, key=cached.__getitem__)
        return super().send(request, prompt, max_tokens, among=[best] if cached[best] else None)


LONG, ONE_BLOCK, TRAP, UNEVEN = ROUTED_CASES


@pytest.mark.parametrize(
    ("router", "case"),
    [
        pytest.param(CountsWhenTheAnswerStarts, LONG, id="load counted at the start of the answer"),
        pytest.param(lambda: AbsoluteAffinity(16), ONE_BLOCK, id="absolute affinity, one shared block"),
        pytest.param(lambda: AbsoluteAffinity(16), TRAP, id="absolute affinity, one system prompt"),
        pytest.param(RoundRobin, UNEVEN, id="round robin on unequal lengths"),
    ],
)
def test_the_cases_find_the_routers_of_the_reports(router, case):
    assert share_of_one(s, case, router) > 0.85


def test_the_incident_names_its_threads():
    assert len(THREADS) == 2 and all("#" in thread for thread in THREADS)
