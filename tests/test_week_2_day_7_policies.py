"""Week 2 Day 7, the policies: chunk sizes, metrics, the sweep, and who goes first. Exact scripts, and no clock."""

import json
import math
import random
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_model import END, ByteTokenizer, FakeModel
from support.steps import steps_of
from tiny_llm_course.trace.simulation.simulated_model import SimulatedClock
from tiny_llm_course.trace.trace import percentile as numpy_percentile

LADDER, HPU = (32, 64, 128, 256, 512), (128, 256, 512)


# Task 2.7.4: a rule of thumb.


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize(
    ("prompt", "decoding", "slots", "size", "rule"),
    [
        (1000, 1, 5, 128, "a short prompt, and few slots decode: 128"),
        (7, 1, 2, 128, "a short prompt, and few slots decode: 128, though it has only 7 tokens"),
        (2048, 1, 5, 128, "2,048 tokens are not more than 2,048: 128"),
        (2049, 1, 5, 256, "2,049 tokens are more than 2,048: 256"),
        (1000, 4, 5, 128, "4 of 5 slots are 80 %, and not more than 80 %: 128"),
        (1000, 17, 21, 64, "17 of 21 slots are 80.95 %, which is more than 80 %: 64. Do not round"),
        (1000, 5, 5, 64, "all slots decode: 64"),
        (1000, 3, 3, 64, "all of 3 slots decode: 64. Their share counts, not their number"),
        (5000, 8, 10, 256, "8 of 10 slots decode: not more than 80 %. Their share counts, not their number"),
        (1000, 28, 35, 128, "28 of 35 slots are 80 %, and not more than 80 %: 128"),
        (5000, 5, 5, 64, "a long prompt while all slots decode: 64. The slots come before the length"),
        (1000, 0, 5, 512, "nothing decodes, so nobody waits for a chunk: the largest size"),
        (5000, 0, 1, 512, "nothing decodes, so nobody waits: the largest size, also for a long prompt"),
    ],
)
def test_chunked_prefill_size_follows_the_rule(s, prompt, decoding, slots, size, rule):
    """More than 80 % of the slots decode: 64; else more than 2,048 tokens: 256; else 128. Nothing decodes: 512."""
    chosen = s.select_optimal_chunk_size(prompt, 10_000, decoding, slots)
    assert chosen == size, f"{rule}; not {chosen}, for {prompt} tokens while {decoding} of {slots} decode"


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize(
    ("sizes", "pressed", "usual", "long", "idle"),
    [
        (HPU, 128, 128, 256, 512),
        ((32, 512), 32, 32, 32, 512),
        ((48, 96), 48, 96, 96, 96),
        ((1024,), 1024, 1024, 1024, 1024),
        ((16, 32), 32, 32, 32, 32),
    ],
)
def test_chunked_prefill_size_is_on_the_ladder(s, sizes, pressed, usual, long, idle):
    """A size that the ladder has not gives way to the next smaller one, or to the smallest."""
    found = [
        s.select_optimal_chunk_size(prompt, 10_000, decoding, 5, sizes)
        for prompt, decoding in ((1000, 5), (1000, 2), (3000, 2), (1000, 0))
    ]
    assert found == [pressed, usual, long, idle], f"64, 128, 256 and the last one on {sizes}: {found}"


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize(
    ("memory", "decoding", "size", "rule"),
    [
        (128, 2, 128, "128 is wanted, and it fits exactly"),
        (127, 2, 64, "128 is wanted and does not fit: the next smaller size, never another number"),
        (64, 2, 64, "64 fits exactly"),
        (63, 5, 32, "64 is wanted and does not fit: 32"),
        (32, 2, 32, "the smallest size fits exactly: no need to wait"),
        (31, 2, 0, "not even the smallest size fits: 0, the prompt waits"),
        (0, 2, 0, "there is no memory: 0, the prompt waits"),
        (-9, 5, 0, "there is less than no memory: 0, the prompt waits"),
    ],
)
def test_chunked_prefill_size_fits_into_memory(s, memory, decoding, size, rule):
    """The largest size of the ladder that `available_memory` holds; below the smallest, 0: the prompt waits."""
    chosen = s.select_optimal_chunk_size(900, memory, decoding, 5)
    assert chosen <= max(memory, 0), f"{chosen} tokens do not fit into {memory}: {rule}"
    assert chosen in (0, *LADDER), f"{chosen} is no size of the ladder, and 900 tokens are left: {rule}"
    assert chosen == size, f"{rule}; not {chosen}, for 900 tokens and memory for {memory}"


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize("decoding", [0, 1, 5])
@pytest.mark.parametrize("memory", [31, 20, 12])
def test_chunked_prefill_size_lets_the_end_of_a_prompt_fit(s, decoding, memory):
    """12 tokens are left. There is memory for them, and for no size of the ladder. To wait is to hang."""
    try:
        chosen = s.select_optimal_chunk_size(12, memory, decoding, 5)
    except ValueError as error:
        pytest.fail(f"the last 12 tokens fit into {memory}, and they were refused: {error}")
    exactly = "exactly " if memory == 12 else ""
    assert chosen == 12, f"the last 12 tokens fit {exactly}into {memory}: take 12, not {chosen}"


@pytest.mark.task("2.7.4")
def test_chunked_prefill_size_at_the_end_of_a_prompt_is_a_size_if_one_fits(s):
    """Only where no size fits, the number of tokens that are left is the answer."""
    chosen = s.select_optimal_chunk_size(12, 32, 1, 5)
    assert chosen == 32, f"12 tokens, and memory for exactly the smallest size: 32, not {chosen}"
    waits = s.select_optimal_chunk_size(13, 12, 1, 5)
    assert waits == 0, f"13 tokens do not fit into 12: wait, not {waits}"


@pytest.mark.task("2.7.4")
def test_chunked_prefill_size_refuses_what_can_never_fit(s):
    """Nothing decodes, so no memory will come back. With a decode running, the same prompt waits."""
    try:
        assert s.select_optimal_chunk_size(900, 900, 0, 5) == 512, "900 tokens fit exactly into 900"
    except ValueError as error:
        pytest.fail(f"900 tokens fit exactly into 900, and they were refused: {error}")
    for memory in (899, 31, 0):
        with pytest.raises(ValueError, match="900"):
            chosen = s.select_optimal_chunk_size(900, memory, 0, 5)
            pytest.fail(f"900 tokens never fit into {memory}, and nothing decodes: {chosen}")
    assert s.select_optimal_chunk_size(900, 20, 1, 5) == 0, "while one decodes, memory may come back: wait"


@pytest.mark.task("2.7.4")
@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence_length": 0},
        {"batch_size": 0},
        {"active_decode_requests": -1},
        {"active_decode_requests": 6},
        {"sizes": ()},
        {"sizes": (64, 32)},
        {"sizes": (32, 32, 64)},
        {"sizes": (0, 32)},
        {"sizes": (32, 48)},
    ],
    ids=str,
)
def test_chunked_prefill_size_refuses_nonsense(s, wrong):
    """Numbers that mean nothing, and ladders on which offsets would not stay multiples of the first size."""
    right = {
        "sequence_length": 9,
        "available_memory": 900,
        "active_decode_requests": 1,
        "batch_size": 5,
        "sizes": LADDER,
    }
    assert s.select_optimal_chunk_size(**right) == 128, "without the wrong number it works"
    with pytest.raises(ValueError):
        s.select_optimal_chunk_size(**{**right, **wrong})


