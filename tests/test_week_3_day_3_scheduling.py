"""Week 3 Day 3: hybrid batches. The policy runs a model that checks every batch; a call takes a second per token.

Oracles: exact plans; each request's answer as it is when it runs alone.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_model import END, OTHER_END, ByteTokenizer
from support.served import Served, sequence
from support.steps import steps_of, why_stuck


class Engine(Served):
    """A `Served` whose steps are planned, run and committed here, and noted."""

    def __init__(self, s, *arguments, **options):
        super().__init__(s, *arguments, **options)
        self.plans = []

    def plan(self) -> list[tuple[int, int, int]]:
        """Plans and runs a step; returns its plan as (request, start, size)."""
        planned = self.loop.plan(self.model.clock())
        described = [(entry.sequence.request_id, entry.start, entry.size) for entry in planned]
        if planned:
            self.plans.append(described)
            self.loop.commit(planned, self.model.run(self.s.pack(planned)))
        return described

    def finish(self, most=500) -> list:
        """Steps until no work remains; the plans."""
        for _ in steps_of(self.loop, self.sequences, most):
            assert self.plan() or not self.loop.has_work_remaining(), (
                f"a step computed nothing, and work remains: {why_stuck(self.loop, self.sequences)}"
            )
        lost = [one.request_id for one in self.sequences if not one.is_done]
        assert not lost, (
            f"no work remains, and requests {lost} have not ended: {why_stuck(self.loop, self.sequences)}"
        )
        return self.plans

    def kinds(self, kind: str) -> list[int]:
        """The requests of the events of one kind, in order."""
        return [event.request.request_id for event in self.events if event.kind == kind]


# What a token does to its request.


def taken(s, tokens, prompt="ab", **options):
    made = sequence(s, prompt, **options)
    for token in tokens:
        made.take(token)
    return made


@pytest.mark.task("3.3.1")
def test_take_makes_a_token_known(s):
    """The token is part of the answer and of the known tokens, and is not computed: that is the next step's work."""
    made = taken(s, b"xyz")
    assert made.known_tokens == [*b"abxyz"], f"prompt, then answer: {made.known_tokens}"
    assert made.prompt_tokens == [*b"ab"], f"the prompt does not grow: {made.prompt_tokens}"
    assert (made.tokens, made.text) == ([*b"xyz"], "xyz"), f"the answer: {made.tokens}, {made.text!r}"
    assert made.num_computed == 0, f"nothing was computed: num_computed is {made.num_computed}"
    assert not made.is_done, f"nothing has ended it: {made.finish_reason!r}"


@pytest.mark.task("3.3.1")
def test_take_makes_a_request_ready_to_decode(s):
    """A prompt that is computed, and one token after it: one known token is left, of the answer."""
    made = sequence(s)
    made.num_computed = 2
    assert not made.is_decoding, "nothing is known that is not computed"
    made.take(ord("x"))
    assert (made.num_uncomputed, made.is_decoding) == (1, True), (
        f"the new token is the work that is left: {made.num_uncomputed} tokens, is_decoding {made.is_decoding}"
    )


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize("end", [END, OTHER_END])
@pytest.mark.parametrize("text", ["", "ok"])
def test_take_ends_at_every_end_token(s, text, end):
    """Any id of eos_token_ids ends the request with "stop", also as the first one; it is no part of the answer."""
    made = taken(s, [*text.encode(), end])
    assert made.finish_reason == "stop", f"id {end} ends the text: {made.finish_reason!r}"
    assert (made.text, made.tokens, made.known_tokens) == (
        text,
        [*text.encode()],
        [*b"ab", *text.encode()],
    ), f"an end token is no part of the answer, nor of the known tokens: {made.tokens}, {made.known_tokens}"


@pytest.mark.task("3.3.1")
def test_take_ignores_end_tokens_if_asked(s):
    """With `ignore_eos` the answer goes on to its limit; end tokens count, and show nothing."""
    made = taken(s, [ord("x"), END, ord("y")], ignore_eos=True, max_tokens=3)
    assert (made.text, made.tokens, made.finish_reason) == ("xy", [ord("x"), END, ord("y")], "length"), (
        f"`eos_token_ids` is empty then: {made.text!r}, {made.tokens}, {made.finish_reason!r}"
    )


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize(
    ("max_tokens", "max_seq_len", "expected"),
    [(1, 64, 1), (3, 64, 3), (None, 5, 3), (None, 3, 1), (2, 6, 2), (9, 6, 4)],
)
def test_take_ends_at_a_limit(s, max_tokens, max_seq_len, expected):
    """max_tokens counts the answer, max_seq_len prompt and answer; the token that reaches a limit belongs to it."""
    made = taken(s, b"uvwxyz"[:expected], max_seq_len=max_seq_len, max_tokens=max_tokens)
    limits = f"max_tokens={max_tokens}, max_seq_len={max_seq_len}, a prompt of 2: {expected} new tokens"
    assert (made.finish_reason, made.text) == ("length", "uvwxyz"[:expected]), (
        f"{limits}: {made.finish_reason!r}, {made.text!r}"
    )
    assert (
        expected == 1
        or taken(s, b"uvwxyz"[: expected - 1], max_seq_len=max_seq_len, max_tokens=max_tokens).finish_reason
        is None
    ), f"{limits}: one token before it is not over"


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [("end", b"the end", "the "), ("x", b"x", ""), (["zz", "ing"], b"string", "str"), ("aab", b"aaab", "a")],
)
def test_take_ends_at_a_stop_string(s, stop, tokens, text):
    """A stop string may be spread over several tokens; it wins over a limit that the same token reaches."""
    made = taken(s, tokens, stop=stop, max_tokens=len(tokens))
    assert (made.finish_reason, made.text) == ("stop", text), f"{made.finish_reason!r}, {made.text!r}"
    assert made.tokens == [*tokens], f"its tokens are of the answer, the text ends before it: {made.tokens}"
    assert made.known_tokens == [*b"ab", *tokens], f"they are known, too: {made.known_tokens}"


