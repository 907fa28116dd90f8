"""Week 4 Day 6: prompts that another engine computes, their keys and values on a link, and who computes what.

Oracles: the blocks that are final, listed one by one; a simulator of links, second by second; NumPy in float64; sums
over the open requests; each request's answer alone.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.transfers import FAULTS, HARMLESS, joined
from tiny_llm_extensions.kv_transfer.transfers import Computed, Refused, Route, SavedBlock, text_digest

TEXT = [*range(100, 121)]  # five blocks of 4, and one token
LATER = 1e9
HAPPENS = st.sampled_from(["fine"] * 6 + [*FAULTS])


def save(outbox, computed, name="a"):
    """The spans that are copied after a step."""
    blocks = outbox.to_save(name, computed)
    outbox.saved(name, blocks)
    return [(block.start, block.stop) for block in blocks]


def final(length, size, computed):
    """The blocks of a prompt that no later step changes, when so many of its tokens are computed."""
    spans = [(start, min(start + size, length)) for start in range(0, length, size)]
    return [span for span in spans if span[1] <= computed]


def check_rows(outbox, num_rows):
    """Each row is free or holds a block, and never both."""
    kept = [block.row for each in outbox.transfers.values() for block in each.blocks]
    assert sorted([*outbox.free, *kept]) == [*range(num_rows)], (
        f"free rows {outbox.free}, rows of blocks {kept}: each of the {num_rows} rows is one or the other"
    )


# What is kept for the other engine.


@pytest.mark.task("4.6.1")
def test_full_blocks_are_saved_once_and_the_last_one_at_the_end(s):
    """What is not full changes with the next step, but for the end of the prompt. A preempted request begins again."""
    outbox = s.Outbox(9, 4, 10.0)
    outbox.begin("a", TEXT)
    steps = {3: [], 9: [(0, 4), (4, 8)], 4: [], 20: [(8, 12), (12, 16), (16, 20)], 21: [(20, 21)], 22: []}
    for computed, expected in steps.items():
        found = save(outbox, computed)
        assert found == expected, f"{computed} of 21 tokens computed: blocks {found}, not {expected}"
    assert outbox.to_save("b", 9) == [], "nobody wants b"
    check_rows(outbox, 9)


@pytest.mark.task("4.6.1")
@settings(max_examples=80)
@given(
    size=st.integers(1, 6),
    rows=st.integers(0, 9),
    length=st.integers(1, 21),
    steps=st.lists(st.integers(0, 24), max_size=12),
)
def test_what_is_final_is_saved_as_far_as_there_are_rows(s, size, rows, length, steps):
    """Any steps, also backwards, as after a preemption. Of the answer nothing is sent."""
    outbox, expected = s.Outbox(rows, size, 10.0), []
    outbox.begin("a", TEXT[:length])
    for computed in [*steps, length]:
        found = save(outbox, computed)
        new = final(length, size, computed)[len(expected) :][: rows - len(expected)]
        assert found == new, f"blocks of {size}, {computed} of {length} tokens computed: {found}, not {new}"
        expected += new
        check_rows(outbox, rows)


# Until when it is kept.


@pytest.mark.task("4.6.2")
def test_rows_are_free_when_they_were_read_or_have_waited(s):
    """And never while somebody reads them."""
    outbox = s.Outbox(9, 4, 10.0)
    for name in "abc":
        outbox.begin(name, TEXT[:8])
        save(outbox, 8, name)
        outbox.end(name, 0.0)
    assert outbox.open("a") and outbox.open("a") and outbox.open("b") and not outbox.open("d")
    outbox.close("a", is_done=True, now=1.0)
    assert len(outbox.free) == 3, "one of the two engines that read a is done, and the other still reads"
    outbox.close("a", is_done=False, now=1.0)
    assert not outbox.open("a") and len(outbox.free) == 5, (
        "one reader had all: the rows are free when no other reads"
    )
    outbox.expire(9.9)
    assert [*outbox.transfers] == ["b", "c"], "they wait for 10 s after the end of their requests"
    outbox.expire(10.0)
    assert [*outbox.transfers] == ["b"], "c has waited for 10 s, and b is being read"
    outbox.close("b", is_done=False, now=11.0)
    assert not outbox.transfers and len(outbox.free) == 9, "nobody reads b, which was due at 10 s"


@pytest.mark.task("4.6.2")
def test_a_reader_that_has_died_leaves_the_prompt_for_the_next_one(s):
    """It was not done, and its request still computes."""
    outbox = s.Outbox(9, 4, 10.0)
    outbox.begin("a", TEXT)
    save(outbox, 8)
    outbox.open("a")
    outbox.close("a", is_done=False, now=5.0)
    assert save(outbox, 21)[:1] == [(8, 12)], "nothing more is saved: a reader that has died was not done"
    assert outbox.open("a") and len(outbox.unread("a", range(21))) == 6


@pytest.mark.task("4.6.2")
def test_a_reader_that_wants_no_more_while_a_block_is_copied_leaves_no_row_behind(s):
    """The copies come into the buffer when nobody knows the prompt any more."""
    outbox = s.Outbox(9, 4, 10.0)
    outbox.begin("a", TEXT)
    assert outbox.open("a") and outbox.open("a")
    blocks = outbox.to_save("a", 8)
    outbox.close("a", is_done=True, now=0.0)
    assert outbox.transfers["a"].is_over, "one of two engines has all: no further block comes"
    outbox.close("a", is_done=False, now=0.0)
    outbox.saved("a", blocks)
    check_rows(outbox, 9)
    assert len(outbox.free) == 9 and outbox.to_save("a", 21) == []


@dataclass
class Kept:
    """What an outbox should know of a prompt."""

    length: int
    spans: list = field(default_factory=list)
    readers: int = 0
    expires: float = LATER


STEPS = st.tuples(
    st.sampled_from(["begin", "save", "save", "end", "open", "close", "done", "expire"]),
    st.sampled_from("xyz"),
    st.integers(0, 24),
)


@pytest.mark.task("4.6.2")
@settings(max_examples=120)
@given(steps=st.lists(STEPS, max_size=60), keep=st.sampled_from([0, 3, 12]))
def test_every_row_is_free_or_in_one_piece(s, steps, keep):
    """Three names, seven rows, any steps; at the end all readers leave, and all rows are free."""
    outbox, kept = s.Outbox(7, 4, keep), {}

    def forget(now):
        for name in [name for name, each in kept.items() if not each.readers and each.expires <= now]:
            del kept[name]

    for now, (step, name, number) in enumerate(steps):
        each = kept.get(name)
        if step == "begin":
            assert outbox.begin(name, TEXT[: 1 + number % 21]) == (each is None)
            kept.setdefault(name, Kept(1 + number % 21))
        elif step == "expire":
            outbox.expire(now)
            forget(now)
        elif each is None:
            assert not outbox.open(name) and not outbox.to_save(name, number)
        elif step == "save":
            new = final(each.length, 4, number)[len(each.spans) :][: len(outbox.free)]
            assert save(outbox, number, name) == new
            each.spans += new
        elif step == "end":
            outbox.end(name, now)
            each.expires = now + keep
        elif step == "open":
            assert outbox.open(name)
            each.readers += 1
        elif each.readers:
            outbox.close(name, step == "done", now)
            each.readers, each.expires = each.readers - 1, now if step == "done" else each.expires
            forget(now)
        known = {one: [(b.start, b.stop) for b in t.blocks] for one, t in outbox.transfers.items()}
        expected = {one: each.spans for one, each in kept.items()}
        assert known == expected, f"step {now}, {step} {name}: {known} is kept, not {expected}"
        check_rows(outbox, 7)
    for name, each in kept.items():
        outbox.end(name, now)
        for _ in range(each.readers):
            outbox.close(name, False, now)
    outbox.expire(LATER)
    assert len(outbox.free) == 7 and not outbox.transfers, "nobody reads, all are due, and rows are missing"


# While it computes.


def simulated(computed, seconds):
    """The links second by second: a transfer goes on while no earlier one is left at either of its ends."""
    missing, arrived, now = {place: each.tokens * seconds for place, each in enumerate(computed)}, {}, 0
    while missing:
        busy = set()
        for place, left in [*missing.items()]:
            each = computed[place]
            ends = {("from", each.sender), ("to", each.receiver)}
            goes_on = each.time <= now and not busy & ends
            if goes_on and not left:
                del missing[place]
                arrived[each.request] = now
                continue
            missing[place] -= goes_on
            busy |= ends
        now += 1
    return arrived


@pytest.mark.task("4.6.3")
def test_an_engine_sends_and_receives_one_block_at_a_time(s):
    """Two engines send 10 tokens each; one of them 5 more, and a prompt of one token, of which nothing is sent."""
    rows = [(1.0, 0, 10), (1.0, 1, 10), (2.0, 0, 5), (2.0, 2, 0)]
    for receivers, seconds, expected in (
        (1, 0.0, {0: 2.0, 1: 1.0, 2: 2.0}),
        (1, 1.0, {0: 26.0, 1: 21.0, 2: 26.0}),
        (2, 1.0, {0: 16.0, 1: 11.0, 2: 16.0}),
    ):
        computed = (Computed(time, n, tokens, f"P{n % 2}", f"D{n % receivers}") for time, n, tokens in rows)
        found = s.arrivals(computed, seconds)
        assert found == expected, f"{receivers} receivers, {seconds} s a token: {found}, not {expected}"
    found = s.arrivals([Computed(0.0, 5, 10, "P0", "D0"), Computed(0.0, 6, 10, "P0", "D1")], 1.0)
    assert found == {5: 10.0, 6: 20.0}, f"{found}: one sender, and two receivers"
    assert s.arrivals([], 1.0) == {}


@pytest.mark.task("4.6.3")
@pytest.mark.parametrize(
    ("seconds", "after"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.2, 8 * 2.0 - 7.0), (1.0, 8 * 10.0 - 7.0)]
)
def test_fast_links_hide_all_but_the_last_block(s, seconds, after):
    """Eight blocks of 10 tokens, one a second. Where a link is faster than that, only the last one is waited for."""
    computed = [Computed(float(time), 3, 10, "P", "D") for time in range(1, 9)]
    found = s.arrivals(computed, seconds)[3] - 8.0
    assert found == pytest.approx(after), f"{seconds} s a token: all is there {found} s after the last step"


@pytest.mark.task("4.6.3")
@settings(max_examples=120)
@given(
    rows=st.lists(st.tuples(*(st.integers(0, most) for most in (6, 5, 4))), max_size=14),
    ends=st.lists(st.sampled_from([(f"P{i}", f"D{j}") for i in range(3) for j in range(3)]), min_size=6),
    seconds=st.integers(0, 3),
)
def test_arrivals_are_those_of_a_simulator(s, rows, ends, seconds):
    """Six requests, any senders and receivers; steps come seldom, or faster than the links."""
    computed, now = [], 0
    for later, request, tokens in rows:
        now += later
        computed.append(Computed(now, request, tokens, *ends[request]))
    found, expected = s.arrivals(computed, seconds), simulated(computed, seconds)
    assert found == expected, f"{computed}, {seconds} s a token: {found}, not {expected}"


# What is taken.


def incoming(s, received=0):
    return s.Incoming(TEXT, received, patience=5.0, deadline=5.0)


def offer(one, start, stop, now=0.0):
    return one.accept(SavedBlock(start, stop, 0), text_digest(TEXT[:stop]), now)


def accept(one, start, stop, now=0.0):
    """The positions that are new, of a block that is fine."""
    try:
        return [*offer(one, start, stop, now)]
    except Refused as error:
        pytest.fail(
            f"tokens {start} to {stop} follow {one.received}, and were refused: {error}", pytrace=False
        )


@pytest.mark.task("4.6.4")
def test_blocks_are_taken_in_their_order_up_to_the_token_that_is_computed_here(s):
    """A block may begin before what is missing: it came twice, or its sender's blocks have another size."""
    one, received = incoming(s, received=6), 6
    spans = [(4, 8), (0, 4), (4, 8), (8, 12), (0, 4), (10, 16), (16, 21), (20, 21)]
    for span, end in zip(spans, [8, 8, 8, 12, 12, 16, 20, 20], strict=True):
        expected, found = [*range(received, end)], accept(one, *span)
        assert found == expected, f"tokens {span} came: {found} are taken, not {expected}"
        received = end
        assert one.received == end, f"tokens {span} came, and {one.received} are received, not {end}"