@pytest.mark.task("2.7.4")
@given(
    prompt=st.integers(1, 6000),
    memory=st.lists(st.integers(0, 700), min_size=1, max_size=12),
    decoding=st.integers(1, 7),
    sizes=st.sampled_from([LADDER, HPU, (48, 96, 480), (7,)]),
)
@settings(max_examples=30)
def test_chunked_prefill_sizes_keep_offsets_aligned(s, prompt, memory, decoding, sizes):
    """Whatever memory does: every chunk fits into it, and begins at a multiple of the first size."""
    offset = 0
    for free in memory:
        left = prompt - offset
        if left == 0:
            break
        size = s.select_optimal_chunk_size(left, free, decoding, 7, sizes)
        assert size <= free, f"{size} tokens do not fit into {free}"
        assert size in (0, *sizes) or size == left, f"{size} is neither of {sizes} nor what is left, {left}"
        assert size > 0 or free < sizes[0], f"{free} tokens of memory are enough for {sizes[0]}: why wait?"
        assert offset % sizes[0] == 0, f"a chunk at {offset}, no multiple of {sizes[0]}"
        offset += min(size, left)


# Task 2.7.5: a size whose chunks keep a target.

TARGET = 0.05


@dataclass(frozen=True)
class Machine:
    """What a chunk costs: `fixed` seconds, and `per_token` for each of its tokens."""

    fixed: float
    per_token: float

    def seconds(self, tokens: int) -> float:
        return self.fixed + self.per_token * tokens

    def times(self, factor: float) -> "Machine":
        """The same machine, slower by this factor."""
        return Machine(factor * self.fixed, factor * self.per_token)

    def largest(self, sizes=LADDER) -> int:
        """The oracle: the largest size that costs no more than the target; the smallest if all cost more."""
        return max((n for n in sizes if self.seconds(n) <= TARGET), default=sizes[0])

    @property
    def is_clear(self) -> bool:
        """No size costs nearly the target: 20 % of noise cannot hide on which side of it a size is."""
        return not any(0.75 * TARGET < self.seconds(n) < 1.25 * TARGET for n in LADDER)


@st.composite
def machines(draw):
    """One size costs 0.2 to 5 times the target; of that the fixed cost is nothing, a part, or all."""
    fixed, at, by = draw(
        st.tuples(
            st.sampled_from([0.0, 0.1, 0.3, 0.6, 0.95, 1.0]), st.sampled_from(LADDER), st.floats(0.2, 5.0)
        )
    )
    return Machine(TARGET * by * fixed, TARGET * by * (1 - fixed) / at)


def drive(chunker, machine, chunks: int, *, base=128, noise=lambda: 1.0) -> list[int]:
    """So many chunks while requests wait, each of the size that the chunker chooses; it is told what each has cost."""
    sizes = []
    for _ in range(chunks):
        sizes.append(chunker.select_chunk_size(base, 0.5))
        assert sizes[-1] in chunker.sizes, f"{sizes[-1]} is no size of {chunker.sizes}"
        chunker.observe(sizes[-1], machine.seconds(sizes[-1]) * noise())
    return sizes


def settles(chunker, machine, *, idea: str, chunks=10, stays=15, **how) -> None:
    """Within 10 chunks at the largest size under the target, and no other size after that."""
    first = drive(chunker, machine, chunks, **how)
    later = drive(chunker, machine, stays, **how)
    expected = machine.largest(chunker.sizes)
    costs = {n: round(machine.seconds(n), 4) for n in chunker.sizes}
    assert set(later) == {expected}, (
        f"{idea}: {expected} is the largest size under {TARGET} s of {costs}; after {first} it took {later}"
    )


def uniform(seed: int, share: float):
    """Seconds that are up to this share too many or too few."""
    draw = random.Random(seed)
    return lambda: draw.uniform(1 - share, 1 + share)


def extreme(seed: int, share: float):
    """Seconds that are always by the whole share too many or too few."""
    draw = random.Random(seed)
    return lambda: draw.choice([1 - share, 1 + share])


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("base", "size"), [(32, 32), (64, 64), (128, 128), (512, 512), (100, 64), (9999, 512), (5, 32)]
)
def test_chunked_prefill_chunker_without_history_takes_the_base(s, base, size):
    """Nothing was measured: nothing is divided by it. A base between two sizes is the smaller of them."""
    chosen = s.AdaptiveChunker().select_chunk_size(base, 0.9)
    assert chosen == size, f"without history the base, {base}, on the ladder: {size}, not {chosen}"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_takes_the_base_until_something_was_observed(s):
    """Only the ends of prompts so far: every choice is the base of that call, and none is a step from the last one."""
    chunker, bases, chosen = s.AdaptiveChunker(), [128, 64, 512, 32], []
    for base in bases:
        chosen.append(chunker.select_chunk_size(base, 0.5))
        chunker.observe(base - 1, 0.001)
    assert chosen == bases, f"no chunk of a size of the ladder was observed: {bases}, not {chosen}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("seconds", [0.01, 1.0])
def test_chunked_prefill_chunker_begins_with_the_base_after_idle_chunks(s, seconds):
    """A server's first prompt runs alone, in chunks of the largest size. The first choice while a request waits is
    the base all the same."""
    chunker = s.AdaptiveChunker(TARGET)
    for _ in range(3):
        chunker.observe(chunker.select_chunk_size(128, 0.0), seconds)
    chosen = chunker.select_chunk_size(128, 0.5)
    assert chosen == 128, f"the first chunk that a request waits for: the base, 128, not {chosen}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("sizes", [LADDER, HPU])
def test_chunked_prefill_chunker_with_nobody_waiting_takes_the_largest(s, sizes):
    """No request is ready to decode: a small chunk would help nobody. So before and after it has learned."""
    chunker = s.AdaptiveChunker(TARGET, sizes)
    assert chunker.select_chunk_size(128, 0.0) == sizes[-1], (
        "nobody waits: the largest size, before any history"
    )
    slow = Machine(1.0, 0.1)
    drive(chunker, slow, 5)
    assert chunker.select_chunk_size(128, 0.0) == sizes[-1], "nobody waits: the largest, slow as it may be"
    assert drive(chunker, slow, 1) == [sizes[0]], "somebody waits again: back to what was learned"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_takes_any_waiting_request_seriously(s):
    """One of 1,000 slots decodes: it waits, and the largest size is not for it."""
    chunker = s.AdaptiveChunker(TARGET)
    chosen = chunker.select_chunk_size(64, 0.001)
    assert chosen == 64, f"a pressure of 0.001 is not 0: the base, 64, not {chosen}"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_remembers_what_it_chose(s):
    """It goes on from its last choice while requests waited; chunks of an idle moment between them do not move it."""
    chunker, machine, taken = s.AdaptiveChunker(TARGET), Machine(0.0, 0.8 * TARGET / 512), []
    for _ in range(4):
        taken += drive(chunker, machine, 1, base=32)
        for _ in range(2):
            idle = chunker.select_chunk_size(32, 0.0)
            chunker.observe(idle, machine.seconds(idle))
    assert taken == [32, 64, 128, 256], f"one size up after every chunk that keeps the target: {taken}"


