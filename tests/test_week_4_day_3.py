"""Week 4 Day 3: speculative decoding. Most tests need no arrays: a model that checks every batch computes the steps.

Oracles: exact plans and batches; each request's answer as it is without drafts, also from a small random model.
"""

from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.packed import PackedServing
from support.served import Guesses, Served, sequence
from support.steps import steps_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_extensions.make_loop import make_loop

QWEN = small_model(
    43, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=400
)

# What followed before.


def continuation(s, text, k=4, shortest=2, longest=4) -> str:
    """The drafts for a text of letters."""
    return bytes(s.NgramIndex(shortest, longest).continuation([*text.encode()], k)).decode()


@pytest.mark.task("4.3.1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the cat and the c", "at a"),
        ("abcdefgh ab", "cdef"),
        ("abc", ""),
        ("ab", ""),
        ("a", ""),
        ("", ""),
        ("xy..y", ""),
    ],
)
def test_the_end_of_a_text_is_looked_up_in_it(s, text, expected):
    """What followed the end of the text when it occurred before; nothing, if its last two tokens never did."""
    found = continuation(s, text)
    assert found == expected, f"after {text!r}: {found!r}, not {expected!r}"


@pytest.mark.task("4.3.1")
@pytest.mark.parametrize(
    ("text", "expected"),
    [("abcX bcY abc", "X"), ("bcY abcX 1bc", "X"), ("abcdX bcdY 1bcd", "Y")],
)
def test_the_longest_ngram_decides(s, text, expected):
    """Three equal tokens say more than two, wherever they are."""
    found = continuation(s, text, k=1)
    assert found == expected, f"after {text!r} came {expected!r} the last time that most was equal: {found!r}"


@pytest.mark.task("4.3.1")
def test_no_ngram_is_longer_than_longest(s):
    """With `longest` 2, the third token from the end does not count."""
    text = "abcX .bcY abc"
    assert continuation(s, text, 1, 2, 2) == "Y", "'bc' occurred last before 'Y'"
    assert continuation(s, text, 1, 2, 3) == "X", "'abc' occurred before 'X' alone"
    assert continuation(s, text, 1, 3, 3) == "X", "`longest` itself is a length, too"


@pytest.mark.task("4.3.1")
def test_a_single_token_can_be_an_ngram(s):
    """With `shortest` 1 a last token that occurred before is enough."""
    assert continuation(s, "abcxyb", 2, shortest=1) == "cx", "'b' was followed by 'cx'"
    assert continuation(s, "abcxyb", 2, shortest=2) == "", "'yb' never occurred"


@pytest.mark.task("4.3.1")
def test_a_text_may_be_shorter_than_longest(s):
    """Six tokens have no n-gram of seven: the longest that there is decides, 'ab', and not 'b' alone."""
    found = continuation(s, "abcbab", 1, shortest=1, longest=7)
    assert found == "c", f"'ab' was followed by 'c', and 'b' by 'a' later: {found!r}"


@pytest.mark.task("4.3.1")
@pytest.mark.parametrize("text", ["abX abY ab", "aabb abX abY ab"])
def test_the_latest_occurrence_wins(s, text):
    """A text repeats what it said last rather than what it said first."""
    assert continuation(s, text, 1) == "Y", f"'ab' was followed by 'Y' the last time: {text!r}"


@pytest.mark.task("4.3.1")
@pytest.mark.parametrize(
    ("text", "k", "expected"),
    [("12312", 7, "3123123"), ("..1111", 5, "11111"), ("abab", 3, "aba"), ("abcd ab", 9, "cd abcd a")],
)
def test_a_continuation_that_reaches_the_end_goes_on_with_itself(s, text, k, expected):
    """A text in the middle of a repetition is expected to repeat itself once more: always k drafts."""
    found = continuation(s, text, k)
    assert found == expected, f"{k} tokens after {text!r}: {found!r}, not {expected!r}"


@pytest.mark.task("4.3.1")
@pytest.mark.parametrize("cuts", [(3, 4, 5, 9, 15), (1, 2, 3, 4, 14, 15), (15,)])
def test_an_index_grows_with_its_text(s, cuts):
    """Called again with more tokens, it knows the n-grams of all of them: also those across the border."""
    text, index = [*b"abcdeXfgh abcde"], s.NgramIndex(2, 4)
    found = [index.continuation(text[:cut], 3) for cut in cuts]
    assert bytes(found[-1]) == b"Xfg", f"after calls with {cuts} tokens: {found}"
    assert bytes(index.continuation([*text, *b"fgh"], 3)) == b" ab", "'fgh' is in the part that came before"