@pytest.mark.task("4.6.4")
@pytest.mark.parametrize("span", [(4, 8), (12, 16), (0, 22), (0, 0), (4, 2), (-4, 4)])
def test_a_block_that_does_not_follow_is_refused(s, span):
    """A gap, or no block of this prompt. What is here already stays."""
    one = incoming(s, received=3)
    with pytest.raises(Refused):
        offer(one, *span)
        pytest.fail(f"tokens {span} were accepted after 3", pytrace=False)
    assert one.received == 3, "it was refused, and counts: check before you count"
    assert accept(one, 0, 4) == [3], "the next block is the right one"


@pytest.mark.task("4.6.4")
@pytest.mark.parametrize("place", [0, 2, 5, 7])
def test_a_block_of_another_text_is_refused(s, place):
    """Also if only tokens before this block differ: its keys and values depend on them."""
    one = incoming(s, received=4)
    other = [*TEXT[:place], 7, *TEXT[place + 1 : 8]]
    with pytest.raises(Refused):
        one.accept(SavedBlock(4, 8, 0), text_digest(other), 0.0)
        pytest.fail(f"token {place} was another one", pytrace=False)
    assert one.received == 4, "it was refused, and counts: check before you count"


@pytest.mark.task("4.6.4")
def test_it_is_late_when_nothing_has_come_for_its_patience(s):
    """Old news is news, too: the sender lives."""
    one = incoming(s)
    assert (one.is_late(5.0), one.is_late(5.1)) == (False, True), "at the deadline there is still time"
    accept(one, 0, 4, now=4.0)
    assert (one.is_late(9.0), one.is_late(9.1)) == (False, True), "5 s after the last block"
    accept(one, 0, 4, now=8.0)
    assert not one.is_late(13.0), "a block that has come twice moves the deadline"
    with pytest.raises(Refused):
        offer(one, 8, 12, now=11.0)
    assert one.is_late(13.1), "a block that is refused is no news"