@pytest.mark.task("2.7.5")
@settings(max_examples=30)
@given(
    st.sampled_from([(32, 64), LADDER, HPU, (16, 48, 96, 960)]),
    st.lists(st.tuples(st.booleans(), st.floats(0, 4 * TARGET)), max_size=60),
)
def test_chunked_prefill_chunker_moves_by_one_rung(s, sizes, chunks):
    """Whatever chunks cost, and whenever nobody waits: two choices while requests wait are neighbours on the ladder."""
    chunker, places = s.AdaptiveChunker(TARGET, sizes), []
    for is_idle, seconds in chunks:
        size = chunker.select_chunk_size(128, 0.0 if is_idle else 1.0)
        chunker.observe(size, seconds)
        if not is_idle:
            places.append(sizes.index(size))
    jumps = [(sizes[a], sizes[b]) for a, b in pairwise(places) if abs(a - b) > 1]
    assert not jumps, f"from one choice to the next at most one size of {sizes}: {jumps}"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_stays_until_it_has_seen_its_size(s):
    """A chunk of the new size was chosen, but the prompt ended before: nothing is known of that size, so it stays."""
    chunker = s.AdaptiveChunker(TARGET)
    drive(chunker, Machine(0.01, 0.0), 2, base=32)
    chosen = []
    for _ in range(3):
        chosen.append(chunker.select_chunk_size(32, 0.5))
        chunker.observe(chosen[-1] - 20, 0.01)
    assert chosen == [128] * 3, f"32 and 64 were seen, and 128 is next until it was seen: {chosen}"


@pytest.mark.task("2.7.5")
@settings(max_examples=30)
@given(
    machines().filter(lambda machine: machine.is_clear),
    st.sampled_from([32, 128, 512]),
    st.integers(0, 10**6),
    st.sampled_from([uniform, extreme]),
)
def test_chunked_prefill_chunker_settles(s, machine, base, seed, noise):
    """From any start, on any machine, with 20 % of noise, within 10 chunks at the largest size under the target."""
    settles(s.AdaptiveChunker(TARGET), machine, base=base, noise=noise(seed, 0.199), idea="20 % of noise")


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_does_not_try_too_slow_a_size_twice_in_a_row(s):
    """A chunk that is too slow is a long gap; two in a row are a longer one. Between two trials comes a good chunk."""
    costs = {32: 0.03, 64: 0.2}
    chunker, sizes = s.AdaptiveChunker(TARGET), []
    for _ in range(6):
        sizes.append(chunker.select_chunk_size(32, 0.5))
        chunker.observe(sizes[-1], costs[sizes[-1]])
    assert sizes == [32, 64, 32, 64, 32, 32], f"64 is tried twice, and never at once again: {sizes}"


@pytest.mark.task("2.7.5")
@settings(max_examples=20)
@given(st.data(), st.sampled_from([32, 512]), st.integers(0, 10**6), st.sampled_from([2.0, 0.5]))
def test_chunked_prefill_chunker_follows_a_change(s, data, base, seed, factor):
    """The machine becomes twice as slow or as fast, and then as it was: within 10 chunks it has settled again."""
    machine = data.draw(machines().filter(lambda one: one.is_clear and one.times(factor).is_clear))
    chunker, noise = s.AdaptiveChunker(TARGET), uniform(seed, 0.199)
    settles(chunker, machine, base=base, idea="before the change", noise=noise)
    settles(chunker, machine.times(factor), idea=f"costs became {factor} times what they were", noise=noise)
    settles(
        chunker, machine, idea=f"after costs were {factor} times as high, they are as before", noise=noise
    )


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("factor", [2.0, 0.5])
def test_chunked_prefill_chunker_follows_a_change_of_a_fixed_cost(s, factor):
    """Every size costs nearly the same: from all of them under the target to none, or back, is the whole ladder."""
    machine = Machine(0.02 if factor > 1 else 0.062, 3e-5)
    chunker = s.AdaptiveChunker(TARGET)
    drive(chunker, machine, 20)
    changed = machine.times(2.2 if factor > 1 else factor)
    settles(chunker, changed, idea=f"costs became {changed.fixed / machine.fixed:.1f} times what they were")


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("base", [32, 128, 512])
@pytest.mark.parametrize("seconds", [0.3, 5.0])
def test_chunked_prefill_chunker_does_not_believe_the_first_chunk(s, base, seconds):
    """The first chunk compiles. It is one of the 10 chunks, and its size is tried again."""
    chunker, machine = s.AdaptiveChunker(TARGET), Machine(0.004, 6e-5)
    chunker.observe(chunker.select_chunk_size(base, 0.5), seconds)
    settles(chunker, machine, base=base, chunks=9, idea=f"the first chunk took {seconds} s")


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_takes_the_faster_one_of_two(s):
    """After an accident the size is left, and tried again. If that chunk is fast, of the two it is the one to believe,
    whether requests waited for it or not."""
    chunker, machine = s.AdaptiveChunker(TARGET), Machine(0.03, 0.0)
    chunker.observe(chunker.select_chunk_size(512, 0.5), 5.0)
    taken = drive(chunker, machine, 4)
    assert taken == [256, 512, 512, 512], f"512 took 5 s, and then 0.03 s, of {TARGET} s: {taken}"
    chunker = s.AdaptiveChunker(TARGET)
    chunker.observe(chunker.select_chunk_size(512, 0.5), 5.0)
    drive(chunker, machine, 1)
    chunker.observe(512, 0.03)  # while nobody waited
    chosen = chunker.select_chunk_size(512, 0.5)
    assert chosen == 512, f"512 took 5 s, and then 0.03 s, of {TARGET} s: up to it, not {chosen}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("machine", [Machine(0.004, 6e-5), Machine(0.03, 1e-5), Machine(0.0, 2.5e-4)])
def test_chunked_prefill_chunker_does_not_believe_an_accident(s, machine):
    """Once settled, a chunk that takes ten times as long now and then changes nothing."""
    chunker, noise = s.AdaptiveChunker(TARGET), uniform(1, 0.199)
    settles(chunker, machine, idea="before any accident", noise=noise)
    for _ in range(6):
        size = chunker.select_chunk_size(128, 0.5)
        chunker.observe(size, 10 * machine.seconds(size))
        settles(chunker, machine, chunks=0, stays=5, idea="after one accident", noise=noise)


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(("script", "size"), [("f", 256), ("s", 256), ("sf", 256), ("ss", 128), ("sfs", 128)])
def test_chunked_prefill_chunker_believes_two_of_three(s, script, size):
    """256 has kept the target for long; now its chunks are (s)low or (f)ast. The last three count, and no others."""
    chunker = s.AdaptiveChunker(TARGET, (128, 256))
    drive(chunker, Machine(0.03, 0.0), 40)
    for letter in script:
        assert chunker.select_chunk_size(128, 0.5) == 256
        chunker.observe(256, 0.03 if letter == "f" else 0.06)
    chosen = chunker.select_chunk_size(128, 0.5)
    assert chosen == size, f"after fast chunks and then {script}: {size}, not {chosen}"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_gives_no_size_up_for_ever(s):
    """Three accidents in a row, and the size is given up; long after them it is tried again. So is what is too slow."""
    machine = Machine(0.012, 9e-5)
    chunker = s.AdaptiveChunker(TARGET)
    settles(chunker, machine, idea="before the accidents")
    for _ in range(3):
        chunker.observe(256, 1.0)
    taken = drive(chunker, machine, 1200)
    assert taken[10] == 128, f"256 took a second three times: it is given up, not {taken[:11]}"
    assert taken[-1] == 256, "1,200 good chunks later 256, which keeps the target, is still given up"
    assert taken.count(512) <= 8, f"512 is too slow, and was tried {taken.count(512)} times in 1,200 chunks"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_tries_again_every_500_chunks(s):
    """A size that is too slow is tried twice, and twice again after every 500 chunks: 1 in 250 is not seen in p99."""
    taken = drive(s.AdaptiveChunker(TARGET, (32, 64)), Machine(0.0, 0.7 * TARGET / 32), 1400, base=32)
    tried = [at for at, size in enumerate(taken) if size == 64]
    assert tried == [1, 3, 500, 502, 1000, 1002], f"64 is too slow, and was tried by the chunks {tried}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("sizes", [LADDER, HPU, (64,)])