class CountedDict(dict):
    """A dict that counts what is written to it."""

    writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)


@pytest.mark.task("4.3.1")
def test_a_call_indexes_new_tokens_alone(s):
    """With 2,000 tokens that are indexed, one more adds three n-grams, not 6,000."""
    text, index = [number % 1999 for number in range(2001)], s.NgramIndex(2, 4)
    assert index.continuation(text, 2) == [2, 3]
    index.next_position = written = CountedDict(index.next_position)
    assert index.continuation([*text, 2], 2) == [3, 4]
    assert written.writes <= 3, f"{written.writes} n-grams for one new token: go on from `num_indexed`"


class CountedText(Sequence):
    """A text that counts how many of its tokens are looked at."""

    def __init__(self, tokens):
        self.tokens, self.looks = tokens, 0

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, place):
        found = self.tokens[place]
        self.looks += len(found) if isinstance(place, slice) else 1
        return found


@pytest.mark.task("4.3.1")
def test_a_call_looks_at_few_tokens_of_a_long_text(s):
    """What was indexed is not read again: a scan of the text costs more with every token of the answer."""
    tokens, index = [number % 1999 for number in range(2001)], s.NgramIndex(2, 4)
    index.continuation(tokens, 2)
    text = CountedText([*tokens, 2])
    assert index.continuation(text, 2) == [3, 4]
    assert text.looks <= 100, f"{text.looks} of {len(text)} tokens were read for one new token: use the index"


# Room for drafts.


def decoding(s, allocator, prompt="ab", answer="x", request_id=0, **sampling):
    """A request that is ready to decode: it has blocks for its known tokens, the last of which is not computed."""
    made = sequence(s, prompt, request_id=request_id, **sampling)
    for token in answer.encode():
        made.take(token)
    made.block_table = s.BlockTable(allocator)
    made.block_table.reserve(len(made.known_tokens))
    made.num_computed = len(made.known_tokens) - 1
    return made


class Engine(Served):
    """A `Served` with drafts.

    Args:
        change: what the proposer makes of right drafts.
        k: drafts of one request, at most.
        arguments, options: see `Served`.
    """

    def __init__(self, s, *arguments, change=lambda right, sequence: right, k=3, **options):
        proposer = Guesses(change)
        self.proposals = Proposals(s.choose_k, proposer, k)
        super().__init__(s, *arguments, drafts=self.proposals, **{"max_num_batched_tokens": 16, **options})
        proposer.model = self.model

    def decoding(self, prompt="ab", answer="x", **sampling):
        """Adds a request that runs and is ready to decode, put there by hand."""
        made = decoding(self.s, self.allocator, prompt, answer, len(self.sequences), **sampling)
        self.sequences.append(made)
        self.scheduler.running.append(made)
        return made

    def plan_drafts(self, proposals) -> list[tuple[int, str]]:
        """A step of all running requests: the number and the drafts of each."""
        running = list(self.scheduler.running)
        plan = [self.s.Scheduled(one, one.num_computed, 1) for one in running]
        proposals = {number: [*text.encode()] for number, text in proposals.items()}
        self.put_drafts_on(plan, proposals)
        for entry, one in zip(plan, running, strict=True):
            assert entry.sequence is one, "each entry stays where it is in the plan"
            assert (entry.start, entry.size) == (one.num_computed, 1), (
                f"start and size are those of the decode, drafts apart: {entry.start}, {entry.size}"
            )
            assert one.num_uncomputed == 1, "a draft is not a known token"
        return [(one.sequence.request_id, bytes(getattr(one, "drafts", ())).decode()) for one in plan]

    def put_drafts_on(self, plan, proposals) -> None:
        """Drafts in a plan, with the loop's budget and blocks."""
        self.s.plan_drafts(plan, proposals, self.scheduler.max_num_batched_tokens, self.allocator)

    def finish(self, check=lambda: None) -> list[str]:
        """Steps until no work remains; the model's calls."""
        for _ in steps_of(self.loop, self.sequences):
            self.loop.step()
            check()
        self.check_answers()
        return self.model.trace


