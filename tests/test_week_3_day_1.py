"""Week 3 Day 1: paged KV. Exact scripts of integers, a fuzz, and logits beside those of Day 2.1's cache."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.close import assert_close
from tiny_llm_course.grading.small_models import CASES, random_checkpoint

SIZE = 4  # tokens per block
TEXT = [*range(10, 30)]  # five full blocks


def make(s, num_blocks: int = 8, **options):
    return s.BlockAllocator(num_blocks, SIZE, **{"watermark": 0, **options})


def state(allocator) -> tuple:
    """Everything that a refused call must leave as it was."""
    cache = allocator.prefix_cache
    return [*allocator.reference_counts], sorted(allocator.blank), [*cache.idle], dict(cache.block_of)


def refused(allocator, error: type, call, idea: str) -> str:
    """The message of a call that must raise `error` and change nothing."""
    before = state(allocator)
    try:
        result = call()
    except error as raised:
        assert state(allocator) == before, f"{idea}: it was refused, and something had changed already"
        return str(raised)
    raise AssertionError(f"{idea}: this must raise {error.__name__}, and it returned {result!r}")


def cached(allocator, count: int = 1) -> list[int]:
    """Findable blocks without references, least recently used first."""
    blocks = [allocator.blank.pop() for _ in range(count)]
    for block in blocks:
        allocator.prefix_cache.add(struct.pack("32s", str(block).encode()), block)
        allocator.prefix_cache.mark_idle(block)
    return blocks


def take(s, allocator, count: int) -> list[int]:
    """So many blocks, which are free."""
    try:
        return allocator.allocate(count)
    except s.OutOfBlocks as error:
        pytest.fail(f"{allocator.num_free} blocks are free, and {count} were refused: {error}")


# Task 3.1.1: handing out.


@pytest.mark.task("3.1.1")
def test_allocate_hands_out_each_block_once(s):
    """All blocks of the pool, one reference each, none twice, and never the pad block."""
    allocator = make(s)
    blocks = [block for count in (1, 3, 0, 4) for block in take(s, allocator, count)]
    assert sorted(blocks) == [*range(8)], f"1 + 3 + 0 + 4 blocks of 8 are 0 to 7, each once, and not {blocks}"
    assert allocator.reference_counts == [1] * 8, "a block that is handed out has one reference"
    assert allocator.num_free == 0, f"8 of 8 blocks are handed out, and num_free is {allocator.num_free}"
    assert allocator.pad_block not in blocks, "the pad block is never handed out"


@pytest.mark.task("3.1.1")
@pytest.mark.parametrize("count", [4, 9])
def test_allocate_is_all_or_nothing(s, count):
    """3 of 8 blocks are free. A request for more gets none, and learns both numbers."""
    allocator = make(s)
    allocator.allocate(5)
    message = refused(
        allocator, s.OutOfBlocks, lambda: allocator.allocate(count), f"{count} blocks of 3 free"
    )
    assert str(count) in message and "3" in message, f"say how many are needed and free: {message}"
    assert len(take(s, allocator, 3)) == 3, "exactly 3 blocks are free: 3 can be had"


@pytest.mark.task("3.1.1")
def test_allocate_takes_blank_blocks_before_cached_ones(s):
    """A cached block may save a prefill, a blank one cannot: take the blank one first."""
    allocator = make(s)
    kept = cached(allocator, 3)
    assert allocator.num_free == 8
    blocks = allocator.allocate(5)
    assert not {*blocks} & {*kept}, f"5 blank blocks are there, and of {blocks} some were cached: {kept}"
    assert all(map(allocator.prefix_cache.holds, kept)), "a cached block was forgotten without need"


@pytest.mark.task("3.1.1")
def test_can_allocate_counts_free_blocks(s):
    """Blank blocks are free, and so are cached ones without references."""
    allocator = make(s)
    cached(allocator, 2)
    found = [allocator.can_allocate(count) for count in (0, 6, 7, 8, 9)]
    assert found == [True] * 4 + [False], f"6 blank and 2 cached blocks: 8 can be had, 9 cannot; {found}"


@pytest.mark.task("3.1.1")
def test_can_allocate_keeps_the_watermark_for_running_requests(s):
    """A quarter of 8 blocks, 2, stays free when a request is admitted. A running one may take the last block."""
    allocator = make(s, watermark=0.25)
    assert allocator.watermark_blocks == 2
    admitted = [allocator.can_allocate(count) for count in (5, 6, 7, 8)]
    assert admitted == [True, True, False, False], f"2 of 8 stay free, so 6 can be admitted: {admitted}"
    running = [allocator.can_allocate(count, keep_watermark=False) for count in (7, 8, 9)]
    assert running == [True, True, False], f"without the watermark all 8 can be had: {running}"
    assert len(take(s, allocator, 8)) == 8, "allocate serves running requests too: it may use the watermark"
    assert not allocator.can_allocate(0), "0 blocks are free: the watermark of 2 is not there"


# Task 3.1.2: sharing and giving back.


@pytest.mark.task("3.1.2")
def test_a_shared_block_lives_until_its_last_reference_is_gone(s):
    """Three requests read the same two blocks; the first to end must not take them from the others."""
    allocator = make(s)
    blocks = allocator.allocate(2)
    allocator.fork(blocks)
    allocator.fork(blocks[:1])
    expected = {blocks[0]: 3, blocks[1]: 2}
    found = {block: allocator.reference_counts[block] for block in blocks}
    assert found == expected, f"fork adds one reference to each block: {expected}, not {found}"
    for free, left in ((6, [2, 1]), (7, [1, 0])):
        allocator.free(blocks)
        found = [allocator.reference_counts[block] for block in blocks]
        assert found == left, f"free takes one reference from each block: {left}, not {found}"
        assert allocator.num_free == free, (
            f"a block with references is not free; num_free is {allocator.num_free}"
        )
    allocator.free(blocks[:1])
    assert allocator.num_free == 8


@pytest.mark.task("3.1.2")
@pytest.mark.parametrize("wrong", ["twice", "one of two", "in one call"])
def test_a_double_free_is_refused_before_anything_changes(s, wrong):
    """Two requests would get a block that was freed twice, and write over each other."""
    allocator = make(s)
    kept, gone = allocator.allocate(2), allocator.allocate(2)
    allocator.free(gone)
    blocks = {"twice": gone, "one of two": [kept[0], gone[0], kept[1]], "in one call": [kept[0]] * 2}[wrong]
    message = refused(allocator, ValueError, lambda: allocator.free(blocks), f"a double free ({wrong})")
    number = kept[0] if wrong == "in one call" else None
    assert any(str(block) in message for block in (gone if number is None else [number])), (
        f"say which block is freed twice: {message}"
    )


@pytest.mark.task("3.1.2")
def test_two_requests_may_be_freed_in_one_call(s):
    """A block with two references can be in the list twice."""
    allocator = make(s)
    blocks = allocator.allocate(2)
    allocator.fork(blocks)
    allocator.free(blocks * 2)
    assert allocator.num_free == 8 and not any(allocator.reference_counts)


@pytest.mark.task("3.1.2")
def test_fork_refuses_a_blank_block_before_anything_changes(s):
    """A blank block has nothing to share, and the next request may get it."""
    allocator = make(s)
    mine = allocator.allocate(2)
    blank = next(block for block in range(8) if block not in mine)
    blocks = [mine[0], blank, mine[1]]
    message = refused(allocator, ValueError, lambda: allocator.fork(blocks), "fork of a blank block")
    assert str(blank) in message, f"say which block is blank: {message}"


@pytest.mark.task("3.1.2")
def test_fork_takes_a_cached_block_off_the_free_ones(s):
    """A prefix hit on an idle block: it must not be evicted while the new request reads it."""
    allocator = make(s)
    kept = cached(allocator, 3)
    allocator.fork([kept[1]])
    assert allocator.num_free == 7, f"one of 8 free blocks is in use again; num_free is {allocator.num_free}"
    assert allocator.reference_counts[kept[1]] == 1
    assert [*allocator.prefix_cache.idle] == [kept[0], kept[2]], "a block in use must not wait for eviction"
    allocator.fork([kept[1]])
    assert (allocator.num_free, allocator.reference_counts[kept[1]]) == (7, 2)


@pytest.mark.task("3.1.2")
def test_free_keeps_what_is_cached(s):
    """A block that can be found stays findable without references; one that cannot is blank."""
    allocator = make(s)
    kept = cached(allocator, 1)
    allocator.fork(kept)
    blank = allocator.allocate(1)
    allocator.free([*kept, *blank])
    assert allocator.num_free == 8, f"all 8 blocks are free, each once, and num_free is {allocator.num_free}"
    assert [*allocator.prefix_cache.idle] == kept, "a cached block without references is idle"
    assert kept[0] not in allocator.blank, "a cached block is not blank: its text would be lost"
    assert blank[0] in allocator.blank, "a block that cannot be found is blank"


@pytest.mark.task("3.1.2")
def test_the_end_of_a_text_is_evicted_before_its_beginning(s):
    """The beginning is what other texts share, and without it the end cannot be found."""
    allocator = make(s)
    text = cached(allocator, 3)
    allocator.fork(text)
    allocator.free(text)
    order = [*allocator.prefix_cache.idle]
    assert order == text[::-1], f"blocks {text} of one text were freed; they are evicted in the order {order}"


# Task 3.1.3: room.


@pytest.mark.task("3.1.3")
@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3), (32, 8)]
)
def test_reserve_rounds_up_to_blocks(s, tokens, blocks):
    """4 tokens fit into one block of 4; 5 need a second one. At most 3 places stay empty."""
    table = s.BlockTable(make(s))
    table.reserve(tokens)
    assert len(table.blocks) == blocks, f"{tokens} tokens need {blocks} blocks of 4, not {len(table.blocks)}"


@pytest.mark.task("3.1.3")
def test_reserve_grows_block_by_block(s):
    """Token by token: a new block with every fourth token, behind the earlier ones, which stay where they are."""
    allocator = make(s)
    table, others = s.BlockTable(allocator), []
    for tokens in range(1, 15):
        before = [*table.blocks]
        table.reserve(tokens)
        assert len(table.blocks) == -(-tokens // 4), f"{tokens} tokens are in {len(table.blocks)} blocks of 4"
        assert table.blocks[: len(before)] == before, f"blocks stay: {before} became {table.blocks}"
        others += allocator.allocate(tokens == 6)  # another request takes the next block
    assert len({*table.blocks, *others}) == 5


@pytest.mark.task("3.1.3")
def test_reserve_for_less_than_there_is_does_nothing(s):
    """`num_tokens` counts from the beginning of the text, and not from what is there."""
    table = s.BlockTable(make(s))
    table.reserve(9)
    blocks = [*table.blocks]
    for tokens in (9, 12, 1, 0):
        table.reserve(tokens)
        assert table.blocks == blocks, f"12 tokens fit into 3 blocks: reserve({tokens}) changes nothing"


@pytest.mark.task("3.1.3")
def test_reserve_is_all_or_nothing(s):
    """Two blocks are free and three are missing: the table keeps what it had, and takes none."""
    allocator = make(s)
    table = s.BlockTable(allocator)
    table.reserve(6)
    allocator.allocate(4)
    blocks = [*table.blocks]
    refused(allocator, s.OutOfBlocks, lambda: table.reserve(17), "3 blocks are missing and 2 are free")
    assert table.blocks == blocks, f"the table had {blocks} and has {table.blocks} after a refused reserve"
    table.reserve(16)
    assert allocator.num_free == 0


# Task 3.1.4: slots.


def table_of(s, blocks: list[int], num_blocks: int = 8):
    table = s.BlockTable(make(s, num_blocks))
    table.blocks = blocks
    return table


@pytest.mark.task("3.1.4")
@pytest.mark.parametrize(
    ("start", "stop", "slots"),
    [
        (0, 3, [20, 21, 22]),
        (3, 5, [23, 0]),
        (4, 8, [0, 1, 2, 3]),
        (7, 9, [3, 12]),
        (0, 12, [20, 21, 22, 23, 0, 1, 2, 3, 12, 13, 14, 15]),
        (11, 12, [15]),
        (5, 5, []),
        (12, 12, []),
    ],
)
def test_slots_follow_the_table(s, start, stop, slots):
    """Blocks 5, 0, 3 of 4 tokens: position 3 is the last slot of block 5, position 4 the first of block 0."""
    found = table_of(s, [5, 0, 3]).slots(start, stop)
    assert found == slots, f"positions {start} … {stop - 1} in blocks [5, 0, 3] of 4: {slots}, not {found}"


@pytest.mark.task("3.1.4")
@given(blocks=st.permutations(range(8)), cut=st.tuples(st.integers(0, 32), st.integers(0, 32)))
def test_no_two_positions_share_a_slot(s, blocks, cut):
    """All 32 positions of 8 blocks have different slots below the pad slot; a piece is a piece of the whole."""
    table = table_of(s, blocks)
    start, stop = sorted(cut)
    everything = table.slots(0, 32)
    assert sorted(everything) == [*range(table.allocator.pad_slot)], f"blocks {blocks}: slots {everything}"
    assert table.slots(start, stop) == everything[start:stop], (
        f"blocks {blocks}: a slot depends on the position alone"
    )


# Task 3.1.5: the name of a block.


@pytest.mark.task("3.1.5")
def test_block_hash_is_a_digest(s):
    """32 bytes, the same for the same text, whoever asks."""
    digest = s.block_hash(None, [1, 2, 3, 4])
    assert isinstance(digest, bytes) and len(digest) == 32, f"SHA-256 has 32 bytes, and this is {digest!r}"
    assert s.block_hash(None, (1, 2, 3, 4)) == digest, "the same tokens have the same digest, tuple or list"
    assert s.block_hash(digest, [1, 2]) == s.block_hash(bytes(digest), [1, 2])


@pytest.mark.task("3.1.5")
@pytest.mark.parametrize(
    ("one", "other", "idea"),
    [
        ([1, 2, 3, 4], [1, 2, 3, 5], "another token is another text"),
        ([1, 2, 3, 4], [4, 3, 2, 1], "the order belongs to the text"),
        ([1, 23], [12, 3], "1, 23 and 12, 3 are different texts: give every id the same width"),
        ([1, 2], [1, 2, 0], "one token more is another text"),
        ([0, 0], [0, 0, 0], "zeros count too"),
        ([1, 1], [257, 1], "ids are larger than one byte: 257 is not 1"),
        ([1, 1], [65_537, 1], "ids are larger than two bytes: 65,537 is not 1"),
        ([1, 256], [257, 0], "the bytes of neighbours must not run into each other"),
        ([151_643, 0], [0, 151_643], "ids of a real vocabulary"),
    ],
)
def test_block_hash_tells_texts_apart(s, one, other, idea):
    """Two texts with one digest would read each other's keys and values."""
    for parent in (None, s.block_hash(None, [9, 9])):
        assert s.block_hash(parent, one) != s.block_hash(parent, other), f"{idea}: {one} and {other}"


