"""Prefix caching: which block holds which text, and which block is evicted first. It keeps no reference counts."""

import hashlib
import struct
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
    raise NotImplementedError("week 3 day 1 task 5: block_hash")


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
        raise NotImplementedError("week 3 day 1 task 6: PrefixCache.evict")