@pytest.mark.task("4.3.2")
def test_drafts_follow_a_decode_of_the_plan(s):
    """Each proposal becomes the drafts of its entry; the others are the decodes that they were."""
    engine = Engine(s)
    for _ in range(3):
        engine.decoding(max_tokens=9)
    plan = [s.Scheduled(one, one.num_computed, 1) for one in engine.sequences]
    before = list(plan)
    engine.put_drafts_on(plan, {0: [7, 8], 2: [9]})
    assert [type(entry) for entry in plan] == [s.Drafted, s.Scheduled, s.Drafted], f"the entries: {plan}"
    assert plan[1] is before[1], "an entry without a proposal stays"
    assert (plan[0].drafts, plan[2].drafts) == ((7, 8), (9,)), f"{plan[0].drafts}, {plan[2].drafts}"


@pytest.mark.task("4.3.2")
def test_drafts_take_what_the_plan_leaves_of_the_budget(s):
    """Budget 16: three decodes and a chunk of 9 tokens leave 4. Every proposal takes its part, in their order."""
    for proposals, expected in (
        ({0: "pq", 1: "rstu"}, ["pq", "rs", ""]),
        ({2: "pq", 0: "rst"}, ["rs", "", "pq"]),
        ({1: "pqrs", 0: "t"}, ["", "pqrs", ""]),
        ({0: "pqrstu"}, ["pqrs", "", ""]),
        ({0: "pq", 1: "rstu", 2: "vwx"}, ["pq", "rs", ""]),
    ):
        engine = Engine(s)
        for _ in range(3):
            engine.decoding(max_tokens=9)
        plan = [s.Scheduled(one, one.num_computed, 1) for one in engine.sequences]
        chunk = s.Scheduled(decoding(s, engine.allocator, "k" * 12, ""), 0, 9)
        plan.append(chunk)
        engine.put_drafts_on(plan, {n: [*text.encode()] for n, text in proposals.items()})
        found = [bytes(getattr(entry, "drafts", ())).decode() for entry in plan]
        assert found == [*expected, ""], f"4 drafts fit, the first proposal first: {proposals} gave {found}"
        held = [len(one.block_table.blocks) for one in engine.sequences]
        needed = [-(-(3 + len(drafts)) // 4) for drafts in expected]
        assert held == needed, f"3 known tokens and drafts in blocks of 4: {held}; cut first, then reserve"
        assert all(type(entry) is s.Scheduled for entry in plan if not getattr(entry, "drafts", ())), (
            "an entry without drafts stays `Scheduled`"
        )


@pytest.mark.task("4.3.2")
def test_drafts_have_blocks(s):
    """Known tokens and drafts fit into the table, and it has no block more than that."""
    engine = Engine(s, num_blocks=9)
    first, second = engine.decoding("abc", max_tokens=9), engine.decoding("abcd", max_tokens=9)
    assert engine.plan_drafts({0: "pqrs", 1: "t"}) == [(0, "pqrs"), (1, "t")]
    sizes = [len(one.block_table.blocks) for one in (first, second)]
    assert sizes == [2, 2], f"4 + 4 tokens and 5 + 1 tokens in blocks of 4: {sizes} blocks"
    assert engine.allocator.num_free == 5


@pytest.mark.task("4.3.2")
@pytest.mark.parametrize("kept", [0, 1])
def test_drafts_leave_the_watermark_free(s, kept):
    """Four drafts need a second block. With one free block and a watermark of one, they have none: two drafts fit."""
    watermark = kept / 3
    engine = Engine(s, num_blocks=3, watermark=watermark)
    engine.decoding("ab", max_tokens=9)
    engine.decoding("abc", max_tokens=9)
    found = engine.plan_drafts({0: "pqrs", 1: "tu"})
    expected = [(0, "p"), (1, "")] if kept else [(0, "pqrs"), (1, "")]
    assert found == expected, f"1 block is free, and the watermark is {kept}: {found}"
    assert engine.allocator.num_free == kept


@pytest.mark.task("4.3.2")
def test_drafts_fill_the_last_block_first(s):
    """One token of the last block is left: five drafts need one block more, and one is free."""
    engine = Engine(s, num_blocks=2)
    engine.decoding("ab", max_tokens=9)
    assert engine.plan_drafts({0: "pqrst"}) == [(0, "pqrst")], "3 known tokens and 5 drafts fit into 2 blocks"


@pytest.mark.task("4.3.2")
def test_an_entry_without_a_free_block_keeps_what_fits(s):
    """No block is free: the drafts that fit into the last block of the request stay. Others lose nothing by it.

    Drafts that need no block need no permission: less is free than the watermark.
    """
    engine = Engine(s, num_blocks=4, watermark=0.25)
    engine.decoding("ab", max_tokens=9)  # 3 known tokens: room for 1 more
    engine.decoding("abc", max_tokens=9)  # 4: no room
    engine.decoding("a", max_tokens=9)  # 2: room for 2
    engine.decoding("abc", max_tokens=9)
    found = engine.plan_drafts({0: "pqr", 1: "p", 2: "pq", 3: "p"})
    assert found == [(0, "p"), (1, ""), (2, "pq"), (3, "")], f"each fills its own last block: {found}"
    assert [len(one.block_table.blocks) for one in engine.sequences] == [1, 1, 1, 1]


@pytest.mark.task("4.3.2")
def test_a_draft_that_does_not_fit_takes_no_budget(s):
    """Request 0 has no room for its drafts, or for one of them; request 1 has, and the budget is still there."""
    engine = Engine(s, num_blocks=2, max_num_batched_tokens=5)
    engine.decoding("abc", max_tokens=9)
    engine.decoding("a", max_tokens=9)
    assert engine.plan_drafts({0: "pqr", 1: "st"}) == [(0, ""), (1, "st")]
    engine = Engine(s, num_blocks=2, max_num_batched_tokens=5)
    engine.decoding("ab", max_tokens=9)
    engine.decoding("a", max_tokens=9)
    assert engine.plan_drafts({0: "pqr", 1: "st"}) == [(0, "p"), (1, "st")], "only 'p' takes budget"


@pytest.mark.task("4.3.2")
def test_no_request_is_preempted_for_a_draft(s):
    """All blocks are taken, by a request that is younger: it keeps them."""
    engine = Engine(s, num_blocks=3)
    engine.decoding("abc", max_tokens=9)
    young = engine.decoding("abcdef", max_tokens=9)
    engine.plan_drafts({0: "pqr"})
    assert (engine.loop.running[-1], young.num_preemptions) == (young, 0), "a guess preempts nobody"
    assert len(young.block_table.blocks) == 2


# From a plan with drafts to one row.


def drafted(s, one, drafts=""):
    """A decode with drafts."""
    return s.Drafted(one, one.num_computed, 1, tuple(drafts.encode()))


def three(s):
    """A decode at position 5 whose blocks are apart, one at position 3, and a prompt of 6 tokens."""
    allocator = s.BlockAllocator(12, 4)
    first, other = decoding(s, allocator, "mnopq", temperature=0.5), decoding(s, allocator, "rst", "u")
    prompt = decoding(s, allocator, "abcdef", "")
    for one in (first, other, prompt):
        one.block_table.reserve(len(one.known_tokens) + 4)
    return first, other, prompt


@pytest.mark.task("4.3.3")
def test_drafts_are_packed_after_the_last_known_token(s):
    """Tokens, positions and slots: a draft is computed at the position after the token before it."""
    first, other, _ = three(s)
    batch = s.pack_drafts([drafted(s, first, "yz"), drafted(s, other, "vwxy")])
    assert bytes(batch.token_ids) == b"xyzuvwxy", f"the last known token, then its drafts: {batch.token_ids}"
    assert batch.positions == [5, 6, 7, 3, 4, 5, 6, 7], f"positions go on: {batch.positions}"
    expected = [*first.block_table.slots(5, 8), *other.block_table.slots(3, 8)]
    assert batch.slots == expected, f"the slots of these positions: {batch.slots}, not {expected}"
    assert batch.query_start == [0, 3, 8], f"where each entry begins, and T: {batch.query_start}"


@pytest.mark.task("4.3.3")
def test_drafts_are_not_a_past(s):
    """context_lens is what earlier steps have computed; the requests and their tokens stay as they are."""
    first, other, _ = three(s)
    before = list(first.known_tokens), list(other.known_tokens)
    batch = s.pack_drafts([drafted(s, other, "vw"), drafted(s, first, "yz")])
    assert batch.context_lens == [3, 5], f"tokens before each entry: {batch.context_lens}"
    assert batch.block_tables == [other.block_table.blocks, first.block_table.blocks]
    assert (first.known_tokens, other.known_tokens) == before, "a draft is not known: packing changes nothing"


@pytest.mark.task("4.3.3")
def test_the_last_known_token_and_every_draft_are_sampled(s):
    """k drafts are checked by k + 1 draws, each with the parameters of its request."""
    first, other, _ = three(s)
    batch = s.pack_drafts([drafted(s, first, "yz"), drafted(s, other, "vwxy")])
    assert batch.sample_rows == [0, 1, 2, 3, 4, 5, 6, 7], f"3 and 5 rows: {batch.sample_rows}"
    expected = [first.sampling] * 3 + [other.sampling] * 5
    assert batch.sampling == expected, f"{len(batch.sampling)} entries of sampling, one per sampled row"


@pytest.mark.task("4.3.3")
def test_entries_without_drafts_are_packed_as_before(s):
    """Chunks and plain decodes between entries with drafts: one sampled row, or none in the middle of a prompt."""
    first, other, prompt = three(s)
    plan = [s.Scheduled(prompt, 0, 4), drafted(s, first, "y"), s.Scheduled(other, 3, 1)]
    batch = s.pack_drafts(plan)
    assert bytes(batch.token_ids) == b"abcdxyu", f"{bytes(batch.token_ids)}"
    assert (batch.query_start, batch.context_lens) == ([0, 4, 6, 7], [0, 5, 3])
    assert batch.sample_rows == [4, 5, 6], f"none of the prompt, two of the drafts, one: {batch.sample_rows}"
    assert batch.sampling == [first.sampling, first.sampling, other.sampling]
    whole = s.pack_drafts([s.Scheduled(prompt, 2, 4), drafted(s, first, "yz")])
    assert whole.sample_rows == [3, 4, 5, 6], f"the last row of a prompt, then three: {whole.sample_rows}"


# Right or wrong.


def verified(s, drafts, drawn) -> str:
    draws = [s.Sampled(token, logprob=-float(place)) for place, token in enumerate(drawn.encode())]
    found = s.verify([*drafts.encode()], draws)
    assert found == draws[: len(found)], f"{drafts!r} against {drawn!r}: draws from the first one on: {found}"
    return bytes(one.token for one in found).decode()


@pytest.mark.task("4.3.4")
@pytest.mark.parametrize(
    ("drafts", "drawn", "expected"),
    [
        ("xyz", "xyzw", "xyzw"),
        ("xyz", "xyaw", "xya"),
        ("xyz", "aaaa", "a"),
        ("xyz", "xayz", "xa"),
        ("xyz", "ayzw", "a"),
        ("xyz", "yzwa", "y"),
        ("xyz", "zyxw", "z"),
        ("xxx", "xxxx", "xxxx"),
        ("xxx", "xxax", "xxa"),
        ("x", "xy", "xy"),
        ("x", "yx", "y"),
        ("", "x", "x"),
    ],
)
def test_verify_takes_right_drafts_and_one_more_draw(s, drafts, drawn, expected):
    """Draft i is compared with draw i. The first other draw replaces its draft; if all are right, one more follows."""
    found = verified(s, drafts, drawn)
    assert found == expected, f"drafts {drafts!r}, draws {drawn!r}: {found!r}, not {expected!r}"


@pytest.mark.task("4.3.4", after="4.3.5")
def test_right_drafts_save_steps(s):
    """An answer of nine tokens with k = 3: the prompt, then four tokens a step, the bonus token of each included."""
    engine = Engine(s, model={"answers": {"ab": "cdefghijk"}})
    engine.add("ab", max_tokens=9)
    trace = engine.finish()
    assert trace == ["ab@0", "cdef@2", "ghij@6"], f"the calls of the model: {trace}"
    counts = engine.proposals.counts
    assert (counts.drafts, counts.draft_tokens, counts.accepted_tokens) == (2, 6, 6)


@pytest.mark.task("4.3.4", after="4.3.5")
@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (0, ["ab@0", "c!ef@2", "d!fg@3", "e!g@4", "f!@5", "g@6"]),
        (1, ["ab@0", "cd!f@2", "ef!@4", "g@6"]),
        (2, ["ab@0", "cde!@2", "fg@5"]),
    ],
)
def test_a_wrong_draft_ends_what_a_step_takes(s, place, expected):
    """The draft at one place is wrong in every step: the drafts before it count, and the draw that replaces it."""

    def change(right, sequence):
        return [*right[:place], ord("!"), *right[place + 1 :]] if place < len(right) else right

    engine = Engine(s, model={"answers": {"ab": "cdefgh"}}, change=change)
    engine.add("ab", max_tokens=6)
    trace = engine.finish()
    assert trace == expected, f"the calls of the model: {trace}"