@pytest.mark.task("3.1.5")
@pytest.mark.parametrize(("few", "many"), [(1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (4, 8)])
@pytest.mark.parametrize("order", ["little", "big"])
def test_block_hash_gives_every_id_the_same_width(s, few, many, order):
    """An id that needs more than `few` bytes, written in `many`, spells ids that need no more."""
    wide = 256**few
    spelled = wide.to_bytes(many, order)
    narrow = [int.from_bytes(spelled[at : at + few], order) for at in range(0, many, few)]
    try:
        names = {s.block_hash(None, [wide]), s.block_hash(None, narrow)}
    except (OverflowError, struct.error):
        return  # ids of this size are refused
    assert len(names) == 2, (
        f"{[wide]} and {narrow} have one digest: give every id the same width, small and large ones alike"
    )


@pytest.mark.task("3.1.5")
def test_block_hash_depends_on_everything_before(s):
    """The same four tokens behind other beginnings have other keys and values."""
    block = [1, 2, 3, 4]
    names = [s.block_hash(parent, block) for parent in (None, s.block_hash(None, block))]
    names += [s.block_hash(s.block_hash(None, other), block) for other in ([5, 6, 7, 8], [6, 5, 7, 8])]
    names.append(s.block_hash(s.block_hash(s.block_hash(None, [5, 6, 7, 8]), block), block))
    assert len({*names}) == 5, "the parent belongs into the hash: five beginnings, one and the same block"


@pytest.mark.task("3.1.5")
@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("order", ["<", ">"])
def test_block_hash_does_not_take_a_parent_for_tokens(s, width, order):
    """A first block whose ids spell a digest is not the second block of that text."""
    parent, block = s.block_hash(None, [1, 2, 3, 4]), [5, 6, 7, 8]
    spelled = struct.unpack(f"{order}{32 // width}{'IQ'[width // 8]}", parent)
    try:
        forged = [s.block_hash(None, text) for text in ([*spelled, *block], [*block, *spelled])]
    except (OverflowError, struct.error):
        return  # ids of this size are refused: that tells them apart as well
    assert s.block_hash(parent, block) not in forged, (
        "a first block must not look like one with a parent: give it a parent of its own"
    )


@pytest.mark.task("3.1.5")
@pytest.mark.parametrize("index", [0, 3, 4, 15, 31])
def test_block_hash_depends_on_every_byte_of_its_parent(s, index):
    """Of a part of the digest two texts can be found that have it in common."""
    parent = s.block_hash(None, [1, 2, 3, 4])
    other = bytes(byte ^ (place == index) for place, byte in enumerate(parent))
    assert s.block_hash(parent, [5]) != s.block_hash(other, [5]), (
        f"byte {index} of the parent does not count: hash all 32 bytes"
    )


# Task 3.1.6: eviction.


@pytest.mark.task("3.1.6")
def test_evict_takes_the_least_recently_used_block(s):
    """Of the idle blocks the one that has been idle for the longest time; then the next."""
    allocator = make(s)
    kept = cached(allocator, 4)
    found = [allocator.prefix_cache.evict() for _ in range(4)]
    assert found == kept, f"idle since {kept}, in this order; evicted {found}"


@pytest.mark.task("3.1.6")
def test_a_hit_makes_a_block_recent(s):
    """A block that was used again and freed again is the last one to go."""
    allocator = make(s)
    kept = cached(allocator, 3)
    allocator.fork(kept[:1])
    allocator.free(kept[:1])
    found = [allocator.prefix_cache.evict() for _ in range(3)]
    assert found == [*kept[1:], kept[0]], f"{kept[0]} was used last, and the order is {found}"


@pytest.mark.task("3.1.6")
def test_an_evicted_block_cannot_be_found(s):
    """Its memory will hold another text: neither its digest nor its number may lead to it."""
    allocator = make(s)
    cache, kept = allocator.prefix_cache, cached(allocator, 2)
    digest = cache.digest_of[kept[0]]
    assert cache.evict() == kept[0]
    assert cache.find(digest) is None, "its text can still be found, and its memory will hold another one"
    assert not cache.holds(kept[0]), "it still counts as cached: freed again it would keep an old digest"
    assert cache.find(cache.digest_of[kept[1]]) == kept[1], "the other one is still there"
    cache.add(digest, 7)
    assert cache.find(digest) == 7, "the same text can be cached again, in another block"


@pytest.mark.task("3.1.6")
def test_allocate_evicts_when_no_blank_block_is_left(s):
    """Cached blocks are free memory: 2 blank and 3 cached ones serve a request for 4; used ones are never taken."""
    allocator = make(s, 6)
    kept = cached(allocator, 4)
    allocator.fork(kept[:1])
    blocks = take(s, allocator, 4)
    assert {*blocks} == {*range(6)} - {kept[0], kept[3]}, (
        f"{kept[0]} is in use and {kept[3]} is the most recent of the idle ones: {blocks}"
    )
    assert allocator.num_free == 1 and allocator.prefix_cache.holds(kept[0])
    assert all(allocator.reference_counts[block] == 1 for block in blocks)


# Task 3.1.7: making blocks findable.


def findable(s, allocator, tokens) -> list[int]:
    """The blocks at the front of a text that can be found."""
    parent, blocks = None, []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        parent = s.block_hash(parent, tokens[start : start + SIZE])
        blocks.append(allocator.prefix_cache.find(parent))
    return blocks[: blocks.index(None)] if None in blocks else blocks


@pytest.mark.task("3.1.7")
@pytest.mark.parametrize("num_computed", range(0, 21, 3))
def test_register_makes_full_computed_blocks_findable(s, num_computed):
    """Of 20 tokens some are computed. Only the blocks that are full of these can be found."""
    allocator = make(s)
    table = s.BlockTable(allocator)
    table.reserve(20)
    table.register(TEXT, num_computed)
    found, full = findable(s, allocator, TEXT), num_computed // 4
    assert found == table.blocks[:full], (
        f"{num_computed} of 20 tokens are computed, in blocks {table.blocks} of 4: those that are full of computed "
        f"tokens can be found, {table.blocks[:full]}, and not {found}"
    )
    assert len(allocator.prefix_cache.digest_of) == full, "a block that is not full will be written to again"


@pytest.mark.task("3.1.7")
@pytest.mark.parametrize("pieces", [(1,) * 20, (3, 9, 1, 7), (20,), (4,) * 5, (4, 0, 16)])
def test_register_goes_on_where_it_stopped(s, pieces):
    """A prompt in chunks, then token by token: the same digests as all at once, and each block once."""
    allocator = make(s)
    table, done, tokens = s.BlockTable(allocator), 0, []
    for piece in pieces:
        done += piece
        tokens = TEXT[:done]
        table.reserve(done)
        table.register(tokens, done)
    names, parent = {}, None
    for number, start in enumerate(range(0, 20, SIZE)):
        parent = s.block_hash(parent, TEXT[start : start + SIZE])
        names[parent] = number
    found = [names.get(allocator.prefix_cache.digest_of.get(block), "unknown") for block in table.blocks]
    assert found == [*range(5)], f"pieces of {pieces}: each block is named once, by its parent and its tokens"
    found = [names.get(digest, "unknown") for digest in table.digests]
    assert found == [*range(5)], "the digests of the blocks at the front are remembered, in order"


@pytest.mark.task("3.1.7")
def test_two_requests_with_one_text_at_the_same_time(s):
    """Both computed it before either was found. One block stays findable; the other is blank when it is freed."""
    allocator = make(s)
    first, second = s.BlockTable(allocator), s.BlockTable(allocator)
    for table in (first, second):
        table.reserve(8)
    blocks, own = [*first.blocks], [*second.blocks]
    for table in (first, second):
        table.register(TEXT[:8], 8)
    assert second.digests == first.digests and len(first.digests) == 2, (
        f"the second has {len(second.digests)} digests: another request has registered the text, so its block stays in "
        "the cache; remember the digest anyway, because it is the parent of the next block"
    )
    assert second.blocks == own, (
        f"it had blocks {own} and has {second.blocks}: a request goes on with the blocks that it has computed"
    )
    found = [allocator.reference_counts[block] for block in blocks + own]
    assert found == [1] * 4, f"references of the blocks of both: {found}; nothing is shared"
    second.release()
    assert allocator.num_free == 6 and not allocator.prefix_cache.idle, "a copy that cannot be found is blank"
    assert findable(s, allocator, TEXT[:8]) == blocks, "the first blocks with this text stay"
    first.release()
    assert allocator.num_free == 8 and len(allocator.prefix_cache.idle) == 2


class Reads(list):
    """Tokens that record which of them are read."""

    read = ()

    def __getitem__(self, index):
        positions = range(len(self))[index]
        self.read = (*self.read, *(positions if isinstance(index, slice) else [positions]))
        return super().__getitem__(index)


@pytest.mark.task("3.1.7")
def test_register_does_not_hash_a_block_twice(s):
    """It is called after every step: from the beginning each time, a long answer costs the square of its length."""
    table, tokens = s.BlockTable(make(s)), Reads(TEXT)
    table.reserve(20)
    table.register(tokens, 12)
    tokens.read = ()
    table.register(tokens, 16)
    assert not [position for position in tokens.read if position < 12], (
        f"12 tokens had their digests, and positions {tokens.read} were read again: go on where it stopped"
    )


# Task 3.1.8: sharing a prefix.


def computed(s, allocator, tokens, num_computed: int | None = None):
    """The table of a request whose tokens were computed, and registered after each step of five tokens."""
    table = s.BlockTable(allocator)
    done, stop = table.share(tokens), len(tokens) if num_computed is None else num_computed
    table.reserve(len(tokens))
    while done < stop:
        done = min(done + 5, stop)
        table.register(tokens, done)
    return table


@pytest.mark.task("3.1.8")
@pytest.mark.parametrize("owner", ["runs", "has ended"])
@pytest.mark.parametrize(
    ("tokens", "hit", "idea"),
    [
        ([*TEXT[:8], 90, 91, 92], 8, "two blocks are the same, the third is another one"),
        (TEXT[:13], 12, "three full blocks, and one token to compute"),
        (TEXT[:12], 8, "all 12 tokens are cached, but the last one is always computed: 8"),
        (TEXT, 16, "all 20 tokens are cached, but the last one is always computed: 16"),
        ([*TEXT, 90], 20, "five full blocks, and one token to compute"),
        (TEXT[:11], 8, "the third block is not full"),
        (TEXT[:4], 0, "one full block, whose last token is always computed"),
        (TEXT[:3], 0, "no full block"),
        (TEXT[:1], 0, "no full block"),
        ([90, *TEXT[1:]], 0, "the first token differs, so everything does"),
        ([*TEXT[:4], 90, *TEXT[5:]], 4, "the second block differs, so the third does as well"),
        (TEXT[4:], 0, "the same blocks with another beginning"),
    ],
)
def test_share_takes_the_longest_cached_prefix(s, owner, tokens, hit, idea):
    """Full blocks from the front, as long as they are found; whether their first owner still runs or not."""
    allocator = make(s)
    first, table = computed(s, allocator, TEXT), s.BlockTable(allocator)
    blocks = [*first.blocks]
    if owner == "has ended":
        first.release()
    found = table.share(tokens)
    assert found == hit, f"{idea}; share returned {found}"
    assert table.blocks == blocks[: hit // 4], f"{idea}: the same blocks, in order, not {table.blocks}"


@pytest.mark.task("3.1.8")
def test_share_adds_a_reference_to_each_block(s):
    """Two requests read the blocks now. When the first one ends, they stay."""
    allocator = make(s)
    first = computed(s, allocator, TEXT)
    second, third = s.BlockTable(allocator), s.BlockTable(allocator)
    second.share([*TEXT[:8], 90])
    third.share([*TEXT[:4], 91])
    counts = [allocator.reference_counts[block] for block in first.blocks]
    assert counts == [3, 2, 1, 1, 1], f"references of the five blocks: {counts}"
    shared = [*second.blocks]
    first.release()
    assert allocator.num_free == 6 and not {*shared} & {*allocator.prefix_cache.idle}
    taken = allocator.allocate(6)
    assert not {*taken} & {*shared}, "a block that a running request shares was handed out again"


@pytest.mark.task("3.1.8")
def test_share_stops_at_the_first_gap(s):
    """The end of a text is of no use without the middle: attention needs all of the past."""
    allocator = make(s)
    first = computed(s, allocator, TEXT)
    cache, middle = allocator.prefix_cache, first.blocks[2]
    del cache.block_of[cache.digest_of.pop(middle)]
    assert s.BlockTable(allocator).share([*TEXT, 90]) == 8, "the third block is gone: only two can be used"


@pytest.mark.task("3.1.8")
def test_a_shared_prefix_can_be_continued(s):
    """The digests of shared blocks are remembered: the next block's parent is the last of them."""
    allocator = make(s)
    first, second = computed(s, allocator, TEXT[:9]), s.BlockTable(allocator)
    longer = [*TEXT[:8], *range(60, 68)]
    second.share(longer)
    assert second.digests == first.digests, "share knows the digests of the blocks that it found: keep them"
    assert second.num_registered == 8, "the 8 shared tokens must not be written again"
    second.release()
    computed(s, allocator, longer).release()
    found = s.BlockTable(allocator).share([*longer, 90])
    assert found == 16, f"two shared blocks and two of its own: 16 tokens, not {found}"


# The fuzz: random operations on a small pool, against a memory that knows who wrote what.


class Traffic:
    """Random requests on one allocator. `memory` says for each slot which prefix it holds the last token of.

    Args:
        s: the policy under test.
        seed: determines the random operations.
        caching: whether prefixes are shared.
    """

    def __init__(self, s, seed: int, caching: bool):
        self.s, self.random, self.caching = s, random.Random(seed), caching
        self.allocator = s.BlockAllocator(
            self.random.randint(4, 12), self.random.randint(1, 5), enable_prefix_caching=caching
        )
        self.tables: list = []
        self.tokens: dict = {}  # table -> its text
        self.done: dict = {}  # table -> tokens computed
        self.forks: list[tuple[list[int], list]] = []  # blocks held outside of any table, and what they hold
        self.memory: dict[int, tuple] = {}
        self.log: list[str] = []

    def step(self) -> None:
        """One random operation, and every invariant after it."""
        names = [
            "admit",
            "admit",
            "append",
            "append",
            "append",
            "compute",
            "finish",
            "fork",
            "drop",
            "pressure",
        ]
        name = self.random.choice(names)
        self.log.append(name)
        try:
            getattr(self, name)()
        except self.s.OutOfBlocks:
            self.log[-1] += " (out of blocks)"
        self.check()

    def admit(self) -> None:
        """A new request: its text begins like others, its table takes what is cached and reserves the rest."""
        start, length = self.random.choice("ab"), self.random.randint(1, 20)
        tokens = [ord(start), *(self.random.choice((1, 1, 1, 2)) for _ in range(length))]
        table = self.s.BlockTable(self.allocator)
        hit = table.share(tokens)
        assert hit < len(tokens), f"the last of {len(tokens)} tokens must be computed, and {hit} were shared"
        try:
            table.reserve(len(tokens))
        except self.s.OutOfBlocks:
            table.release()
            raise
        self.tables.append(table)
        self.tokens[table], self.done[table] = tokens, hit

    def compute(self) -> None:
        """A chunk of one request's known tokens: writes them, and registers what is full."""
        waiting = [table for table in self.tables if self.done[table] < len(self.tokens[table])]
        if not waiting:
            return
        table = self.random.choice(waiting)
        tokens, start = self.tokens[table], self.done[table]
        stop = min(len(tokens), start + self.random.randint(1, 8))
        for position, slot in zip(range(start, stop), table.slots(start, stop), strict=True):
            self.memory[slot] = tuple(tokens[: position + 1])
        self.done[table] = stop
        table.register(tokens, stop)

    def append(self) -> None:
        """One more token for a request whose tokens are all computed."""
        ready = [table for table in self.tables if self.done[table] == len(self.tokens[table]) < 30]
        if not ready:
            self.compute()
            return
        table = self.random.choice(ready)
        table.reserve(len(self.tokens[table]) + 1)
        self.tokens[table].append(self.random.choice((1, 2)))

    def finish(self) -> None:
        """The end of a request, or its abort in the middle of its prompt. A second release does nothing."""
        if self.tables:
            table = self.tables.pop(self.random.randrange(len(self.tables)))
            del self.tokens[table], self.done[table]
            table.release()
            table.release()

    def fork(self) -> None:
        """Adds a reference to the full, computed blocks of a request."""
        if self.tables:
            table = self.random.choice(self.tables)
            count = self.done[table] // self.allocator.block_size
            self.allocator.fork(table.blocks[:count])
            blocks = table.blocks[:count]
            self.forks.append((blocks, [self.memory[slot] for slot in self.slots_of(blocks)]))

    def drop(self) -> None:
        if self.forks:
            self.allocator.free(self.forks.pop(self.random.randrange(len(self.forks)))[0])

    def pressure(self) -> None:
        """Takes free blocks, overwrites them and gives them back."""
        blocks = self.allocator.allocate(self.random.randint(0, self.allocator.num_free))
        self.memory.update((slot, ("other",)) for slot in self.slots_of(blocks))
        self.allocator.free(blocks)

    def slots_of(self, blocks: list[int]) -> list[int]:
        """All slots of whole blocks."""
        size = self.allocator.block_size
        return [slot for block in blocks for slot in range(block * size, (block + 1) * size)]

    def check(self) -> None:
        held = [table.blocks for table in self.tables] + [blocks for blocks, _ in self.forks]
        counts = [0] * self.allocator.num_blocks
        for block in (block for blocks in held for block in blocks):
            assert 0 <= block < self.allocator.num_blocks, f"block {block} is in use\n{self}"
            counts[block] += 1
        assert self.allocator.reference_counts == counts, f"references\n{self}"
        free = sum(count == 0 for count in counts)
        assert self.allocator.num_free == free, (
            f"{free} blocks have no reference: a leak or double free\n{self}"
        )
        for table in self.tables:
            size, length = self.allocator.block_size, len(self.tokens[table])
            assert table.capacity - length < size, f"{table.capacity} places for {length} tokens\n{self}"
            self.check_text(table)
        for blocks, text in self.forks:
            slots = [
                block * self.allocator.block_size + i
                for block in blocks
                for i in range(self.allocator.block_size)
            ]
            assert [self.memory[slot] for slot in slots] == text, f"a forked block was written to\n{self}"

    def check_text(self, table) -> None:
        """A request reads what it has written, or what a request with the same text has written."""
        tokens, done = tuple(self.tokens[table]), self.done[table]
        for position, slot in enumerate(table.slots(0, done)):
            assert self.memory.get(slot) == tokens[: position + 1], (
                f"position {position} of {tokens} reads {self.memory.get(slot)}: a block with another text\n{self}"
            )

    def __str__(self) -> str:
        sizes = f"{self.allocator.num_blocks} blocks of {self.allocator.block_size} tokens"
        return f"after {len(self.log)} operations on {sizes}; the last ones: {', '.join(self.log[-12:])}"


def fuzz(s, caching: bool, operations: int) -> None:
    """So many operations, in runs that become longer: the first that fails is a short one."""
    seed, left = 0, operations
    while left > 0:
        traffic = Traffic(s, seed, caching)
        for _ in range(min(left, 5 + 5 * seed)):
            traffic.step()
        left, seed = left - len(traffic.log), seed + 1


@pytest.mark.task("3.1.4")
def test_fuzz_without_caching(s):
    """2,500 random operations: no leak, no double free, no text overwritten, at most block - 1 places empty."""
    fuzz(s, caching=False, operations=2_500)


@pytest.mark.task("3.1.8")
def test_fuzz_with_caching(s):
    """10,000 random operations with hits and evictions: also no block that is shared with a different text."""
    fuzz(s, caching=True, operations=10_000)


# With a model. Oracle: Day 2.1's cache, the request alone.

CASE = "untied-3"
VOCABULARY = CASES[CASE].config.vocab_size


@pytest.fixture(scope="module")
def model(b):
    return b.Qwen3ModelWeek2(random_checkpoint(b, CASES[CASE]))


def run(b, model, tokens, pieces, caches) -> np.ndarray:
    """Logits (L, V) of a text that comes in pieces, from the tokens on that the caches hold already."""
    start, logits = caches[0].offset, []
    for size in pieces:
        piece = b.array([tokens[start : start + size]])
        logits.append(b.numpy(model(piece, start, caches))[0])
        start += size
    return np.concatenate(logits)


def alone(b, model, tokens) -> np.ndarray:
    return run(b, model, tokens, [len(tokens)], model.create_kv_cache())


def paged(b, pools, table, offset: int = 0) -> list:
    return b.TinyKvPagedCache.of_layers(pools, table, offset)


@pytest.mark.task("3.1.4")
@pytest.mark.parametrize("pieces", [(13,), (1,) * 13, (4, 4, 5), (3, 1, 8, 1), (5, 7, 1)])
def test_a_model_answers_from_pages_as_from_one_array(b, s, rng, model, pieces):
    """Two requests in turns, their blocks mixed in one pool: fp32 logits as each has alone."""
    allocator = make(s)
    pools = b.create_kv_pools(model, 8, SIZE)
    texts = rng.integers(0, VOCABULARY, (2, 13)).tolist()
    caches = [paged(b, pools, s.BlockTable(allocator)) for _ in texts]
    logits = [[], []]
    for size in pieces:
        for i, text in enumerate(texts):
            logits[i].append(run(b, model, text, [size], caches[i]))
    for i, text in enumerate(texts):
        idea = f"request {i} in pieces of {pieces}, keys and values in slots of blocks {caches[i][0].table.blocks}"
        assert_close(np.concatenate(logits[i]), alone(b, model, text), atol=1e-4, idea=idea)


@pytest.mark.task("3.1.8")
@pytest.mark.parametrize("owner", ["runs", "has ended"])
@pytest.mark.parametrize(("shared", "hit"), [(12, 12), (11, 8), (8, 8), (5, 4)])
def test_a_prefix_hit_gives_the_logits_of_a_run_alone(b, s, rng, model, owner, shared, hit):
    """The second request starts at offset = hit, computes the rest, and its fp32 logits are those of its solo run."""
    allocator = make(s)
    pools = b.create_kv_pools(model, 8, SIZE)
    first, second = rng.integers(0, VOCABULARY, (2, 15)).tolist()
    second[:shared] = first[:shared]
    table = s.BlockTable(allocator)
    run(b, model, first, [15], paged(b, pools, table))
    table.register(first, 15)
    if owner == "has ended":
        table.release()
        other = s.BlockTable(allocator)  # a third request writes over what is blank
        run(b, model, second[::-1], [9], paged(b, pools, other))
    mine = s.BlockTable(allocator)
    offset = mine.share(second)
    assert offset == hit, f"{shared} tokens are the same, in blocks of 4: {hit} are cached, not {offset}"
    caches = paged(b, pools, mine, offset)
    logits = run(b, model, second, [2, 15 - hit - 2], caches)
    idea = f"{hit} tokens came from the cache: the other {15 - hit} have the logits that they have in a run alone"
    assert_close(logits, alone(b, model, second)[hit:], atol=1e-4, idea=idea)
    if owner == "runs":
        idea = "the first request goes on, and the second has changed nothing in the blocks that they share"
        further = run(b, model, [*first, 7], [1], paged(b, pools, table, 15))
        assert_close(further, alone(b, model, [*first, 7])[15:], atol=1e-4, idea=idea)


@pytest.mark.task("3.1.8")
def test_a_text_that_is_cached_whole_still_computes_its_last_token(b, s, rng, model):
    """The same prompt again: all of it is cached, and the logits of its last token must come from somewhere."""
    allocator = make(s)
    pools = b.create_kv_pools(model, 8, SIZE)
    text = rng.integers(0, VOCABULARY, 12).tolist()
    table = s.BlockTable(allocator)
    run(b, model, text, [12], paged(b, pools, table))
    table.register(text, 12)
    again = s.BlockTable(allocator)
    offset = again.share(text)
    assert offset == 8, f"12 cached tokens in blocks of 4: the last block is computed again: {offset}"
    logits = run(b, model, text, [4], paged(b, pools, again, offset))
    assert_close(logits, alone(b, model, text)[8:], atol=1e-4, idea="the same prompt has the same logits")
