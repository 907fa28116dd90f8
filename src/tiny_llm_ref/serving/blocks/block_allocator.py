"""Blocks of KV memory: which are free, how many requests refer to each, and which hold a text. Integers only."""

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Sequence

# The parent of a text's first block. It has the length of a digest, so that it cannot be confused with tokens.
ROOT = bytes(hashlib.sha256().digest_size)


def block_hash(parent: bytes | None, tokens: Sequence[int]) -> bytes:
    """The name of a full block: a SHA-256 digest of all tokens up to its end.

    The keys and values of a token depend on every token before it, so a block is named by its whole prefix. The
    parent's digest stands for that prefix: the blocks form a chain, and each token is hashed once.

    Args:
        parent: digest of the block before; None for the first block of a text.
        tokens: ids of this block.

    Returns:
        32 bytes.
    """
    # TASK 3.1.5: hash the parent's digest and the tokens, in an encoding that two different inputs never share.
    # Every id takes 8 bytes, and a first block has `ROOT` for a parent.
    numbers = struct.pack(f"<{len(tokens)}Q", *tokens)
    return hashlib.sha256((parent or ROOT) + numbers).digest()


class PrefixCache:
    """Full blocks by the digest of their text, and those of them that no request refers to, least recently used first.

    An idle block keeps its keys and values until its memory is needed.
    """

    def __init__(self):
        self.block_of: dict[bytes, int] = {}
        self.digest_of: dict[int, bytes] = {}
        self.idle: dict[int, None] = {}  # a dict keeps the order of insertion: the first one is the oldest

    def add(self, digest: bytes, block: int) -> None:
        """Registers a block under its digest. If two requests computed the same text, the first block stays."""
        if digest not in self.block_of:
            self.block_of[digest], self.digest_of[block] = block, digest

    def find(self, digest: bytes) -> int | None:
        """The block that holds this text."""
        return self.block_of.get(digest)

    def holds(self, block: int) -> bool:
        """Whether the block can be found."""
        return block in self.digest_of

    def mark_idle(self, block: int) -> None:
        """Marks a findable block without references as idle, the most recently used one."""
        self.idle[block] = None

    def mark_used(self, block: int) -> None:
        """Marks an idle block as referenced again."""
        del self.idle[block]

    def evict(self) -> int:
        """Forgets the least recently used idle block, and returns it. At least one block is idle."""
        # TASK 3.1.6: the oldest idle block; after that neither its digest nor its number may be found.
        # Used blocks are never evicted, however old they are.
        block = next(iter(self.idle))
        del self.idle[block]
        del self.block_of[self.digest_of.pop(block)]
        return block


class OutOfBlocks(Exception):
    """Fewer blocks are free than are needed."""

    def __init__(self, needed: int, free: int):
        super().__init__(
            f"blocks needed: {needed}, free: {free}; release a request, or give the pool more (num_blocks)"
        )
        self.needed, self.free = needed, free


def share_of(watermark: float, num_blocks: int) -> int:
    """The blocks of a watermark, rounded up. Given."""
    return math.ceil(round(watermark * num_blocks, 6))  # 0.07 · 100 is 7.000000000000001