@pytest.mark.task("3.3.1")
def test_take_delivers_what_was_held_back(s):
    """ "en" might become "end": it is shown when the text ends for another reason."""
    assert taken(s, b"the en", stop="end").text == "the ", "'en' may be the beginning of 'end'"
    assert taken(s, b"the en", stop="end", max_tokens=6).text == "the en", "`finish` delivers the rest"


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize(("last", "reason"), [(END, "stop"), (ord("!"), "stop"), (ord("x"), "length")])
def test_take_ends_with_finish(s, last, reason):
    """An end token, a stop string and the limit each end the request by `finish`: its blocks are free, and what was
    held back of its text is delivered."""
    allocator = s.BlockAllocator(4, 4)
    made = prepared(s, allocator, "ab", "the en", stop=["end", "!"], max_tokens=7)
    made.take(last)
    assert made.finish_reason == reason, f"token {last} ends it: {made.finish_reason!r}"
    assert allocator.num_free == 4, f"it ended and holds {made.block_table.blocks}: `finish` frees the blocks"
    expected = "the enx" if reason == "length" else "the en"
    assert made.text == expected, f"'en' can no longer become 'end': {made.text!r}"


class LetterEnds(ByteTokenizer):
    """A tokenizer whose end token has a text."""

    eos_token_ids = frozenset({ord("$")})


@pytest.mark.task("3.3.1")
def test_take_shows_no_text_of_an_end_token(s):
    """An end token may have a text, such as "<|im_end|>": a reader never sees it."""
    made = s.Sequence([*b"ab"], LetterEnds(), max_seq_len=64)
    for token in b"ok$":
        made.take(token)
    assert (made.text, made.finish_reason) == ("ok", "stop"), f"{made.text!r}, {made.finish_reason!r}"


@pytest.mark.task("3.3.1")
@pytest.mark.parametrize("token", [ord("b"), END])
def test_take_gives_no_token_to_a_request_that_has_ended(s, token):
    """It was aborted while its step ran: tokens, text and reason stay."""
    made = taken(s, b"x")
    made.abort()
    made.take(token)
    found = (made.known_tokens, made.text, made.finish_reason)
    assert found == ([*b"abx"], "x", "abort"), f"an aborted request was given one more token: {found}"


# From a plan to one row.


def prepared(s, allocator, prompt, answer="", request_id=0, **sampling):
    """A request with blocks for all of its known tokens."""
    made = taken(s, answer.encode(), prompt, request_id=request_id, **sampling)
    made.block_table = s.BlockTable(allocator)
    made.block_table.reserve(len(made.known_tokens))
    return made


def scattered(s, answer="x"):
    """Three requests whose blocks of 4 tokens lie anywhere: a prompt of 11, an answer after 5, a prompt of 3."""
    allocator = s.BlockAllocator(12, 4)
    hole = allocator.allocate(2)
    long = prepared(s, allocator, "abcdefghijk", request_id=0)
    gap = allocator.allocate(1)
    short = prepared(s, allocator, "mnopq", answer, request_id=1)
    allocator.free(hole + gap)
    last = prepared(s, allocator, "rst", request_id=2, temperature=0.5)
    return long, short, last


@pytest.mark.task("3.3.2")
def test_pack_puts_chunks_and_decodes_into_one_row(s):
    """A decode at position 5, a chunk from position 4 on, and a whole prompt: tokens, positions and slots of each."""
    long, short, last = scattered(s)
    plan = [s.Scheduled(short, 5, 1), s.Scheduled(long, 4, 4), s.Scheduled(last, 0, 3)]
    batch = s.pack(plan)
    assert bytes(batch.token_ids) == b"xefghrst", f"the known tokens of each entry: {bytes(batch.token_ids)}"
    assert batch.positions == [5, 4, 5, 6, 7, 0, 1, 2], (
        f"a position is a place in the request's own text, not in the row: {batch.positions}"
    )
    expected = [slot for e in plan for slot in e.sequence.block_table.slots(e.start, e.stop)]
    assert batch.slots == expected, f"`slots` of each entry's own table: {batch.slots}, not {expected}"
    assert batch.query_start == [0, 1, 5, 8], f"where each entry begins, and T: {batch.query_start}"


@pytest.mark.task("3.3.2")
def test_pack_says_what_earlier_steps_have_computed(s):
    """context_lens is what stands in the blocks before the entry; the tables are those of the requests, in order."""
    long, short, last = scattered(s)
    batch = s.pack([s.Scheduled(last, 0, 3), s.Scheduled(long, 4, 4), s.Scheduled(short, 5, 1)])
    assert batch.context_lens == [0, 4, 5], f"tokens before each entry: {batch.context_lens}"
    tables = [one.block_table.blocks for one in (last, long, short)]
    assert batch.block_tables == tables, f"{batch.block_tables}, not {tables}"
    assert batch.segments == [0, 0, 0, 1, 1, 1, 1, 2], f"the entry of each row: {batch.segments}"


@pytest.mark.task("3.3.2")
def test_pack_samples_only_where_all_known_tokens_are_computed(s):
    """A chunk in the middle of a prompt is followed by the prompt. The last chunk and a decode need a token."""
    long, short, last = scattered(s)
    batch = s.pack([s.Scheduled(long, 4, 4), s.Scheduled(short, 5, 1), s.Scheduled(last, 0, 3)])
    assert batch.sample_rows == [4, 7], f"the decode's row and the prompt's last row: {batch.sample_rows}"
    assert batch.sampling == [short.sampling, last.sampling], f"as each of them wants it: {batch.sampling}"
    middle = s.pack([s.Scheduled(long, 0, 4), s.Scheduled(last, 0, 2)])
    assert (middle.sample_rows, middle.sampling) == ([], []), f"nobody needs a token: {middle.sample_rows}"
    end = s.pack([s.Scheduled(long, 8, 3)])
    assert end.sample_rows == [2], f"the chunk that ends the prompt needs one: {end.sample_rows}"