def test_chunked_prefill_chunker_never_goes_below_the_smallest(s, sizes):
    """Even the smallest size is too slow: it is taken all the same. A prompt that stands still helps nobody."""
    chunker = s.AdaptiveChunker(TARGET, sizes)
    sizes_taken = drive(chunker, Machine(0.2, 1e-4), 30, base=512)
    assert set(sizes_taken[6:]) == {sizes[0]}, f"all are over the target: the smallest, not {sizes_taken}"
    assert set(sizes_taken) <= set(sizes), f"only sizes of {sizes}: {sizes_taken}"


@pytest.mark.task("2.7.5")
def test_chunked_prefill_chunker_follows_a_growing_context(s):
    """It knows nothing of context. As a prompt grows, and its chunks cost more, it goes down after two slow chunks; a
    new prompt, whose chunks cost half, takes it up again."""
    chunker, base = s.AdaptiveChunker(TARGET), Machine(0.0, 0.7 * TARGET / 256)
    drive(chunker, base, 20)
    taken, slow = [], []
    for chunk in range(200):
        now = base.times(1 + chunk / 200)
        taken += drive(chunker, now, 1)
        slow.append(now.seconds(taken[-1]) > TARGET)
    assert taken == sorted(taken, reverse=True), f"costs only grow, so sizes only fall: {taken}"
    assert (taken[0], taken[-1]) == (256, 128) and sum(slow) == 2, (
        f"from 256 to 128 after two chunks over the target: {sum(slow)} chunks were over it, and {taken}"
    )
    settles(chunker, base, idea="a new prompt, whose chunks cost half of the last ones")


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("at", [32, 256, 512])
def test_chunked_prefill_chunker_does_not_go_up_and_down(s, seed, at):
    """A size that costs just about the target, with noise: it is taken or it is not. Each change is a worse gap."""
    chunker, machine = s.AdaptiveChunker(TARGET), Machine(0.0, TARGET / at)
    taken = drive(chunker, machine, 150, noise=uniform(seed, 0.199))
    changes = sum(a != b for a, b in pairwise(taken[10:]))
    assert changes <= 2, f"{at} costs the target: {changes} changes of size in 140 chunks"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    ("size", "above", "expected", "why"),
    [
        (1.0, 2.0, 64, "a chunk that takes exactly the target keeps it: stay"),
        (1.01, 2.0, 32, "a chunk that takes longer than the target does not keep it: down"),
        (0.5, 0.9, 128, "exactly 90 % of the target is enough to go up"),
        (0.5, 0.91, 64, "more than 90 % of the target is too much to go up"),
        (1.0, 0.9, 128, "exactly the target here, and 90 % above: up"),
    ],
)
def test_chunked_prefill_chunker_borders(s, size, above, expected, why):
    """At the target and at 90 % of it: three chunks of 64 and of 128 have cost exactly this many seconds of 1."""
    chunker = s.AdaptiveChunker(1.0)
    assert chunker.select_chunk_size(64, 0.5) == 64
    for _ in range(3):
        chunker.observe(128, above)
        chunker.observe(64, size)
    chosen = chunker.select_chunk_size(64, 0.5)
    assert chosen == expected, f"64 took {size}, 128 took {above}, target 1: {expected}, not {chosen}. {why}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("settled", [128, 256, 512])
@pytest.mark.parametrize("tokens", [2, 31, 100, 200, 300, 513, 2048])
def test_chunked_prefill_chunker_ignores_chunks_of_no_size(s, tokens, settled):
    """The end of a prompt, or a chunk above the ladder: its cost is that of no size, so nothing is learned from it."""
    fast, slow = (s.AdaptiveChunker(TARGET) for _ in range(2))
    machine, chosen = Machine(0.0, 0.7 * TARGET / settled), []
    for chunker, seconds in ((fast, 0.0), (slow, 9 * TARGET)):
        drive(chunker, machine, 12)
        for _ in range(5):
            chunker.observe(tokens, seconds)
            chosen += drive(chunker, machine, 1)
    assert set(chosen) == {settled}, f"chunks of {tokens} tokens say nothing of {settled}: {chosen}"


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize(
    "wrong",
    [
        lambda s: s.AdaptiveChunker(0.0),
        lambda s: s.AdaptiveChunker(math.nan),
        lambda s: s.AdaptiveChunker(sizes=()),
        lambda s: s.AdaptiveChunker(sizes=(64, 32)),
        lambda s: s.AdaptiveChunker().observe(0, 0.1),
        lambda s: s.AdaptiveChunker().observe(32, -0.1),
        lambda s: s.AdaptiveChunker().observe(32, math.nan),
        lambda s: s.AdaptiveChunker().select_chunk_size(0, 0.5),
        lambda s: s.AdaptiveChunker().select_chunk_size(128, 1.1),
        lambda s: s.AdaptiveChunker().select_chunk_size(128, -0.1),
    ],
)
def test_chunked_prefill_chunker_refuses_nonsense(s, wrong):
    """Numbers that mean nothing. A clock that stood still is no nonsense."""
    chunker = s.AdaptiveChunker()
    chunker.observe(32, 0.0)
    assert chunker.select_chunk_size(32, 0.5) in LADDER, "a chunk in 0 seconds is fast, and no error"
    with pytest.raises(ValueError):
        wrong(s)


class PricedModel(FakeModel):
    """A `FakeModel` whose chunks cost what a machine says, and whose decode steps all cost the same."""

    DECODE = 0.004

    def __init__(self, answers, machine, **options):
        super().__init__(answers, **options)
        self.machine = machine

    def prefill(self, tokens, offset, kv_cache, **options):
        start = self.clock.now
        chosen = super().prefill(tokens, offset, kv_cache, **options)
        self.clock.now = start + self.machine.seconds(len(tokens))
        return chosen

    def decode(self, tokens, offsets, kv_cache, **options):
        start = self.clock.now
        chosen = super().decode(tokens, offsets, kv_cache, **options)
        self.clock.now = start + self.DECODE
        return chosen