class BlockAllocator:
    """Hands out the blocks of a KV pool and counts references to them (Kwon et al., 2023, section 4.2).

    A block is memory for `block_size` consecutive tokens of one text, the same block in the pool of every layer. It is
    free when it has no references. A free block whose text can still be found is cached; any other one is blank. The
    pool has one block more, the pad block, for the tokens of padding: it is never handed out.

    Args:
        num_blocks: blocks that can be handed out.
        block_size: tokens per block.
        watermark: share of the blocks that stays free when a request is admitted, so that running ones can grow.
        enable_prefix_caching: whether full blocks can be found by their text, see `BlockTable.share`.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 128,
        *,
        watermark: float = 0.01,
        enable_prefix_caching: bool = True,
    ):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"{num_blocks} blocks of {block_size} tokens: give at least one of each")
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}: give a share from 0 to below 1")
        self.num_blocks, self.block_size = num_blocks, block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.watermark, self.watermark_blocks = watermark, share_of(watermark, num_blocks)
        self.reference_counts = [0] * num_blocks
        self.blank = [*reversed(range(num_blocks))]  # a stack: the lowest block is handed out first
        self.prefix_cache = PrefixCache()

    @property
    def pad_block(self) -> int:
        """The index after the last block: padding is written to that page."""
        return self.num_blocks

    @property
    def pad_slot(self) -> int:
        """The first slot of the pad block. Never -1, which counts from the end."""
        return self.num_blocks * self.block_size

    @property
    def num_free(self) -> int:
        """Blocks without references, cached ones included."""
        return len(self.blank) + len(self.prefix_cache.idle)

    def can_allocate(self, count: int, *, keep_watermark: bool = True) -> bool:
        """Whether `count` blocks are free.

        Args:
            count: blocks.
            keep_watermark: whether `watermark_blocks` must be free afterwards, as for a request that is admitted; a
                running request may take the last block.
        """
        # TASK 3.1.1: compare with what is free; the watermark counts only where it is to be kept.
        kept = self.watermark_blocks if keep_watermark else 0
        return count + kept <= self.num_free

    def allocate(self, count: int) -> list[int]:
        """Hands out `count` blocks, each with one reference: blank ones first, then evicted ones.

        Raises:
            OutOfBlocks: fewer are free; nothing has changed then.
        """
        # TASK 3.1.1: all or nothing. Look first whether there are enough; a running request may use the watermark.
        # `self.prefix_cache.evict()` makes room when no blank block is left: a cached block is free memory.
        if not self.can_allocate(count, keep_watermark=False):
            raise OutOfBlocks(count, self.num_free)
        blocks = [self.blank.pop() if self.blank else self.prefix_cache.evict() for _ in range(count)]
        for block in blocks:
            self.reference_counts[block] = 1
        return blocks

    def fork(self, blocks: Sequence[int]) -> None:
        """Adds one reference to each block, for one more request that reads them.

        A cached block without references can be shared too; then it is no longer free.

        Raises:
            ValueError: a block is blank, or there is no such block; nothing has changed then.
        """
        self._check_numbers(blocks)
        # TASK 3.1.2: refuse blank blocks before anything changes. A cached one without references is idle no longer.
        for block in blocks:
            if not self.reference_counts[block] and not self.prefix_cache.holds(block):
                raise ValueError(f"block {block} is blank: there is nothing in it to share")
        for block in blocks:
            if not self.reference_counts[block]:
                self.prefix_cache.mark_used(block)
            self.reference_counts[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Removes one reference from each block, the last block first. A block without references is free again.

        A cached block keeps its text. The end of a text is evicted before its beginning, which more texts share.

        Args:
            blocks: of one request, in the order of its text.

        Raises:
            ValueError: a block has fewer references than are taken from it, or there is no such block; nothing has
                changed then.
        """
        self._check_numbers(blocks)
        # TASK 3.1.2: refuse a double free before anything changes. Without references a block goes where it belongs:
        # one that the prefix cache holds is idle, any other one is blank.
        for block, count in Counter(blocks).items():
            if count > self.reference_counts[block]:
                raise ValueError(f"block {block} is freed twice: {self.reference_counts[block]} refer to it")
        for block in reversed(blocks):
            self.reference_counts[block] -= 1
            if self.reference_counts[block]:
                continue
            if self.prefix_cache.holds(block):
                self.prefix_cache.mark_idle(block)
            else:
                self.blank.append(block)

    def forget(self, digest: bytes) -> None:
        """Lets no request find a text any more. No request has its block. Given."""
        block = self.prefix_cache.block_of.pop(digest, None)
        if block is not None:
            del self.prefix_cache.digest_of[block], self.prefix_cache.idle[block]
            self.blank.append(block)

    def grow(self, num_blocks: int) -> None:
        """Adds blank blocks until there are `num_blocks`; the pad block is after the last one again. Given."""
        added = range(self.num_blocks, num_blocks)
        self.reference_counts += [0] * len(added)
        self.blank[:0] = reversed(added)  # handed out after those that are there
        self.num_blocks, self.watermark_blocks = num_blocks, share_of(self.watermark, num_blocks)

    def _check_numbers(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise ValueError(f"block {block} is not one of 0 to {self.num_blocks - 1}")