# Into the pools.


def pools_of(b, dtype, size, cache):
    """Three layers of 2 heads of 6, 24 slots and a pad page; each slot holds nines."""
    config = SimpleNamespace(num_key_value_heads=2, head_dim=6)
    norm = SimpleNamespace(weight=b.array(np.ones(6), dtype))
    model = SimpleNamespace(config=config, layers=range(3), norm=norm)
    pools, slots = b.create_kv_pools(model, 24 // size, size, cache), np.arange(24 + size)
    for pool in pools:
        pool.write(b.array(slots), *[b.array(np.full((len(slots), 2, 6), 9.0), dtype)] * 2)
    return pools


def row_of(numbers, kind):
    """The bytes of numbers that a kind can hold; NumPy has no bf16, which is the first half of a float32."""
    if kind == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
    return numbers.astype(kind).tobytes()


SHAPES = [
    (4, 4, slice(0, 4)),
    (8, 4, slice(1, 4)),
    (8, 4, slice(0, 8)),
    (3, 8, slice(1, 2)),
    (16, 3, slice(5, 16)),
]


@pytest.mark.task("4.6.5")
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("dtype", "cache"), [("float32", "auto"), ("bfloat16", "auto"), ("float32", "int8")])
@pytest.mark.parametrize(("there", "here", "part"), SHAPES)
def test_tokens_of_a_row_are_in_their_slots(b, rng, kind, dtype, cache, there, here, part):
    """Any kind into any pool, blocks of any sizes, a part of a row.

    A row is another engine's memory: it is read-only, and may soon hold another prompt.
    """
    numbers = b.numpy(b.array(rng.normal(size=(3, 2, there, 2, 6)), kind)).astype(np.float64)
    memory = bytearray(7 * there) + row_of(numbers, kind)
    pools, slots = pools_of(b, dtype, here, cache), rng.permutation(24)[: part.stop - part.start]
    row = memoryview(memory)[7 * there :].toreadonly()
    b.adopt_row(pools, row, kind, part, b.array(slots), b.dtype(dtype))
    memory[:] = bytes(len(memory))
    pages = [pages for pool in pools for pages in (pool.key_pages, pool.value_pages)]
    found = [b.numpy(each.numbers() if cache == "int8" else each).reshape(-1, 2, 6) for each in pages]
    expected = np.full((3, 2, 24 + here, 2, 6), 9.0)
    expected[:, :, slots] = b.numpy(b.array(numbers[:, :, part], dtype))
    assert_close(
        np.reshape(found, expected.shape),
        expected,
        atol=0.03 if cache == "int8" else 0,  # half a scale of 127 steps
        rtol=0,
        idea=f"a row of {there} tokens in {kind}: for each layer its keys, then its values, each (B, Hkv, D)",
    )