@pytest.mark.task("2.7.5")
@pytest.mark.parametrize("sizes", [(4, 8, 16, 32, 64), (16, 32, 64)])
def test_chunked_prefill_scheduler_with_a_chunker_keeps_the_target(s, sizes):
    """Long prompts among three that decode: aligned chunks, and once settled no gap above the target and one decode."""
    machine = Machine(0.01, 8e-4)
    long = [name * 700 for name in "xyz"]
    answers = dict.fromkeys("abc", "-" * 150) | dict.fromkeys(long, "ok")
    clock, parts, chunks, tokens = SimulatedClock(), [], [], []
    model = PricedModel(answers, machine, max_model_len=800, clock=clock)

    def on_event(event):
        parts.extend(event.parts)
        chunks.extend(part for part in event.parts if part.kind == "chunk")
        if event.kind == "token" and event.request.prompt == "a":
            tokens.append((event.time, len(chunks)))

    done = s.batch_generate_with_chunked_prefill(
        model,
        ByteTokenizer(),
        [*"abc", *long],
        batch_size=5,
        max_seq_len=800,
        clock=clock,
        on_event=on_event,
        chunker=s.AdaptiveChunker(TARGET, sizes),
    )
    assert [len(completion.text) for completion in done] == [150] * 3 + [2] * 3, "every answer is whole"
    assert all(chunk.context % sizes[0] == 0 for chunk in chunks), "chunks begin at multiples of sizes[0]"
    longest = max(chunk.tokens for chunk in chunks)
    assert longest <= sizes[-1], (
        f"a chunk of {longest} tokens, and the chunker chose {sizes[-1]} at most: `try_prefill` of Task 2.7.2 must not"
        " compute more than `prefill_max_step`"
    )
    drained = [b.context for a, b in pairwise(parts) if a.kind == b.kind == "chunk" and a.running]
    assert not drained, (
        f"no decode step between two chunks, {len(drained)} times, though requests were ready: that is the scheduler of"
        " Task 2.7.3, and no chunk size can help"
    )
    waited = [chunk for chunk in chunks if chunk.running and chunk.context + chunk.tokens < 700]
    later = [chunk for chunk in waited[10:] if chunk.tokens in sizes]
    assert len(later) > 20, (
        f"only {len(later)} chunks of a size of the ladder were computed while requests decoded: {waited}"
    )
    wrong = [chunk.tokens for chunk in later if chunk.tokens != machine.largest(sizes)]
    assert not wrong, f"once settled every chunk is the largest under the target, and these are not: {wrong}"
    settled = [later - earlier for (earlier, _), (later, n) in pairwise(tokens) if n > 13]
    limit = TARGET + PricedModel.DECODE + 1e-9
    assert max(settled) <= limit, f"a gap of {max(settled)} s: a chunk of {TARGET} s and a decode are {limit}"


# Task 2.7.7: metrics.


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([3.0], 50, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 50, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 51, 3.0),
        ([5.0, 1.0, 9.0], 50, 5.0),
        ([5.0, 1.0, 9.0], 99, 9.0),
        ([*range(1, 101)], 99, 99),
        ([*range(200, 0, -1)], 99, 198),
        ([*range(1, 101)], 100, 100),
    ],
)
def test_chunked_prefill_percentile_is_a_value_that_was_seen(s, values, p, expected):
    """Nearest rank: number ⌈p · n / 100⌉ in order. Nothing between two values is made up."""
    found = s.percentile(values, p)
    assert found == expected, f"p{p} of {len(values)} values is {expected}, not {found}"
    for wrong in (([], 50), ([1.0], 0), ([1.0], 101)):
        with pytest.raises(ValueError):
            s.percentile(*wrong)


@pytest.mark.task("2.7.7")
@given(
    st.lists(st.integers(-50, 50) | st.floats(-1e6, 1e6), min_size=1, max_size=250),
    st.sampled_from([1, 5, 10, 25, 50, 75, 90, 95, 99, 100]),
)
@settings(max_examples=60)
def test_chunked_prefill_percentile_equals_numpy(s, values, p):
    """NumPy calls nearest rank "inverted_cdf". The course's own reports use that, and yours must say the same."""
    found, expected = s.percentile(values, p), numpy_percentile(values, p)
    assert found == expected, f"p{p} of {sorted(values)}: NumPy says {expected}, not {found}"


def divided(read) -> float:
    """A number that is the result of a division; a division by zero fails the test by name."""
    try:
        return read()
    except ZeroDivisionError:
        pytest.fail("a division by zero: say what the docstring says when there is nothing to divide by")


@pytest.mark.task("2.7.7")
def test_chunked_prefill_average_has_no_bias_at_the_start(s):
    """Chunks of 2 s each have an average of 2 s, from the first one on, and later ones weigh more."""
    metrics = s.ChunkedPrefillMetrics(smoothing=0.25)
    assert divided(lambda: metrics.avg_chunk_time) == 0, "no chunk, no time, and no division by nothing"
    for count in range(1, 6):
        metrics.record_prefill_chunk(2.0, 128)
        assert metrics.avg_chunk_time == pytest.approx(2.0), (
            f"{count} chunks of 2 s: {metrics.avg_chunk_time}"
        )
    assert metrics.prefill_chunks_processed == 5
    metrics = s.ChunkedPrefillMetrics(smoothing=0.25)
    for seconds in (1.0, 2.0, 4.0):
        metrics.record_prefill_chunk(seconds, 128)
    weights = [0.25 * 0.75**age for age in (2, 1, 0)]
    expected = (weights[0] * 1 + weights[1] * 2 + weights[2] * 4) / sum(weights)
    assert metrics.avg_chunk_time == pytest.approx(expected), "weights of ¼ · ¾ᵃᵍᵉ, divided by their sum"


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    ("chunks", "decodes", "interleaving", "seconds", "average"),
    [
        ([], [], math.inf, math.inf, 0.0),
        ([0.5, 0.5], [], math.inf, math.inf, 0.5),
        ([], [0.25, 0.25], 0.0, 0.0, 0.0),
        ([0.5], [0.0, 0.0], 0.5, math.inf, 0.5),
        ([0.0, 0.0], [0.5], 2.0, 0.0, 0.0),
        ([0.0], [0.0], 1.0, math.inf, 0.0),
        ([1e-9], [1e-9], 1.0, 1.0, 1e-9),
        ([0.5, 1.5], [0.125] * 4, 0.5, 4.0, (0.09 * 0.5 + 0.1 * 1.5) / 0.19),
    ],
)
def test_chunked_prefill_ratios_of_chunks_and_decodes(s, chunks, decodes, interleaving, seconds, average):
    """Chunks by decode steps, however many requests share a step, and seconds by seconds.

    Only chunks, only decode steps, neither, or a clock that stood still: no division by zero, no side lost.
    """
    metrics = s.ChunkedPrefillMetrics()
    for time in chunks:
        metrics.record_prefill_chunk(time, 128)
    for time in decodes:
        metrics.record_decode_step(time, requests=2)
    told = f"chunks of {chunks} s and decode steps of {decodes} s"
    assert metrics.prefill_chunks_processed == len(chunks), (
        f"{told}: {metrics.prefill_chunks_processed} chunks"
    )
    assert metrics.decode_steps == len(decodes), f"{told}: {metrics.decode_steps} decode steps"
    assert metrics.decode_requests_served == 2 * len(decodes), (
        f"{told}, two requests each: {metrics.decode_requests_served} served"
    )
    ratio = divided(metrics.get_interleaving_ratio)
    assert ratio == interleaving, f"{told}: chunks by decode steps are {interleaving}, not {ratio}"
    ratio = divided(lambda: metrics.prefill_to_decode_ratio)
    assert ratio == pytest.approx(seconds), f"{told}: seconds by seconds are {seconds}, not {ratio}"
    found = divided(lambda: metrics.avg_chunk_time)
    assert found == pytest.approx(average, abs=0), f"{told}: an average chunk takes {average} s, not {found}"
    json.dumps(metrics.summary(), allow_nan=False)


@pytest.mark.task("2.7.7")
def test_chunked_prefill_ttft_counts_from_the_arrival(s):
    """Also the time before the prefill begins. A request whose arrival nobody told has none."""
    metrics = s.ChunkedPrefillMetrics()
    metrics.record_arrival("first", 1.0)
    metrics.record_arrival("second", 2.0)
    metrics.record_prefill_chunk(3.0, 128)
    metrics.record_token("first", 4.0)
    metrics.record_prefill_chunk(3.0, 128)
    metrics.record_token("second", 7.0)
    metrics.record_token("second", 8.0)
    metrics.record_token("stranger", 9.0)
    assert metrics.ttft == {"first": 3.0, "second": 5.0}, f"from arrival to the first token: {metrics.ttft}"