# Back to what is right.


def table(s, num_tokens, num_blocks=8, caching=False):
    allocator = s.BlockAllocator(num_blocks, 4, enable_prefix_caching=caching)
    made = s.BlockTable(allocator)
    made.reserve(num_tokens)
    return made


@pytest.mark.task("4.3.5")
@pytest.mark.parametrize(
    ("reserved", "kept", "blocks"),
    [
        (16, 16, 4),
        (16, 13, 4),
        (16, 12, 3),
        (16, 9, 3),
        (16, 8, 2),
        (16, 1, 1),
        (16, 0, 0),
        (6, 5, 2),
        (6, 4, 1),
        (0, 0, 0),
    ],
)
def test_rewind_keeps_the_blocks_of_some_tokens(s, reserved, kept, blocks):
    """Blocks of 4 tokens: a block stays if one of the first `kept` tokens is in it. The others are free again."""
    made = table(s, reserved)
    before = list(made.blocks)
    s.rewind(made, kept)
    assert made.blocks == before[:blocks], f"{kept} tokens need {blocks} of {before}: {made.blocks}"
    assert made.allocator.num_free == 8 - blocks, f"{made.allocator.num_free} blocks are free"
    made.release()
    assert made.allocator.num_free == 8, "each block is freed once"


@pytest.mark.task("4.3.5")
def test_rewind_gives_back_one_reference(s):
    """A block that another request refers to stays with that request."""
    made = table(s, 12)
    made.allocator.fork(made.blocks)
    s.rewind(made, 4)
    assert made.allocator.reference_counts[:3] == [2, 1, 1], f"{made.allocator.reference_counts}"