# Who computes what.


def loads(s, prefill=("p", "q"), decode=("c", "d"), least=8):
    made = s.SplitLoads(s.ReplicaLoads(4), s.ReplicaLoads(4), least)
    made.set_engines(prefill, decode)
    return made


@pytest.mark.task("4.6.6")
def test_a_long_prompt_is_computed_elsewhere_and_a_short_one_where_it_is_decoded(s):
    """`least` tokens are long enough."""
    made = loads(s)
    found = made.send(1, range(8), 5)
    assert found == Route("c", "p"), f"{found}: 8 tokens, of which c knew none before this request"
    assert made.send(2, range(7), 5) == Route("d")
    assert made.prefill.outstanding == {"q": 0, "p": 8}, "the answer is not computed there"
    assert made.decode.outstanding == {"c": 5, "d": 12}, "nor this prompt here"


@pytest.mark.task("4.6.6")
def test_a_conversation_goes_back_to_its_past_and_a_short_turn_needs_no_transfer(s):
    """What is new to the engine that decodes is compared with `least`, and not the whole text."""
    made = loads(s)
    made.send(0, range(12), 1)
    made.finish(0)
    assert made.send(1, range(16), 1) == Route("c"), "4 tokens are new to c, which has the other 12"
    assert made.decode.outstanding["c"] == 5
    assert made.send(2, range(32), 1) == Route("c", "p"), "16 tokens are new to it"
    assert made.decode.outstanding["c"] == 6 and made.prefill.outstanding["p"] == 20
    assert made.send(2, range(32), 1) == Route("c"), "it comes again, and c has been sent all of it"
    assert made.prefill.outstanding["p"] == 0, "a request that is sent again counts once"