@pytest.mark.task("2.7.7")
def test_chunked_prefill_gaps_belong_to_one_request(s):
    """Two requests in turns. A gap is between two tokens of one of them; TPOT spreads them over all but the first."""
    metrics = s.ChunkedPrefillMetrics()
    for request, time in ((0, 1.0), (1, 2.0), (0, 3.0), (0, 3.5), (1, 8.0), (2, 9.0)):
        metrics.record_token(request, time)
    assert metrics.tbt == [2.0, 0.5, 6.0], f"each gap within its own request: {metrics.tbt}"
    assert metrics.longest_gap == 6.0, f"the longest of them: {metrics.longest_gap}"
    assert metrics.tpot == {0: 1.25, 1: 6.0}, (
        f"(last − first) / (tokens − 1), of one token none: {metrics.tpot}"
    )


@pytest.mark.task("2.7.7")
@pytest.mark.parametrize(
    ("script", "stalls"),
    [
        ("128 d " * 16, 0),
        ("2048", 15),
        ("128 " * 16, 15),
        ("2048 d 2048 d", 30),
        ("64 64 d 64 64", 0),
        ("64 65", 1),
        ("129", 1),
        ("100 d 100 d 100", 0),
        ("-2048 -128 128 d", 0),
        ("128 -512 128", 1),
        ("1", 0),
        ("", 0),
    ],
)
def test_chunked_prefill_stall_steps(s, script, stalls):
    """Numbers are chunks that a request waited for, with a minus nobody did; d is a decode step. 128 are agreed.

    One chunk of 128 tokens between two decode steps is the price; each further one that is begun is a stall. A whole
    prompt of 2,048 is 15 of them, and so are 16 chunks without a decode between them.
    """
    metrics = s.ChunkedPrefillMetrics(prefill_step=128)
    for word in script.split():
        if word == "d":
            metrics.record_decode_step(0.01)
        else:
            metrics.record_prefill_chunk(0.1, abs(int(word)), waiting_decodes=int(not word.startswith("-")))
    metrics.record_decode_step(0.01)
    assert metrics.stall_steps == stalls, f"{script!r}: {stalls} stalls, not {metrics.stall_steps}"


@pytest.mark.task("2.7.7")
def test_chunked_prefill_summary_is_exact(s):
    """A scripted trace with different counts of everything; milliseconds; None instead of what JSON has not."""
    empty = s.ChunkedPrefillMetrics().summary()
    assert json.loads(json.dumps(empty, allow_nan=False))["tbt_p99_ms"] is None, "no gap: None"
    assert empty["interleaving_ratio"] is None, "infinite is None in JSON"
    metrics = s.ChunkedPrefillMetrics(prefill_step=8)
    metrics.record_arrival("x", 1.0)
    metrics.record_arrival("y", 1.5)
    for seconds in (3.0, 4.0, 5.0):
        metrics.record_prefill_chunk(seconds, 20, waiting_decodes=1)
    for requests in (2, 3, 3, 1):
        metrics.record_decode_step(0.5, requests)
    for request, time in (("x", 20.0), ("y", 21.0), ("x", 22.0), ("x", 25.0), ("y", 31.0), ("y", 33.0)):
        metrics.record_token(request, time)
    metrics.record_finish("y", 33.0)
    expected = {
        "prefill_step": 8,
        "requests": 2,
        "finished": 1,
        "tokens": 6,
        "prefill_chunks_processed": 3,
        "decode_steps": 4,
        "decode_requests_served": 9,
        "stall_steps": 7,
        "interleaving_ratio": 0.75,
        "prefill_to_decode_ratio": 6.0,
        "avg_chunk_ms": pytest.approx((0.081 * 3000 + 0.09 * 4000 + 0.1 * 5000) / 0.271),
        "ttft_p50_ms": 19000.0,
        "ttft_p99_ms": 19500.0,
        "tbt_p50_ms": 2000.0,
        "tbt_p99_ms": 10000.0,
        "tpot_p50_ms": 2500.0,
        "tpot_p99_ms": 6000.0,
        "longest_gap_ms": 10000.0,
        "total_ms": 32000.0,
    }
    found = metrics.summary()
    wrong = {name: number for name, number in found.items() if number != expected.get(name)}
    assert found == expected, f"{wrong}: expected { ({name: expected.get(name) for name in wrong}) }"


@pytest.mark.task("2.7.7")
def test_chunked_prefill_metrics_keep_no_more_than_they_are_told(s):
    """A server runs for months: of gaps and of finished requests the newest stay, the counters and the longest too."""
    metrics = s.ChunkedPrefillMetrics(keep=3)
    for request in range(50):
        metrics.record_arrival(request, float(request))
        for time in (0.0, 0.25, 0.5 if request else 0.9):
            metrics.record_token(request, request + time)
        metrics.record_finish(request, request + 0.9)
    assert [*metrics.ttft] == [*metrics.tpot] == [47, 48, 49], f"the newest three: {[*metrics.ttft]}"
    assert len(metrics.tbt) == 3, f"the newest three gaps: {metrics.tbt}"
    assert metrics.longest_gap == pytest.approx(0.65), "the longest gap is never forgotten"
    assert (metrics.requests, metrics.finished, metrics.tokens) == (50, 50, 150)


def served(s, step: int, **options):
    """Two requests on a fake clock, a second a token: one decodes already when a prompt of 12 tokens comes."""
    clock = SimulatedClock()
    model = FakeModel({"a": "12345", "b" * 12: [ord("6"), END]}, clock=clock)
    metrics = s.ChunkedPrefillMetrics(prefill_step=4)
    scheduler = s.ChunkedPrefillScheduler(model, 2, step, 64, metrics=metrics, clock=clock, **options)
    for index, prompt in enumerate(("a", "b" * 12)):
        scheduler.add(s.Request(model, ByteTokenizer(), prompt, prompt_idx=index))
    for _ in steps_of(scheduler):
        scheduler.step()
    return metrics


@pytest.mark.task("2.7.7")
def test_chunked_prefill_metrics_of_a_run(s):
    """What a scheduler tells, chunked: gaps of one chunk and one decode, no stalls; an end token is no token."""
    metrics = served(s, step=4)
    assert metrics.stall_steps == 0, "one chunk of 4 tokens between two decode steps is what was agreed"
    assert metrics.tbt == [1.0, 5.0, 5.0, 6.0], f"a decode, then chunk and decode: {metrics.tbt}"
    assert metrics.ttft == {0: 1.0, 1: 16.0}, f"from the arrival at 0: {metrics.ttft}"
    assert metrics.tokens == 6, f"5 and 1; the ids that end the texts are none: {metrics.tokens}"
    assert metrics.decode_requests_served == 6, "4 steps for one, and one for two of them"


@pytest.mark.task("2.7.7")
def test_chunked_prefill_metrics_of_an_unchunked_run(s):
    """The same with whole prompts: the promise of 4 tokens is broken twice, and one gap holds the whole prompt."""
    metrics = served(s, step=999999)
    assert metrics.stall_steps == 2, "12 tokens are three chunks of 4, and one is the price that was agreed"
    assert metrics.longest_gap == 14.0, f"12 tokens of a prompt and a decode of two: {metrics.longest_gap}"
    assert metrics.prefill_chunks_processed == 2, "two prompts"


# Task 2.7.8: the sweep.


class FakeRun:
    """Runs that cost what a table says; each run of a step takes the next of its numbers."""

    def __init__(self, table: dict):
        self.table, self.order = {step: list(rows) for step, rows in table.items()}, []

    def __call__(self, step):
        self.order.append(step)
        total, gap = self.table[step].pop(0)
        return {"total_ms": total, "tbt_p99_ms": gap, "stall_steps": 0}