@pytest.mark.task("4.3.5")
def test_rewind_keeps_what_others_can_find(s):
    """Registered blocks stay registered, and the table goes on after them."""
    made = table(s, 15, caching=True)
    tokens = [*range(15)]
    made.register(tokens, 9)
    s.rewind(made, 9)
    assert (made.num_registered, len(made.blocks)) == (8, 3)
    made.reserve(14)
    made.register(tokens, 14)
    assert (made.num_registered, len(made.blocks)) == (12, 4)


@pytest.mark.task("4.3.5")
def test_after_a_step_a_request_has_the_blocks_of_its_text(s):
    """Four drafts of which two are right, in blocks of 2 tokens: what was reserved for the others is free."""
    engine = Engine(
        s,
        block_size=2,
        k=4,
        change=lambda right, sequence: [*right[:2], *b"!!"],
        model={"answers": {"abc": "defghijklmnopqrst"}},
    )
    one = engine.add("abc", max_tokens=16)

    def check():
        held, needed = len(one.block_table.blocks), -(-one.num_computed // 2)
        assert one.is_done or held == needed, (
            f"{one.num_computed} tokens are computed, in {held} blocks of 2: {needed} hold them"
        )

    trace = engine.finish(check)
    assert trace[:3] == ["abc@0", "def!!@3", "ghi!!@6"], f"the calls of the model: {trace}"


REQUEST = st.tuples(st.integers(1, 14), st.integers(1, 12), st.booleans())


@pytest.mark.task("4.3.5")
@settings(max_examples=60)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=5),
    wrong=st.lists(st.integers(0, 7), min_size=1, max_size=7),
    k=st.integers(1, 6),
    budget=st.integers(4, 16),
    blocks=st.integers(16, 40),
    size=st.integers(1, 4),
    watermark=st.sampled_from([0.0, 0.1]),
    caching=st.booleans(),
)
def test_any_load_is_served_as_without_drafts(
    s, requests, wrong, k, budget, blocks, size, watermark, caching
):
    """Random requests, and drafts that are wrong, too few or missing: every answer is the one without drafts, a step
    keeps to its budget, and all blocks come back."""
    places = iter(wrong * 999)

    def change(right, sequence):
        place = next(places)
        if place == 7:
            return []
        return [*right[:place], *([ord("!")] if place < 4 else []), *right[place + 1 :]]

    engine = Engine(
        s,
        max(blocks, -(-28 // size)),
        size,
        watermark=watermark,
        caching=caching,
        change=change,
        k=k,
        model={"ends": 9},
        max_num_batched_tokens=budget,
    )
    for number, (tokens, answer, shared) in enumerate(requests):
        text = "shared beginning"[:tokens] if shared else chr(ord("A") + number) * tokens
        engine.add(text, max_tokens=answer)

    def check():
        rows = len(engine.model.batches[-1].token_ids)
        assert rows <= budget, f"a step of {rows} tokens, drafts included; the budget is {budget}"

    engine.finish(check)


GREEDY, DRAWN, PENALTY = {}, {"temperature": 1.0, "seed": 5}, {"temperature": 1.2, "repetition_penalty": 1.6}


@pytest.mark.task("4.3.5")
def test_a_model_answers_as_without_drafts(b, s, rng):
    """A small random model, with a request that is greedy and two that are drawn with seeds, one of them with a
    penalty. The drafts are right up to a place that changes from step to step."""
    model = b.Qwen3ModelWeek3(random_checkpoint(b, QWEN))
    texts = [rng.integers(0, 61, size=length).tolist() for length in (9, 5, 7)]

    def answers(**options):
        serving = PackedServing(b, s, model)
        loop = make_loop(s, "hybrid", serving.runner, serving.allocator, max_num_batched_tokens=24, **options)
        made = [
            serving.new_sequence(text, number, max_tokens=14, **sampling)
            for number, (text, sampling) in enumerate(zip(texts, (GREEDY, DRAWN, PENALTY), strict=True))
        ]
        for one in made:
            loop.add(one)
        steps = sum(loop.step() for _ in steps_of(loop, made))
        assert serving.allocator.num_free == serving.allocator.num_blocks
        return [one.tokens for one in made], steps

    expected, steps = answers()
    proposer = Guesses(lambda right, sequence: [*right[: len(sequence.tokens) % 5], 0])
    proposer.right = lambda one, k: list(islice(expected[one.request_id], len(one.tokens), None))[:k]
    found, fewer = answers(drafts=Proposals(s.choose_k, proposer, 4))
    for sampling, with_drafts, without in zip((GREEDY, DRAWN, PENALTY), found, expected, strict=True):
        assert with_drafts == without, f"with {sampling}: {with_drafts}, without drafts {without}"
    assert fewer <= steps / 2, f"{fewer} steps with drafts, {steps} without"


# How many.


@pytest.mark.task("4.3.6")
@pytest.mark.parametrize(
    ("rate", "most", "rows", "useful", "seconds", "expected"),
    [
        (0.5, 6, 1, 1, lambda rows: 1, 6),
        (0.5, 6, 1, 1, lambda rows: rows, 0),
        (0.9, 6, 1, 1, lambda rows: 1 + max(0, rows - 4), 3),
        (0.9, 2, 1, 1, lambda rows: 1 + max(0, rows - 4), 2),
        (0.5, 9, 1, 1, lambda rows: 8 + rows, 2),
        (0.8, 9, 1, 1, lambda rows: 8 + rows, 5),
        (0.9, 20, 1, 1, lambda rows: 8 + rows, 9),
        (0.6, 9, 4, 2, lambda rows: rows, 1),
        (0.7, 9, 16, 8, lambda rows: 20 + rows, 3),
        (0.7, 9, 16, 16, lambda rows: 20 + rows, 2),
        (0.0, 4, 1, 1, lambda rows: 1, 0),
        (1.0, 5, 1, 1, lambda rows: 1 + rows / 1000, 5),
        (1.0, 0, 1, 1, lambda rows: 1, 0),
    ],
    ids=lambda value: "" if callable(value) else None,
)
def test_drafts_are_added_while_a_step_gives_more_per_second(s, rate, most, rows, useful, seconds, expected):
    """Useful rows per second rise with every draft that is taken, and would not rise with the next one."""
    found = s.choose_k(rate, most, rows, useful, seconds)
    gains = [sum(rate**i for i in range(1, k + 1)) for k in range(most + 1)]
    per_second = [round((useful + gains[k]) / seconds(rows + k), 4) for k in range(most + 1)]
    assert found == expected, f"useful rows per second by k: {per_second}; {found} drafts, not {expected}"


@pytest.mark.task("4.3.6")
def test_no_draft_comes_after_one_that_does_not_pay(s):
    """The second row costs a whole tile of four: it does not pay, so nothing asks about the third."""
    asked = []

    def seconds(rows):
        asked.append(rows)
        return 1.0 if rows == 1 else 2.5

    assert s.choose_k(0.9, 6, 1, 1, seconds) == 0
    assert max(asked) <= 2, f"the cost of {max(asked)} rows was asked for"