@pytest.mark.task("4.6.6")
def test_without_an_engine_for_prompts_all_is_computed_where_it_is_decoded(s):
    """They may all be down. Without one that decodes there is no answer."""
    found = loads(s, prefill=()).send(1, range(99), 5)
    assert found == Route("c"), f"{found}: no engine for prompts is ready"
    with pytest.raises(ValueError, match="no replica"):
        loads(s, decode=()).send(1, range(99), 5)


SENT = st.tuples(
    st.integers(0, 2), st.integers(1, 24), st.none() | st.integers(0, 9), st.integers(0, 9), st.booleans()
)


@pytest.mark.task("4.6.6")
@settings(max_examples=80)
@given(requests=st.lists(SENT, max_size=14), least=st.integers(1, 14))
def test_the_best_engines_are_chosen_and_no_count_is_lost(s, requests, least):
    """Prompts with shared beginnings; some are computed, and some requests end, in any order."""
    kinds = {"prefill": ("p", "q"), "decode": ("c", "d", "e")}
    made, seen = loads(s, **kinds, least=least), {name: set() for name in "pqcde"}
    counts = {}  # request -> what it counts, by engine

    def check(name, kind, load, cached):
        ranks = {one: (load[one] - cached[one], load[one]) for one in kinds[kind]}
        assert ranks[name] == min(ranks.values()), f"{name} is not the best engine for {kind}: {ranks}"

    for number, (text, length, most, other, has_ended) in enumerate(requests):
        prefixes = [(text, stop) for stop in range(4, length + 1, 4)]
        cached = {name: 4 * len(seen[name].intersection(prefixes)) for name in seen}
        load = sum(counts.values(), Counter())
        route = made.send(number, [text] * length, most)
        check(route.decode, "decode", load, cached)
        missing, answer = length - cached[route.decode], 256 if most is None else most
        is_long = missing >= least
        assert bool(route.prefill) == is_long, (
            f"{missing} of {length} tokens are new, least is {least}: {route}"
        )
        counts[number] = Counter({route.decode: answer + (0 if is_long else missing)})
        if is_long:
            check(route.prefill, "prefill", load, cached)
            counts[number][route.prefill] = length - cached[route.prefill]
        for name in filter(None, (route.decode, route.prefill)):
            seen[name].update(prefixes)
        if other in counts and has_ended:
            made.finish(other)
            del counts[other]
        elif other in counts:
            made.prefilled(other)
            counts[other] = Counter({name: n for name, n in counts[other].items() if name not in "pq"})
        total = sum(counts.values(), Counter())
        found = {**made.prefill.outstanding, **made.decode.outstanding}
        assert found == {name: total[name] for name in seen}, f"counted: {found}, open: {dict(total)}"