@pytest.mark.task("2.7.8")
def test_chunked_prefill_sweep_says_what_is_lost_and_won(s):
    """Compared with whole prompts: the share of time that is added, the share of the p99 gap that is saved."""
    rows = s.sweep_chunk_sizes(
        FakeRun({32: [(150, 10)], 128: [(110, 25)], 512: [(98, 60)], None: [(100, 100)]})
    )
    assert [row["step"] for row in rows] == [32, 128, 512, None], "a row for every size, in their order"
    lost, won = [row["total_lost"] for row in rows], [row["gap_won"] for row in rows]
    assert lost == pytest.approx([0.5, 0.1, -0.02, 0.0]), f"of the total time: {lost}"
    assert won == pytest.approx([0.9, 0.75, 0.4, 0.0]), f"of the p99 gap: {won}"
    assert rows[0]["total_ms"] == 150 and rows[1]["tbt_p99_ms"] == 25, (
        "every number of the summary is in the row"
    )


@pytest.mark.task("2.7.8")
@pytest.mark.parametrize("steps", [(128, None, 32, 512), (512, 128, 32), (None, 8, 16), (16, 8, None)])
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_chunked_prefill_sweep_gives_rows_in_the_order_of_steps(s, steps, rounds):
    """A reader compares the rows with what was asked for: neither sorted, nor in the order of any round."""
    run = FakeRun({step: [(place + 1, 1)] * rounds for place, step in enumerate(steps)})
    rows = s.sweep_chunk_sizes(run, steps, rounds=rounds)
    found = tuple(row["step"] for row in rows)
    assert found == steps, f"rows in the order of steps, {steps}, not {found}"
    numbers = [row["total_ms"] for row in rows]
    assert numbers == [*range(1, len(steps) + 1)], f"each row has the numbers of its own step: {numbers}"


@pytest.mark.task("2.7.8")
def test_chunked_prefill_sweep_takes_turns(s):
    """Three rounds of three sizes: each size is once the first, once the second, once the last."""
    run = FakeRun(dict.fromkeys((8, 16, None), [(1, 1)] * 3))
    s.sweep_chunk_sizes(run, (8, 16, None), rounds=3)
    assert run.order == [8, 16, None, 16, None, 8, None, 8, 16], (
        f"the order turns by one a round: {run.order}"
    )


@pytest.mark.task("2.7.8")
def test_chunked_prefill_sweep_takes_medians(s):
    """One slow round is an accident: the median does not see it, the mean would. A round without a gap has none."""
    table = {64: [(100, None), (110, 30), (900, 50)], None: [(100, 80), (100, 80), (700, 800)]}
    rows = s.sweep_chunk_sizes(FakeRun(table), (64, None), rounds=3)
    assert [row["total_ms"] for row in rows] == [110, 100], "medians of the total time"
    assert [row["tbt_p99_ms"] for row in rows] == [40, 80], "medians of the gaps that there are"
    assert (rows[0]["total_lost"], rows[0]["gap_won"]) == pytest.approx((0.1, 0.5)), "of the medians"


@pytest.mark.task("2.7.8")
def test_chunked_prefill_sweep_without_whole_prompts(s):
    """Nothing to compare with: None, and no error. Metrics themselves serve as well as their summary."""
    metrics = SimpleNamespace(summary=lambda: {"total_ms": 3.0, "tbt_p99_ms": None, "longest_gap_ms": None})
    [row] = s.sweep_chunk_sizes(lambda step: metrics, [64], rounds=2)
    assert (row["step"], row["total_ms"], row["longest_gap_ms"]) == (64, 3.0, None)
    assert row["total_lost"] is None and row["gap_won"] is None, "without None nothing is compared"
    whole = s.sweep_chunk_sizes(lambda step: metrics)[-1]
    assert (whole["total_lost"], whole["gap_won"]) == (0.0, None), "a run without any gap has none to win"


@pytest.mark.task("2.7.8")
@pytest.mark.parametrize(
    "wrong", [{"steps": ()}, {"steps": (8, 8)}, {"steps": (0, None)}, {"rounds": 0}], ids=str
)
def test_chunked_prefill_sweep_refuses_nonsense(s, wrong):
    """No size, a size twice, an empty chunk, no round."""
    right = {"run": lambda step: {"total_ms": 1.0}, "steps": (8, None)}
    assert len(s.sweep_chunk_sizes(**right)) == 2, "without the wrong number it works"
    with pytest.raises(ValueError):
        s.sweep_chunk_sizes(**{**right, **wrong})


# Task 2.7.9: who goes first.


class Ticket:
    """What a queue may know of a request. It counts how often it is looked at."""

    looks = 0

    def __init__(self, name: str, tokens: int = 1):
        self.name, self._tokens = name, [0] * tokens

    @property
    def priority(self) -> str:
        Ticket.looks += 1
        return "batch" if self.name.startswith("b") else "interactive"

    @property
    def prompt_tokens(self) -> list[int]:
        Ticket.looks += 1
        return self._tokens

    def __repr__(self) -> str:
        return self.name


def queue_of(s, names: str, patience: int = 8):
    """A queue of tickets, i… for interactive and b… for batch; "b1:30" has 30 tokens."""
    queue = s.PriorityScheduler(patience)
    for word in names.split():
        name, _, tokens = word.partition(":")
        queue.add(Ticket(name, int(tokens or 1)))
    return queue


def drain(queue, **how) -> str:
    """The names of all that come out, in order."""
    names = []
    for _ in range(1000):
        if (ticket := queue.schedule_next(**how)) is None:
            return " ".join(names)
        names.append(ticket.name)
    pytest.fail(f"`schedule_next` does not remove what it returns: {' '.join(names[:5])} …")


@pytest.mark.task("2.7.9")
@pytest.mark.parametrize(
    ("names", "order"),
    [
        ("i1 i2 i3", "i1 i2 i3"),
        ("b1 b2 b3", "b1 b2 b3"),
        ("b1 i1 b2 i2", "i1 i2 b1 b2"),
        ("i1 b1 i2 b2 i3", "i1 i2 i3 b1 b2"),
    ],
)
def test_chunked_prefill_priority_interactive_goes_first(s, names, order):
    """Interactive before batch, first come first served in each class, and None when nobody is left."""
    queue = queue_of(s, names)
    assert len(queue) == len(names.split()), f"{len(queue)} wait"
    assert drain(queue) == order
    assert queue.schedule_next() is None, "an empty queue gives None, and no error"
    assert len(queue) == 0
    queue.add(Ticket("i9"))
    assert drain(queue) == "i9", "it serves on after it was empty"