@pytest.mark.task("3.3.2")
def test_pack_takes_a_chunk_of_one_token_from_its_position(s):
    """One token in the middle of a prompt is no decode: it is the token at its position, and no token is needed."""
    long, short, _ = scattered(s)
    batch = s.pack([s.Scheduled(long, 4, 1), s.Scheduled(short, 5, 1)])
    assert bytes(batch.token_ids) == b"ex", f"position 4 of the prompt is 'e': {bytes(batch.token_ids)}"
    assert (batch.positions, batch.sample_rows) == ([4, 5], [1]), f"{batch.positions}, {batch.sample_rows}"


@pytest.mark.task("3.3.2")
def test_pack_computes_an_answer_again(s):
    """After a preemption the answer so far is known text like the prompt: chunks of both, sampled at the very end."""
    _, short, _ = scattered(s, answer="uvw")
    prompt = s.pack([s.Scheduled(short, 0, 5)])
    assert prompt.sample_rows == [], f"the prompt is followed by 'u', which is known: {prompt.sample_rows}"
    part, rest = s.pack([s.Scheduled(short, 3, 3)]), s.pack([s.Scheduled(short, 6, 2)])
    assert bytes(part.token_ids) == b"pqu", f"the chunk reaches into the answer: {bytes(part.token_ids)}"
    assert part.sample_rows == [], f"'u' is followed by 'v', which is known: {part.sample_rows}"
    assert (bytes(rest.token_ids), rest.sample_rows) == (b"vw", [1]), f"{rest.token_ids}, {rest.sample_rows}"


@pytest.mark.task("3.3.2")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_pack_takes_entries_in_any_order(s, order):
    """Each request's tokens, positions, slots, table, context and sampling stay together, wherever its rows are."""
    made = scattered(s)
    sizes = {0: (4, 7), 1: (5, 1), 2: (0, 3)}
    batch = s.pack([s.Scheduled(made[i], *sizes[i]) for i in order])
    for place, i in enumerate(order):
        (start, size), one = sizes[i], made[i]
        rows = slice(batch.query_start[place], batch.query_start[place + 1])
        assert batch.token_ids[rows] == one.known_tokens[start : start + size], (
            f"tokens of request {i}, order {order}"
        )
        assert batch.positions[rows] == list(range(start, start + size)), (
            f"positions of request {i}, order {order}"
        )
        assert batch.slots[rows] == one.block_table.slots(start, start + size), (
            f"slots of request {i}, order {order}"
        )
    assert batch.sample_rows == [stop - 1 for stop in batch.query_start[1:]], (
        f"all are sampled: {batch.sample_rows}"
    )
    assert batch.sampling == [made[i].sampling for i in order], f"sampling in the order of the rows: {order}"


@pytest.mark.task("3.3.2")
def test_pack_changes_nothing(s):
    """Packing reads: the requests' tokens are what they were, and two batches share no list."""
    long, _, _ = scattered(s)
    before = (list(long.known_tokens), long.num_computed, list(long.block_table.blocks))
    first, second = (s.pack([s.Scheduled(long, 0, 4)]) for _ in range(2))
    assert (long.known_tokens, long.num_computed, long.block_table.blocks) == before, (
        "the request was changed"
    )
    assert first.token_ids == second.token_ids and first.token_ids is not second.token_ids, (
        "each batch has lists of its own"
    )


# Decodes first.