# Two loops.


def ask(pair, prompt, max_tokens=4, faults=()):
    """Sends a request to both engines, as a proxy does; returns what each of them has."""
    producer, consumer = pair
    name = {"transfer_id": f"t{len(producer.sequences)}"}
    consumer.connector.faults[name["transfer_id"]] = faults
    sends, reads = (
        {"kv_transfer_params": {**name, each: True}} for each in ("do_remote_decode", "do_remote_prefill")
    )
    return (
        producer.add(prompt, max_tokens=1, ignore_eos=True, extra_args=sends),
        consumer.add(prompt, max_tokens=max_tokens, ignore_eos=True, extra_args=reads),
    )


def step(pair):
    """A step of each side that has work; returns whether any has."""
    steps = [each.loop.step() for each in pair if each.loop.has_work_remaining()]
    return any(steps)


def check(pair, rows):
    """Answers are those alone, and no block, no row and no transfer is left."""
    for each in pair:
        each.sequences = [made for made in each.sequences if made.finish_reason != "abort"]
        each.check_answers()
    outbox = pair[0].connector.outbox
    outbox.expire(LATER)
    assert not outbox.transfers and not pair[1].connector.transfers
    check_rows(outbox, rows)


@pytest.mark.task("4.6.4")
@settings(max_examples=150)
@given(
    length=st.integers(2, 26),
    sizes=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    rows=st.integers(2, 20),
    faults=st.lists(HAPPENS, max_size=8),
)
def test_what_comes_before_a_fault_is_not_computed_again(s, length, sizes, rows, faults):
    """From the outbox over a link to the consumer, which takes a prefix, and computes the rest."""
    pair = joined(s, {"block_size": sizes[0]}, {"block_size": sizes[1]}, num_rows=rows, patience=60.0)
    ask(pair, "abcdefghijklmnopqrstuvwxyz"[:length], faults=faults)
    while step(pair):
        pass
    kept, fault = 0, "fine"
    sent = [span for span in final(length, sizes[0], length)[:rows] if span[0] < length - 1]
    for (_, stop), fault in zip_longest(sent, faults[: len(sent)], fillvalue="fine"):
        if fault not in HARMLESS:
            break
        kept = min(stop, length - 1)
    computed = sum(len(batch.token_ids) for batch in pair[1].model.batches)
    expected = length - kept + 3  # and three tokens of the answer
    assert computed == expected or (fault == "slow" and computed < expected), (
        f"blocks {sent} were sent, {faults}: {kept} tokens came before a fault, and {computed - 3} were computed"
    )
    check(pair, rows)


LOAD = st.tuples(
    st.integers(4, 22),
    st.integers(1, 6),
    st.integers(0, 8),
    st.lists(HAPPENS, max_size=5),
    st.sampled_from([None, None, None, (0, 1), (0, 4), (1, 2), (1, 6)]),
)


@pytest.mark.task("4.6.4")
@settings(max_examples=120)
@given(
    plans=st.lists(LOAD, min_size=2, max_size=7),
    sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    tokens=st.tuples(st.integers(28, 70), st.integers(28, 70)),
    rows=st.integers(2, 40),
    patience=st.sampled_from([5.0, 50.0, 500.0]),
    caching=st.booleans(),
)
def test_answers_of_two_loops_are_those_of_one(s, plans, sizes, tokens, rows, patience, caching):
    """Faults on the link, few blocks and rows, impatience; either side aborts a request at any step."""
    of_sides = (
        {"num_blocks": n // size, "block_size": size, "caching": caching}
        for n, size in zip(tokens, sizes, strict=True)
    )
    pair, leaving = joined(s, *of_sides, num_rows=rows, patience=patience), []
    for number in range(1500):
        for place, (size, max_tokens, arrival, faults, leaves) in enumerate(plans):
            if arrival == number:
                text = "shared beginning of all"[:size] if size % 3 else chr(ord("A") + place) * size
                both = ask(pair, text, max_tokens, faults)
                leaving += [(both[leaves[0]], number + leaves[1])] if leaves else []
        for made, end in leaving:
            if end == number:
                made.abort()
        if not step(pair) and number > 14:
            break
    check(pair, rows)