@pytest.mark.task("2.7.9")
@pytest.mark.parametrize("patience", [1, 3, 8])
def test_chunked_prefill_priority_nothing_starves(s, patience):
    """Interactive requests never end. After `patience` of them the oldest batch request goes, each time anew."""
    queue, order = queue_of(s, "b1 b2 b3", patience), []
    for _ in range(3 * (patience + 1) + 2):
        queue.add(Ticket("i"))
        order.append(queue.schedule_next().name)
    turns = [at for at, name in enumerate(order) if name != "i"]
    expected = [patience, 2 * patience + 1, 3 * patience + 2]
    assert [order[at] for at in turns] == ["b1", "b2", "b3"], f"the oldest batch request first: {order}"
    assert turns == expected, f"one batch request after every {patience} interactive ones: {order}"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_short_batch_prompts_do_not_starve_the_oldest(s):
    """A short batch prompt that leaves by `shorter_than` is another one: the oldest has waited on."""
    queue = queue_of(s, "b1:9", patience=2)
    for _ in range(2):
        for name in ("i:9", "b:3"):
            queue.add(Ticket(name[0], int(name[2:])))
        assert queue.schedule_next().name == "i" and queue.shorter_than(5).name == "b"
    queue.add(Ticket("i", 9))
    assert queue.schedule_next().name == "b1", "two interactive ones went: it is the turn of b1"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_counts_only_while_a_batch_request_waits(s):
    """Interactive requests that went before it came did not make it wait."""
    queue = queue_of(s, "i1 i2 i3 i4 i5", patience=2)
    for _ in range(3):
        queue.schedule_next()
    queue.add(Ticket("b1"))
    assert drain(queue) == "i4 i5 b1", "two more interactive ones go before b1, which has just come"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_the_count_is_set_back_by_nothing_else(s):
    """A wait goes on when another batch request comes, and when an interactive one takes a slot that was kept."""
    queue = queue_of(s, "b1 i1 i2 i3 i4", patience=2)
    order = [queue.schedule_next().name]
    queue.add(Ticket("b2"))
    order.append(queue.schedule_next().name)
    assert (order, queue.schedule_next().name) == (["i1", "i2"], "b1"), (
        "i1 and i2 have passed b1: that b2 came in between changes nothing"
    )
    queue = queue_of(s, "b1 i1 i2 i3 i4", patience=2)
    order = [queue.schedule_next(interactive_only=only).name for only in (False, True, False)]
    assert (order, queue.schedule_next().name) == (["i1", "i2", "i3"], "b1"), (
        "i1 and i3 have passed b1; i2 took a slot that was kept, which neither counts nor starts a new count"
    )


@pytest.mark.task("2.7.9")
@pytest.mark.parametrize("reserved", [0, 1])
def test_chunked_prefill_priority_a_batch_request_runs_in_the_end(s, reserved):
    """Interactive requests come in every step. The batch request is computed after `patience` of them, and answered."""
    names = [f"i{n:02d}" for n in range(40)]
    model = FakeModel({**dict.fromkeys(names, "u"), "batch": "xyz"})
    turns = s.Turns(s.PriorityScheduler(3), reserved_decode_slots=reserved)
    scheduler = s.ChunkedPrefillScheduler(model, 2, 8, 64, turns=turns, clock=model.clock)
    batch = s.Request(model, ByteTokenizer(), "batch", priority="batch")
    scheduler.add(batch)
    for name in names:
        scheduler.add(s.Request(model, ByteTokenizer(), name))
        if not batch.is_done:
            scheduler.step()
    prompts = [call.removeprefix("prompt ") for call in model.trace if call.startswith("prompt")]
    assert prompts[3:4] == ["batch"], f"after 3 interactive prompts the batch request goes: {prompts}"
    assert batch.text == "xyz", f"it runs to its end while interactive requests keep coming: {batch.text!r}"
    scheduler.close()


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_slots_for_interactive_only(s):
    """A slot that is kept: a batch request does not take it, also when it is next; whoever does has passed nobody."""
    queue = queue_of(s, "b1 i1 i2 i3", patience=2)
    assert drain(queue, interactive_only=True) == "i1 i2 i3", "kept slots are for all interactive ones"
    assert drain(queue) == "b1", "with a slot for everyone b1 goes"
    queue = queue_of(s, "b1 i1 i2 i3 i4 i5", patience=2)
    for _ in range(2):
        queue.schedule_next(interactive_only=True)
    assert drain(queue) == "i3 i4 b1 i5", "i1 and i2 took slots that were kept: only i3 and i4 passed b1"
    assert drain(queue_of(s, "b1"), interactive_only=True) == "", "no interactive request waits"
    assert drain(queue_of(s, "i1"), interactive_only=True) == "i1"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_takes_the_shortest_prompt(s):
    """Strictly shorter than the tokens that are left of another; an interactive one first, whatever its length."""
    queue = queue_of(s, "b1:3 b2:2 i1:9 i2:7 i3:8")
    assert queue.shorter_than(2) is None, "nobody has fewer than 2 tokens"
    assert queue.shorter_than(8).name == "i2", "the shortest interactive prompt: batch ones are shorter"
    assert queue.shorter_than(8, interactive_only=True) is None, "8 is not fewer than 8, and batch may not go"
    assert queue.shorter_than(8).name == "b2", "then the shortest batch prompt"
    assert drain(queue) == "i1 i3 b1", "who has left is gone from every order"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_short_prompts_count_for_ageing(s):
    """An interactive prompt that goes because it is short has passed the batch request like any other."""
    queue = queue_of(s, "b1:50 i1:1 i2:1 i3:1", patience=2)
    assert [queue.shorter_than(10).name for _ in range(2)] == ["i1", "i2"]
    assert queue.schedule_next().name == "b1", "two have gone while b1 waited: it is next"


@pytest.mark.task("2.7.9")
@settings(max_examples=40)
@given(st.integers(1, 4), st.lists(st.sampled_from("ibtoTs"), max_size=40))
def test_chunked_prefill_priority_bounds_every_wait(s, patience, script):
    """Any mix of arrivals and of takes: nobody is lost or doubled, each class is in order, and no wait is endless."""
    queue, waiting, passed = s.PriorityScheduler(patience), {"i": [], "b": []}, 0
    for number, letter in enumerate(script):
        if letter in "ib":
            waiting[letter].append(f"{letter}{number}")
            passed = 0 if letter == "b" and len(waiting["b"]) == 1 else passed
            queue.add(Ticket(waiting[letter][-1], 1 + number * 7 % 5))
            continue
        ticket = (
            queue.shorter_than(4) if letter == "s" else queue.schedule_next(interactive_only=letter == "T")
        )
        if ticket is None:
            assert letter != "t" or not any(waiting.values()), "somebody waits, and nobody was chosen"
            continue
        kind = ticket.name[0]
        assert ticket.name in waiting[kind], f"{ticket} does not wait (any more)"
        assert letter == "s" or waiting[kind][0] == ticket.name, (
            f"{ticket} is not the first of {waiting[kind]}"
        )
        assert letter != "T" or kind == "i", f"{ticket} took a slot for interactive ones"
        waiting[kind].remove(ticket.name)
        if kind == "i" and waiting["b"] and letter != "T":
            passed += 1
            assert passed <= patience or letter == "s", (
                f"{passed} passed {waiting['b'][0]}: patience {patience}"
            )
        elif kind == "b" and letter != "s":
            passed = 0
    assert len(queue) == sum(map(len, waiting.values())), "as many wait as have come and not gone"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_costs_the_same_with_10000_waiting(s):
    """Looks at requests are counted, no clock: a call looks at a few of them, however many wait."""

    def looks(waiting: int) -> int:
        queue = queue_of(s, " ".join(f"{'ib'[n % 2]}{n}:{1 + n % 7}" for n in range(waiting)))
        before = Ticket.looks
        for n in range(100):
            queue.add(Ticket(f"i{n}", 3))
            assert queue.schedule_next() and queue.shorter_than(9)
        return Ticket.looks - before

    few, many = looks(100), looks(10_000)
    assert many <= 2 * few, f"100 rounds look at {few} requests with 100 waiting, and at {many} with 10,000"


@pytest.mark.task("2.7.9")
def test_chunked_prefill_priority_refuses_no_patience(s):
    """With a patience of 0 batch requests would always go first."""
    assert len(s.PriorityScheduler(1)) == 0
    with pytest.raises(ValueError, match="0"):
        s.PriorityScheduler(0)