def placed(s, *texts, free=4, caching=False, **options):
    """An engine with requests that run, put there by hand: nothing was planned yet.

    Args:
        texts: for each request its prompt and how many tokens of that are computed; when all of them are, the request
            has the first token of its answer and is ready to decode.
        free: blocks that are not theirs.
    """
    blocks = sum(-(-len(prompt) // 4) for prompt, _ in texts)
    engine = Engine(s, blocks + free, caching=caching, **options)
    for request_id, (prompt, computed) in enumerate(texts):
        made = prepared(s, engine.allocator, prompt, request_id=request_id, max_tokens=9)
        made.num_computed = computed
        if computed == len(prompt):
            made.take(ord("x"))
        engine.sequences.append(made)
        engine.loop.running.append(made)
    return engine


def described(plan) -> list[tuple[int, int, int]]:
    return [(entry.sequence.request_id, entry.start, entry.size) for entry in plan]


def plan_decodes(engine, make_room) -> tuple[list, list]:
    """What `plan_decodes` plans, and for whom it asks for room, with another `make_room`."""
    asked, plan = [], []

    def ask(sequence):
        asked.append(sequence.request_id)
        return make_room(sequence)

    engine.scheduler.make_room = ask
    engine.scheduler.plan_decodes(plan)
    return described(plan), asked


@pytest.mark.task("3.3.3")
def test_plan_decodes_asks_for_room_for_decodes_alone(s):
    """Each request that is ready to decode asks `make_room`; a prompt in computation has its blocks."""
    engine = placed(s, ("abc", 3), ("defgh", 4), ("ij", 2))
    plan, asked = plan_decodes(engine, lambda sequence: True)
    assert plan == [(0, 3, 1), (2, 2, 1)], f"request 1 has a prompt token left: {plan}"
    assert asked == [0, 2], f"`make_room` was asked for the requests {asked}"


@pytest.mark.task("3.3.3")
def test_plan_decodes_leaves_out_who_has_no_room(s):
    """`make_room` returns False for one of them: it is in no plan, and the others are served."""
    engine = placed(s, ("abc", 3), ("de", 2), ("fg", 2))
    plan, _ = plan_decodes(engine, lambda sequence: sequence.request_id != 1)
    assert plan == [(0, 3, 1), (2, 2, 1)], f"request 1 has no block for its token: {plan}"


@pytest.mark.task("3.3.3")
def test_plan_decodes_forgets_who_was_preempted_meanwhile(s):
    """Making room for request 0 preempts request 2, which was ready before: nobody asks for room for it any more."""
    engine = placed(s, ("abc", 3), ("de", 2), ("fg", 2))

    def make_room(sequence):
        if sequence.request_id == 0:
            victim = engine.loop.running.pop()
            victim.num_computed = 0
        return True

    plan, asked = plan_decodes(engine, make_room)
    assert plan == [(0, 3, 1), (1, 2, 1)], f"request 2 was preempted: {plan}"
    assert asked == [0, 1], f"`make_room` was asked for the requests {asked}"


def running(s, *prompts, answers=8, **options):
    """An engine in which these prompts are computed and their requests ready to decode."""
    engine = Engine(s, **{"max_num_batched_tokens": 64, **options})
    for prompt in prompts:
        engine.add(prompt, max_tokens=answers)
    engine.plan()
    return engine


@pytest.mark.task("3.3.3", after="3.3.5")
def test_plan_decodes_serves_everyone_who_is_ready(s):
    """Each running request gets one token per step, from where it is, in the order of admission."""
    engine = running(s, "abc", "de", "fghij")
    assert engine.plan() == [(0, 3, 1), (1, 2, 1), (2, 5, 1)], f"one token of each: {engine.plans[-1]}"
    assert engine.plan() == [(0, 4, 1), (1, 3, 1), (2, 6, 1)], f"and the next one: {engine.plans[-1]}"


@pytest.mark.task("3.3.3", after="3.3.5")
def test_plan_decodes_come_before_chunks_in_the_budget(s):
    """A budget of 4 with 3 ready decodes leaves 1 token for a prompt of 6, however long that waits."""
    engine = running(s, "abc", "de", "fg", answers=6)
    engine.scheduler.max_num_batched_tokens = 4
    engine.add("klmnop", max_tokens=2)
    plan = engine.plan()
    assert plan == [(0, 3, 1), (1, 2, 1), (2, 2, 1), (3, 0, 1)], f"decodes first, and 1 token is left: {plan}"


@pytest.mark.task("3.3.3", after="3.3.5")
def test_plan_decodes_leaves_prompts_to_the_chunks(s):
    """A prompt of which one token is left is not ready to decode: it takes the budget after the decodes."""
    engine = Engine(s, max_num_batched_tokens=5, max_num_seqs=2)
    engine.add("abcdef", max_tokens=3)
    engine.plan()
    engine.add("gh", max_tokens=3)
    plan = engine.plan()
    assert plan == [(0, 5, 1), (1, 0, 2)], f"the last token of a prompt, and a whole prompt: {plan}"
    parts = [(part.kind, part.tokens) for part in engine.events[-1 - 2].parts]
    assert parts == [("chunk", 1), ("chunk", 2)], f"both are chunks: {parts}"


@pytest.mark.task("3.3.3", after="3.3.5")
def test_plan_decodes_gives_each_a_block_for_its_token(s):
    """The token after a full block needs the next one; the plan reserves it, and nothing before it is needed."""
    engine = running(s, "abcd", answers=8)
    table = engine.sequences[0].block_table
    assert len(table.blocks) == 1, f"a prompt of 4 is one block: {table.blocks}"
    for position in range(4, 8):
        engine.plan()
        assert len(table.blocks) == 2, f"position {position} is in the second block: {table.blocks}"
    engine.plan()
    assert len(table.blocks) == 3, f"position 8 is in the third one: {table.blocks}"


@pytest.mark.task("3.3.3", after="3.3.5")
def test_plan_decodes_leaves_out_who_has_ended(s):
    """A request that was aborted between two steps has given its blocks back: it is in no plan any more."""
    engine = running(s, "abc", "de", "fg")
    engine.sequences[1].abort()
    assert engine.plan() == [(0, 3, 1), (2, 2, 1)], f"request 1 was aborted: {engine.plans[-1]}"


@pytest.mark.task("3.3.5", after="3.3.6")
def test_chunks_go_on_in_the_order_of_admission(s):
    """Two prompts have begun, with 5 and 2 tokens left: the first goes on, though the other would be done sooner."""
    engine = Engine(s, long_prefill_token_threshold=4)
    engine.add("abcdefghi", max_tokens=2)
    engine.add("klmnop", max_tokens=2)
    assert engine.plan() == [(0, 0, 4), (1, 0, 4)], f"4 tokens of each: {engine.plans[-1]}"
    engine.scheduler.max_num_batched_tokens, engine.scheduler.longest_chunk = 6, 6
    plan = engine.plan()
    assert plan == [(0, 4, 5), (1, 4, 1)], f"all of the first prompt, then a part of the second: {plan}"


@pytest.mark.task("3.3.3", after="3.3.5")
def test_no_step_leaves_a_ready_decode_out(s):
    """Long prompts arrive one after the other: every step serves all that decode, so there is no stall at all."""
    engine = running(s, "abc", "de", answers=30)
    for letter in "klmnop":
        engine.add(letter * 20, max_tokens=1)
    engine.scheduler.max_num_batched_tokens = 6
    for _ in steps_of(engine.loop, engine.sequences):
        ready = [one.request_id for one in engine.loop.running if one.is_decoding]
        plan = engine.plan()
        served = [request for request, _, _ in plan]
        assert set(ready) <= set(served), f"{ready} were ready, {served} were served: {plan}"


# Preemption.


def shortage(s, **options):
    """Requests with 2 + 2 + 1 blocks of 4, and no block left: the first two need one more for their next token."""
    prompts = options.pop("prompts", ("abcdefgh", "ijklmnop", "qr"))
    engine = Engine(s, **{"num_blocks": 5, "max_num_batched_tokens": 64, **options})
    for prompt in prompts:
        engine.add(prompt, max_tokens=5)
    engine.plan()
    return engine


@pytest.mark.task("3.3.4")
def test_preempt_drops_the_blocks_and_nothing_else(s):
    """All blocks are free and nothing is computed; what is known, what was read and what is counted stay."""
    engine = placed(s, ("abcdefgh", 8), caching=True)
    made, kept = (
        engine.sequences[0],
        ("prompt_tokens", "known_tokens", "tokens", "text", "sampled", "token_time"),
    )
    made.num_cached, made.token_time = 4, 5.0
    made.take_sampled(s.Sampled(ord("y"), logprob=-0.5))
    before = {name: getattr(made, name) for name in kept}
    before = {name: list(value) if isinstance(value, list) else value for name, value in before.items()}
    for times in (1, 2):
        made.num_computed = 8
        made.block_table.reserve(8)
        made.preempt()
        assert engine.allocator.num_free == engine.allocator.num_blocks, "its blocks are not free"
        assert made.num_computed == 0, f"without blocks nothing is computed: {made.num_computed}"
        assert made.num_preemptions == times, f"{made.num_preemptions} preemptions, not {times}"
        assert made.num_cached == 4, f"the cached prefix of the first admission stays: {made.num_cached}"
        for name, value in before.items():
            assert getattr(made, name) == value, f"{name} was {value!r}, and is {getattr(made, name)!r}"


@pytest.mark.task("3.3.4")
def test_make_room_takes_free_blocks_first(s):
    """A missing block is free, or none is missing: nobody is preempted."""
    engine = placed(s, ("abcd", 4), ("efg", 3), free=1)
    old, young = engine.sequences
    assert engine.scheduler.make_room(old) and len(old.block_table.blocks) == 2, "it has its second block"
    assert engine.scheduler.make_room(young), "its token goes into the block that it has"
    assert engine.loop.running == [old, young], f"nobody is preempted: {engine.kinds('preempt')}"


@pytest.mark.task("3.3.4")
def test_make_room_takes_as_many_victims_as_blocks_are_missing(s):
    """Three blocks are missing, and each younger request has one: three of them go, the youngest first."""
    engine = placed(s, ("abcd", 4), ("e", 1), ("f", 1), ("g", 1), ("h", 1), free=0, max_num_seqs=5)
    oldest = engine.sequences[0]
    oldest.known_tokens += [*b"x" * 8]
    assert engine.scheduler.make_room(oldest), "it goes on"
    left = [one.request_id for one in engine.loop.running]
    assert left == [0, 1], f"13 tokens are known, 1 block is there: 3 victims, and 0 and 1 run on, not {left}"
    assert len(oldest.block_table.blocks) == 4, f"13 tokens are 4 blocks: {oldest.block_table.blocks}"


@pytest.mark.task("3.3.4")
def test_make_room_takes_the_last_that_was_admitted(s):
    """Also when that one is a prompt in computation, and when it has arrived before the others."""
    engine = placed(s, ("abcd", 4), ("ef", 2), ("ghijk", 2), free=0)
    first, second, _ = engine.sequences
    assert engine.scheduler.make_room(first)
    assert engine.loop.running == [first, second], "a prompt in computation is preempted like any other"
    engine = placed(s, ("ab", 2), ("cdef", 4), ("gh", 2), free=0)
    early, needy, late = engine.sequences
    engine.loop.running[:] = [needy, late, early]
    assert engine.scheduler.make_room(needy)
    assert engine.loop.running == [needy, late], "`running` is in the order of admission, not of arrival"


@pytest.mark.task("3.3.4")
def test_make_room_preempts_the_request_itself_if_it_is_the_youngest(s):
    """Older requests keep their blocks; it gives its own back, and has no place any more."""
    engine = placed(s, ("abc", 3), ("defg", 4), free=0)
    old, young = engine.sequences
    assert engine.scheduler.make_room(young) is False, "it has lost its place"
    assert engine.loop.running == [old], f"the older one runs on: {len(engine.loop.running)} run"
    assert (young.block_table.blocks, engine.allocator.num_free) == ([], 1), "its block is free"


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preemption_takes_the_youngest(s):
    """The first request finds no block: the last admitted one gives its own back, and is in no plan meanwhile."""
    engine = shortage(s)
    plan = engine.plan()
    assert engine.kinds("preempt")[:1] == [2], f"request 2 is the youngest: {engine.kinds('preempt')}"
    assert plan[:1] == [(0, 8, 1)], f"the oldest decodes: {plan}"
    assert 2 not in [request for request, _, _ in plan], f"a preempted request is in no plan: {plan}"


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preemption_takes_one_victim_per_shortage(s):
    """The block of request 2 is enough for request 0. If request 1 is short too, it is the youngest: it goes itself."""
    engine = shortage(s, num_blocks=4, prompts=("abcdefgh", "ijk", "qr"))
    plan = engine.plan()
    assert engine.kinds("preempt") == [2], f"one block was missing: {engine.kinds('preempt')}"
    assert plan == [(0, 8, 1), (1, 3, 1)], f"request 1 goes on: {plan}"
    engine = shortage(s)
    engine.plan()
    assert engine.kinds("preempt") == [2, 1], f"two blocks were missing: {engine.kinds('preempt')}"
    assert engine.loop.running == [engine.sequences[0]], "request 0 alone runs on"
    roomy = shortage(s, num_blocks=7)
    roomy.plan()
    assert roomy.kinds("preempt") == [], f"two blocks are free, and two are needed: {roomy.kinds('preempt')}"


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preemption_does_not_touch_the_watermark_rule(s):
    """The watermark is kept from prompts that wait. A running request takes the last block, and nobody is preempted."""
    engine = Engine(s, num_blocks=6, watermark=0.3, max_num_batched_tokens=64)
    engine.add("abcdefgh", max_tokens=5)
    engine.add("ijkl", max_tokens=5)
    engine.plan()
    assert engine.plan() == [(0, 8, 1), (1, 4, 1)], f"3 blocks are free, 2 of them kept: {engine.plans[-1]}"
    assert engine.kinds("preempt") == [], "running requests may use what was kept for them"


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preempted_in_mid_decode_it_goes_on_where_it_was(s):
    """Known tokens are computed again, answer included; no token is sampled twice, and none is lost."""
    engine = shortage(s)
    engine.finish()
    victim = engine.sequences[2]
    assert victim.num_preemptions == 1, f"preempted {victim.num_preemptions} times"
    again = [entry for plan in engine.plans[1:] for entry in plan if entry[0] == 2]
    expected = [(2, 0, 3), (2, 3, 1)]
    assert again[:2] == expected, f"its prompt of 2 and its token, from position 0; then a decode: {again}"
    tokens = engine.kinds("token").count(2)
    assert tokens == len(victim.tokens), f"{tokens} events for {len(victim.tokens)} tokens"
    engine.check_answers()


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preempted_in_mid_prefill_it_starts_again(s):
    """A decode takes the blocks of a prompt of which two chunks are computed: it is computed from its beginning."""
    engine = Engine(s, num_blocks=7, max_num_batched_tokens=5, max_num_seqs=2)
    engine.add("abcd", max_tokens=6)
    engine.plan()
    engine.add("klmnopqrstuvwxyzKLMNOP"[:20], max_tokens=2)
    first = [engine.plan() for _ in range(2)]
    assert first == [[(0, 4, 1), (1, 0, 4)], [(0, 5, 1), (1, 4, 4)]], f"a decode and a chunk each: {first}"
    engine.scheduler.preempt(engine.sequences[1])
    engine.finish()
    chunks = [entry for plan in engine.plans[3:] for entry in plan if entry[0] == 1]
    assert chunks[0][:2] == (1, 0), f"it starts at position 0: {chunks}"
    engine.check_answers()


@pytest.mark.task("3.3.4", after="3.3.5")
def test_a_preempted_request_is_next_and_waits_for_its_blocks(s):
    """It goes before those that wait, and not before someone has left: else it would be preempted again at once."""
    engine = shortage(s)
    engine.add("z", max_tokens=1)
    engine.finish()
    order = [request for plan in engine.plans[1:] for request, start, _ in plan if start == 0]
    assert order == [1, 2, 3], f"the last that was preempted, the one before it, then who never ran: {order}"
    assert [one.num_preemptions for one in engine.sequences] == [0, 1, 1, 0], (
        f"nobody is preempted twice for one shortage: {[one.num_preemptions for one in engine.sequences]}"
    )
    engine.check_answers()


@pytest.mark.task("3.3.4", after="3.3.5")
@pytest.mark.parametrize("free", [0, 1])
def test_one_free_block_is_enough_to_go_on(s, free):
    """A pool that just holds the longest request, and others that want in: everybody is served to the end."""
    engine = Engine(s, num_blocks=4 + free, max_num_batched_tokens=6, max_num_seqs=3)
    for prompt, most in (("abcdefghij", 6), ("k", 9), ("lmno", 8), ("pqrstuvwxyz", 5)):
        engine.add(prompt, max_tokens=most)
    engine.finish()
    engine.check_answers()


@pytest.mark.task("3.3.4", after="3.3.5")
def test_preemption_keeps_what_was_read(s):
    """Text and tokens of a preempted request stay: a reader has seen them."""
    engine = shortage(s)
    engine.plan()
    victim = engine.sequences[2]
    assert (len(victim.tokens), len(victim.text)) == (1, 1), f"{victim.tokens}, {victim.text!r}"
    assert (victim.num_computed, victim.block_table.blocks) == (0, []), (
        f"nothing of it is computed any more: num_computed {victim.num_computed}, {victim.block_table.blocks}"
    )
    assert not victim.is_done, "it has not ended"


# What is left of the budget.


@pytest.mark.task("3.3.5")
def test_one_budget_for_all_prompts_of_a_step(s):
    """8 tokens per step over all requests: the first prompt takes 5 of them, the second one what is left."""
    engine = Engine(s)
    for prompt in ("abcde", "fghijkl", "mn"):
        engine.add(prompt, max_tokens=1)
    plans = engine.finish()
    assert plans[0] == [(0, 0, 5), (1, 0, 3)], f"5 and 3, and nothing for the third: {plans[0]}"
    assert plans[1] == [(1, 3, 4), (2, 0, 2)], f"the second goes on, the third is whole: {plans[1]}"
    assert len(plans) == 2, f"14 tokens of prompts are 2 steps of 8: {plans}"


@pytest.mark.task("3.3.5")
@pytest.mark.parametrize("count", [2, 5, 12])
def test_as_many_prompts_begin_as_the_budget_holds(s, count):
    """Short prompts that all fit: every one begins in the first step, however many there are."""
    engine = Engine(s, num_blocks=16, max_num_batched_tokens=24, max_num_seqs=12)
    for letter in "abcdefghijkl"[:count]:
        engine.add(letter * 2, max_tokens=2)
    plan = engine.plan()
    assert plan == [(number, 0, 2) for number in range(count)], (
        f"{count} prompts of 2 tokens, a budget of 24 and 12 places: admit while tokens and places are left; {plan}"
    )


@pytest.mark.task("3.3.5")
def test_decodes_and_chunks_share_the_budget(s):
    """A step with 2 decodes has 6 tokens of 8 for prompts, and one with 3 has 5."""
    engine = running(s, "a", "b", answers=9)
    engine.scheduler.max_num_batched_tokens = 8
    engine.add("klmnopqrst", max_tokens=4)
    plans = [engine.plan() for _ in range(3)]
    assert plans[0] == [(0, 1, 1), (1, 1, 1), (2, 0, 6)], f"2 decodes and 6 tokens of the prompt: {plans[0]}"
    assert plans[1] == [(0, 2, 1), (1, 2, 1), (2, 6, 4)], f"and its last 4: {plans[1]}"
    assert plans[2] == [(0, 3, 1), (1, 3, 1), (2, 10, 1)], f"then it decodes with the others: {plans[2]}"


@pytest.mark.task("3.3.5")
def test_a_prompt_that_has_begun_goes_before_those_that_wait(s):
    """First come, first served: at most one prompt is partly computed, and short ones do not overtake it."""
    engine = Engine(s)
    engine.add("abcdefghijklmnopqrst", max_tokens=1)
    engine.plan()
    engine.add("u", max_tokens=1)
    plans = [engine.plan() for _ in range(2)]
    assert plans == [[(0, 8, 8)], [(0, 16, 4), (1, 0, 1)]], f"request 0 has begun: {plans}"


@pytest.mark.task("3.3.5")
def test_no_more_requests_run_than_there_are_places(s):
    """max_num_seqs counts prompts in computation too; the next one begins when a place is free, in that very step."""
    engine = Engine(s, max_num_seqs=2)
    for prompt, most in (("ab", 3), ("cd", 1), ("ef", 2)):
        engine.add(prompt, max_tokens=most)
    plans = engine.finish()
    assert plans[0] == [(0, 0, 2), (1, 0, 2)], f"two places: {plans[0]}"
    assert plans[1] == [(0, 2, 1), (2, 0, 2)], f"request 1 has ended, and 2 begins: {plans[1]}"


@pytest.mark.task("3.3.5")
def test_a_prompt_whose_first_token_is_out_waits_for_no_place(s):
    """From its first token on a request gets one in every step."""
    engine = Engine(s, max_num_batched_tokens=4, max_num_seqs=3)
    for letter in "abcdef":
        engine.add(letter * 7, max_tokens=5)
    engine.finish()
    times = {}
    steps = [event.time for event in engine.events if event.kind == "step"]
    for event in engine.events:
        if event.kind == "token":
            times.setdefault(event.request.request_id, []).append(steps.index(event.time))
    for request, found in times.items():
        assert found == list(range(found[0], found[0] + 5)), f"request {request} had tokens in steps {found}"


@pytest.mark.task("3.3.5")
def test_others_find_what_is_computed_and_not_what_is_reserved(s):
    """The same prompt arrives when 8 tokens of 14 are computed: blocks of the rest hold nothing yet."""
    engine = Engine(s, caching=True)
    engine.add("abcdefghijklmn", max_tokens=2)
    engine.plan()
    engine.add("abcdefghijklmn", max_tokens=2)
    starts = [start for request, start, _ in engine.plan() if request == 1]
    assert starts == [8], f"the second one begins at {starts}: register what is computed, up to `entry.stop`"
    engine.finish()
    engine.check_answers()


@pytest.mark.task("3.3.5")
def test_a_cached_prefix_is_not_computed(s):
    """A second request with the same 12 tokens and 2 more takes the first 3 blocks, and computes the rest."""
    engine = Engine(s, caching=True, max_num_batched_tokens=16)
    engine.add("abcdefghijkl", max_tokens=1)
    engine.plan()
    engine.add("abcdefghijklmn", max_tokens=2)
    assert engine.plan() == [(1, 12, 2)], f"12 tokens are in shared blocks: {engine.plans[-1]}"
    assert engine.sequences[1].num_cached == 12, f"{engine.sequences[1].num_cached} tokens were in the cache"
    engine.finish()
    engine.check_answers()


@pytest.mark.task("3.3.5")
def test_a_prompt_waits_for_blocks_for_all_of_it(s):
    """A prompt of 12 tokens needs 3 blocks; with 2 free nothing of it begins, and nobody behind it goes first."""
    engine = Engine(s, num_blocks=4, max_num_batched_tokens=16)
    engine.add("abcdefg", max_tokens=2)
    engine.add("hijklmnopqrs", max_tokens=1)
    engine.add("t", max_tokens=1)
    plans = engine.finish()
    assert plans == [[(0, 0, 7)], [(0, 7, 1)], [(1, 0, 12), (2, 0, 1)]], f"all of a prompt, in order: {plans}"
    engine.check_answers()


@pytest.mark.task("3.3.5")
def test_a_prompt_that_waits_keeps_the_watermark(s):
    """10 blocks, 3 of them kept: beside a request of 4 blocks, one of 3 may begin, and one of 4 has to wait."""
    for prompt, begins in (("q" * 12, True), ("q" * 13, False)):
        engine = Engine(s, num_blocks=10, watermark=0.3, max_num_batched_tokens=64)
        engine.add("a" * 16, max_tokens=1)
        engine.add(prompt, max_tokens=1)
        plan = engine.plan()
        found = 1 in [request for request, _, _ in plan]
        assert found == begins, f"{len(prompt)} tokens, 6 blocks are free and 3 of them are kept: {plan}"


@pytest.mark.task("3.3.5")
def test_a_request_that_runs_alone_may_have_every_block(s):
    """A prompt that needs the watermark's blocks too is served when nothing else runs, and else it waits."""
    engine = Engine(s, num_blocks=4, watermark=0.5, max_num_batched_tokens=64)
    engine.add("ab", max_tokens=2)
    engine.add("c" * 15, max_tokens=2)
    plans = engine.finish()
    assert plans == [[(0, 0, 2)], [(0, 2, 1)], [(1, 0, 15)], [(1, 15, 1)]], (
        f"first alone, then alone: {plans}"
    )
    engine.check_answers()


@pytest.mark.task("3.3.5")
def test_a_lone_prompt_of_many_chunks_is_served(s):
    """Nothing else runs, and the loop does not end before the prompt does."""
    engine = Engine(s)
    engine.add("abcdefghijklmnopqrstuvwxy", max_tokens=2)
    plans = engine.finish()
    assert plans == [[(0, 0, 8)], [(0, 8, 8)], [(0, 16, 8)], [(0, 24, 1)], [(0, 25, 1)]], f"{plans}"
    engine.check_answers()


@pytest.mark.task("3.3.5")
def test_prompts_that_have_begun_share_what_is_left_in_order(s):
    """Two prompts have begun: the older one takes what it needs, the other one the rest, and no chunk is empty."""
    for left, expected in ((6, [(0, 1, 4), (1, 2, 2)]), (3, [(0, 1, 3)]), (0, [])):
        engine = placed(s, ("abcde", 1), ("fghijk", 2))
        engine.scheduler.prompt_budget = lambda plan, left=left: left
        plan = []
        engine.scheduler.plan_prompts(plan)
        assert described(plan) == expected, f"{left} tokens are left for 4 and 4: {described(plan)}"


WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 64, "max_num_seqs": 2}


@pytest.mark.task("3.3.5")
def test_without_chunks_a_prompt_shares_no_step_with_decodes(s):
    """`enable_chunked_prefill=False` plans prompts first: whoever decodes is in no such plan, and waits."""
    engine = Engine(s, **WHOLE)
    engine.add("a", max_tokens=4)
    engine.plan()
    engine.add("b" * 9, max_tokens=2)
    assert engine.plan() == [(1, 0, 9)], f"a prompt, and no decode with it: {engine.plans[-1]}"


@pytest.mark.task("3.3.5")
def test_without_chunks_those_that_wait_for_their_decode_have_places(s):
    """Two requests run, and neither is in the plan of prompts: the third one has no place yet."""
    engine = Engine(s, **WHOLE)
    for prompt in ("ab", "cde", "fg"):
        engine.add(prompt, max_tokens=2)
    plans = engine.finish()
    expected = [[(0, 0, 2), (1, 0, 3)], [(0, 2, 1), (1, 3, 1)], [(2, 0, 2)], [(2, 2, 1)]]
    assert plans == expected, f"two places, and prompts apart from decodes: {plans}"


@pytest.mark.task("3.3.5")
def test_without_chunks_nobody_is_alone_beside_a_decode(s):
    """A request runs that is not in the plan: one that waits keeps the watermark."""
    engine = Engine(s, num_blocks=10, watermark=0.2, **WHOLE)
    engine.add("abcde", max_tokens=3)
    engine.plan()
    engine.add("f" * 28, max_tokens=3)
    assert engine.plan() == [(0, 5, 1)], f"8 blocks are free, 2 of them kept, 7 needed: {engine.plans[-1]}"


@pytest.mark.task("3.3.5")
def test_without_chunks_a_prompt_that_does_not_fit_waits_for_the_next_step(s):
    """`admit` needs to know what is left of the budget, and not the whole budget."""
    engine = Engine(s, **WHOLE)
    engine.add("c" * 40, max_tokens=1)
    engine.add("d" * 30, max_tokens=1)
    plans = engine.finish()
    assert plans == [[(0, 0, 40)], [(1, 0, 30)]], f"24 of 64 tokens are left, and 30 do not fit: {plans}"


@pytest.mark.task("3.3.5")
def test_a_hybrid_step_is_one_call_and_one_event(s):
    """A chunk and two decodes: one call of the model, one event with both parts, chunks first."""
    engine = running(s, "a", "b", answers=9)
    engine.scheduler.max_num_batched_tokens = 8
    engine.add("klmnop", max_tokens=4)
    calls, steps = len(engine.model.batches), sum(event.kind == "step" for event in engine.events)
    engine.plan()
    assert len(engine.model.batches) == calls + 1, f"{len(engine.model.batches) - calls} calls for one step"
    found = [event for event in engine.events if event.kind == "step"][steps:]
    assert len(found) == 1, f"{len(found)} events for one step"
    parts = [(part.kind, part.tokens, part.context, part.running) for part in found[0].parts]
    assert parts == [("chunk", 6, 0, 2), ("decode", 2, 0, 0)], f"(kind, tokens, context, running): {parts}"
    assert found[0].seconds == 8, f"8 tokens of a second each: {found[0].seconds}"


REQUEST = st.tuples(
    st.integers(1, 22), st.integers(1, 10), st.integers(0, 12), st.booleans()
)  # tokens of the prompt and of the answer, step of its arrival, whether its prompt begins as all others do


@pytest.mark.task("3.3.5")
@settings(max_examples=150, deadline=None)
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=9),
    seqs=st.integers(1, 5),
    budget=st.integers(0, 20),
    blocks=st.integers(8, 24),
    watermark=st.sampled_from([0.0, 0.01, 0.2]),
    caching=st.booleans(),
)
def test_any_load_is_served_as_each_request_alone(s, requests, seqs, budget, blocks, watermark, caching):
    """Random prompts, answers, arrivals, budgets and pools: the budget holds, decodes are never left out, prompts are
    computed once and in order, all blocks come back, and every answer is that of the request alone."""
    budget += seqs
    options = {"max_num_seqs": seqs, "max_num_batched_tokens": budget}
    engine = Engine(s, blocks, 4, watermark=watermark, caching=caching, model={"ends": 9}, **options)
    waiting = sorted(enumerate(requests), key=lambda pair: pair[1][2])
    for step in range(3000):
        while waiting and waiting[0][1][2] <= step:
            index, (tokens, answer, _, shared) = waiting.pop(0)
            text = "shared beginning of all"[:tokens] if shared else (chr(ord("A") + index) * tokens)
            engine.add(text, max_tokens=answer)
        if not engine.loop.has_work_remaining():
            if not waiting:
                break
            continue
        before = {one.request_id: one.num_preemptions for one in engine.sequences}
        ready = {one.request_id for one in engine.loop.running if one.is_decoding}
        plan = engine.plan()
        assert plan, f"a step computed nothing, and work remains: {why_stuck(engine.loop, engine.sequences)}"
        assert sum(size for _, _, size in plan) <= budget, f"{plan} has more than {budget} tokens"
        victims = {i for i, count in before.items() if engine.sequences[i].num_preemptions > count}
        served = {request for request, _, _ in plan}
        assert ready <= served | victims, f"ready {ready}, served {served}, preempted {victims}"
        partial = [one for one in engine.loop.running if 0 < one.num_computed < one.num_prompt_tokens]
        assert len(partial) <= 1, f"{len(partial)} prompts are partly computed"
    for one in engine.sequences:
        pieces = [
            (start, size)
            for plan in engine.plans
            for request, start, size in plan
            if request == one.request_id
        ]
        expected = pieces[0][0]
        for start, size in pieces:
            fresh = one.num_preemptions and start % 4 == 0 and start < expected
            assert start == expected or fresh, f"request {one.request_id} was computed in pieces {pieces}"
            expected = start + size
    engine.check_answers()
