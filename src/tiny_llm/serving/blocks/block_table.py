"""The block table of one request, and the blocks in use of several requests as one flat list."""

from collections.abc import Iterator, Sequence

from tiny_llm_engine.packed_model import FlatBlocks

from .block_allocator import BlockAllocator, block_hash


class BlockTable:
    """The blocks of one request, in the order of its text.

    The table belongs to the request, the blocks belong to the allocator. Position p is in block
    `blocks[p // block_size]`, in all layers alike. Blocks at the front may be shared with other requests; they are
    full, and are never written again.

    Args:
        allocator: where the blocks come from.
    """

    def __init__(self, allocator: BlockAllocator):
        self.allocator = allocator
        self.blocks: list[int] = []
        self.digests: list[bytes] = []  # of the blocks at the front that other requests can find

    @property
    def capacity(self) -> int:
        """Tokens that fit into the blocks."""
        return len(self.blocks) * self.allocator.block_size

    @property
    def num_registered(self) -> int:
        """Tokens in blocks that other requests can find: these must not be written again."""
        return len(self.digests) * self.allocator.block_size

    def missing(self, num_tokens: int) -> int:
        """How many more blocks a text of `num_tokens` needs. Given."""
        return max(0, -(-num_tokens // self.allocator.block_size) - len(self.blocks))

    def reserve(self, num_tokens: int) -> None:
        """Makes room for a text of `num_tokens`, which includes the tokens that are in the blocks already.

        Raises:
            OutOfBlocks: there are not enough free blocks; nothing has changed then.
        """
        # TASK 3.1.3: append the missing blocks to those that are there, all or none.
        raise NotImplementedError("week 3 day 1 task 3: BlockTable.reserve")

    def slots(self, start: int, stop: int) -> list[int]:
        """Where the tokens at positions start … stop - 1 are in the pool: slot = block · block_size + offset in it.

        Raises:
            ValueError: a position has no block.
        """
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(
                f"positions {start} to {stop} of {self.capacity}: `reserve({stop})` gives them blocks"
            )
        # TASK 3.1.4: which block of the table, and where in it. Neighbours in the text may be far apart in the pool.
        raise NotImplementedError("week 3 day 1 task 4: BlockTable.slots")

    def register(self, tokens: Sequence[int], num_computed: int) -> None:
        """Registers the full blocks of computed tokens in the prefix cache. Called again, it goes on where it stopped.

        Args:
            tokens: ids of the text so far, from its beginning.
            num_computed: how many of them have keys and values in the blocks.

        Raises:
            ValueError: more is computed than there are tokens or room.
        """
        if not 0 <= num_computed <= min(len(tokens), self.capacity):
            raise ValueError(
                f"{num_computed} tokens computed, of {len(tokens)}, in blocks for {self.capacity}"
            )
        if not self.allocator.enable_prefix_caching:
            return
        # TASK 3.1.7: each full block that has no digest yet; its parent is the block before it.
        # A block that is not full will be written again, so it must not be found.
        raise NotImplementedError("week 3 day 1 task 7: BlockTable.register")

    def share(self, tokens: Sequence[int]) -> int:
        """Takes the longest cached prefix of a text by reference. For an empty table.

        Only full blocks are shared, and never all tokens: the last one is always computed, because its logits choose
        the next token.

        Args:
            tokens: ids of the text.

        Returns:
            How many tokens need not be computed.

        Raises:
            ValueError: the table has blocks already.
        """
        if self.blocks:
            raise ValueError(f"the table has {len(self.blocks)} blocks already: share first, then reserve")
        if not self.allocator.enable_prefix_caching:
            return 0
        # TASK 3.1.8: from the front, block by block, until a digest is not found; then one reference to each block.
        # The digests are kept: the last of them is the parent of the next full block.
        raise NotImplementedError("week 3 day 1 task 8: BlockTable.share")

    def digests_after(self, tokens: Sequence[int]) -> Iterator[bytes]:
        """The names of a text's full blocks after those that are registered, never of all tokens. Given."""
        size, parent = self.allocator.block_size, self.digests[-1] if self.digests else None
        for start in range(self.num_registered, len(tokens) - size, size):
            parent = block_hash(parent, tokens[start : start + size])
            yield parent

    def adopt(self, digest: bytes) -> int:
        """Registers the next block, which will have this text without being computed; returns it. Given."""
        block = self.blocks[len(self.digests)]
        self.allocator.prefix_cache.add(digest, block)
        self.digests.append(digest)
        return block

    def share_next(self, digest: bytes) -> bool:
        """Shares the next block if the pool has its text by now, and gives its own back. Given.

        Returns:
            Whether the pool has it.
        """
        block, index = self.allocator.prefix_cache.find(digest), len(self.digests)
        if block is None:
            return False
        self.allocator.fork([block])
        self.allocator.free([self.blocks[index]])
        self.blocks[index] = block
        self.digests.append(digest)
        return True

    def release(self) -> None:
        """Gives all blocks back. A second call does nothing."""
        blocks, self.blocks, self.digests = self.blocks, [], []
        self.allocator.free(blocks)


def flat_blocks(
    tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    page_size: int,
    *,
    pad_block: int,
    count: int | None = None,
    first_seen: Sequence[int] | None = None,
) -> FlatBlocks:
    """Lists the blocks that hold what each request reads, and no others, padded to `count` blocks.

    Args:
        tables: for each request its blocks in the order of its text; more than it reads is allowed.
        context_lens: tokens that each request reads from its blocks; one with 0 lists nothing.
        page_size: tokens in a block.
        pad_block: the block that padding names; its content is never seen.
        count: N; when None, as many as there are, and at least 1, because no shape may be empty.
        first_seen: for each request the position of the first token that it reads; 0 when None. A sliding window gives
            it, and blocks that have left the window are not listed.

    Raises:
        ValueError: a table is too short for its context, or more blocks are in use than `count`.
    """
    # TASK 3.2.1: for each request the blocks from its first to its last token, and for each block how much is read.
    # Only the last block of a request may be partly filled, and a full one has all its slots in use, not none.
    raise NotImplementedError("week 3 day 2 task 1: flat_blocks")
