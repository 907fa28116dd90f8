"""Wrong solutions of Week 3 Day 1."""

from authors.mutants import Mutant

ALLOCATOR, TABLE = "blocks/block_allocator.py", "blocks/block_table.py"
# The lines of the reference that mutants replace.
TAKE = "[self.blank.pop() if self.blank else self.prefix_cache.evict() for _ in range(count)]"
LOOK = """        if not self.can_allocate(count, keep_watermark=False):
            raise OutOfBlocks(count, self.num_free)
"""
COMPARE = "return count + kept <= self.num_free"
PUT_BACK = """            if self.prefix_cache.holds(block):
                self.prefix_cache.mark_idle(block)
            else:
                self.blank.append(block)"""
RESERVE = "self.blocks += self.allocator.allocate(self.missing(num_tokens))"
SLOT = "self.blocks[p // size] * size + p % size for p in range(start, stop)"
DIGEST = "return hashlib.sha256((parent or ROOT) + numbers).digest()"
PACK = 'numbers = struct.pack(f"<{len(tokens)}Q", *tokens)'
WALK = "for start in range(0, len(tokens) - size, size):"
FULL = "for index in range(len(self.digests), num_computed // size):"
PARENT = "parent = self.digests[-1] if self.digests else None"


def _allocator(task: str, function: str, idea: str, old: str, new: str) -> Mutant:
    return Mutant(task, idea, ALLOCATOR, serving=(old, new), inside=f"BlockAllocator.{function}")


def _table(task: str, function: str, idea: str, old: str, new: str) -> Mutant:
    return Mutant(task, idea, TABLE, serving=(old, new), inside=f"BlockTable.{function}")


def _cache(task: str, function: str, idea: str, old: str, new: str) -> Mutant:
    return Mutant(task, idea, ALLOCATOR, serving=(old, new), inside=function)


MUTANTS = [
    _allocator(
        "3.1.1",
        "allocate",
        "hands out the pad block",
        TAKE,
        f"{TAKE}\n        blocks = [self.pad_block if b == self.num_blocks - 1 else b for b in blocks]\n"
        "        self.reference_counts += [0] * (self.num_blocks + 1 - len(self.reference_counts))",
    ),
    _allocator(
        "3.1.1",
        "allocate",
        "takes what there is and raises when nothing is left: not all or nothing",
        f"{LOOK}        blocks = {TAKE}",
        "        blocks = []\n        for _ in range(count):\n            if not self.num_free:\n"
        "                raise OutOfBlocks(count, self.num_free)\n"
        "            blocks.append(self.blank.pop() if self.blank else self.prefix_cache.evict())\n",
    ),
    _allocator(
        "3.1.1",
        "allocate",
        "keeps the watermark from running requests too",
        "keep_watermark=False",
        "keep_watermark=True",
    ),
    _allocator(
        "3.1.1",
        "allocate",
        "evicts cached blocks while blank ones are there",
        TAKE,
        "[self.prefix_cache.evict() if self.prefix_cache.idle else self.blank.pop() for _ in range(count)]",
    ),
    _allocator(
        "3.1.6",
        "allocate",
        "cached blocks are not free",
        "if not self.can_allocate(count, keep_watermark=False):",
        "if count > len(self.blank):",
    ),
    _allocator(
        "3.1.1",
        "can_allocate",
        "counts blank blocks only",
        COMPARE,
        COMPARE.replace("self.num_free", "len(self.blank)"),
    ),
    _allocator(
        "3.1.2",
        "free",
        "checks the counts but not how often a block is in the list",
        "for block, count in Counter(blocks).items():",
        "for block, count in ((block, 1) for block in blocks):",
    ),
    _allocator(
        "3.1.2",
        "free",
        "takes a shared block from everybody",
        "self.reference_counts[block] -= 1",
        "self.reference_counts[block] = 0",
    ),
    _allocator(
        "3.1.2",
        "free",
        "a cached block is blank and idle at once",
        PUT_BACK,
        "            self.blank.append(block)\n            if self.prefix_cache.holds(block):\n"
        "                self.prefix_cache.mark_idle(block)",
    ),
    _allocator(
        "3.1.2",
        "free",
        "starts at the beginning of the text, which is evicted first",
        "reversed(blocks)",
        "blocks",
    ),
    _table(
        "3.1.3",
        "reserve",
        "takes block after block and keeps them when one is missing",
        RESERVE,
        "for _ in range(self.missing(num_tokens)):\n            self.blocks += self.allocator.allocate(1)",
    ),
    _table(
        "3.1.3",
        "reserve",
        "new blocks go to the front",
        RESERVE,
        "self.blocks = self.allocator.allocate(self.missing(num_tokens)) + self.blocks",
    ),
    _table(
        "3.1.4",
        "slots",
        "off by one at the border of a block",
        SLOT,
        "self.blocks[max(0, p - 1) // size] * size + p % size for p in range(start, stop)",
    ),
    _table(
        "3.1.4",
        "slots",
        "counts from the start of the piece",
        SLOT,
        "self.blocks[p // size] * size + p % size for p in range(stop - start)",
    ),
    _table(
        "3.1.4",
        "slots",
        "forgets the size: neighbouring blocks overlap",
        SLOT,
        "self.blocks[p // size] + p % size for p in range(start, stop)",
    ),
    _cache(
        "3.1.5",
        "block_hash",
        "hashes the ids one behind the other, as text",
        PACK,
        'numbers = "".join(map(str, tokens)).encode()',
    ),
    _cache(
        "3.1.5", "block_hash", "one byte per id", PACK, "numbers = bytes(token % 256 for token in tokens)"
    ),
    _cache(
        "3.1.5",
        "block_hash",
        "hashes a set of tokens: the order is lost",
        PACK,
        'numbers = struct.pack(f"<{len(tokens)}Q", *sorted(tokens))',
    ),
    _cache(
        "3.1.5",
        "block_hash",
        "ids in 2 bytes or in 8, as they need: a large one reads like four small ones",
        PACK,
        'numbers = b"".join(t.to_bytes(2 if t < 65536 else 8, "little") for t in tokens)',
    ),
    _cache(
        "3.1.6", "PrefixCache.evict", "evicts the lowest number", "next(iter(self.idle))", "min(self.idle)"
    ),
    _cache(
        "3.1.6",
        "PrefixCache.evict",
        "the digest still leads to the block, which holds another text soon",
        "del self.block_of[self.digest_of.pop(block)]",
        "self.digest_of.pop(block)",
    ),
    _table(
        "3.1.7",
        "register",
        "names a block that is not full",
        "num_computed // size",
        "-(-num_computed // size)",
    ),
    _table(
        "3.1.7",
        "register",
        "names what is reserved, computed or not",
        "num_computed // size",
        "len(tokens) // size",
    ),
    _table(
        "3.1.7",
        "register",
        "the parent is the first block",
        PARENT,
        "parent = self.digests[0] if self.digests else None",
    ),
    _table(
        "3.1.8",
        "share",
        "serves the last token from the cache",
        WALK,
        "for start in range(0, len(tokens) - size + 1, size):",
    ),
    _table(
        "3.1.8",
        "share",
        "skips what is missing and takes what comes behind it",
        "                break\n",
        "                continue\n",
    ),
    _table(
        "3.1.8",
        "share",
        "forgets the digests: shared blocks count as its own, and are hashed again",
        "self.blocks, self.digests = found, digests\n        return self.num_registered",
        "self.blocks = found\n        return self.capacity",
    ),
    _cache(
        "3.1.5",
        "block_hash",
        "the parent stands after the tokens, and a first block has none",
        DIGEST,
        'return hashlib.sha256(numbers + (parent or b"")).digest()',
    ),
    _cache(
        "3.1.5",
        "block_hash",
        "hashes four bytes of the parent, which are enough to tell a few texts apart",
        DIGEST,
        "return hashlib.sha256((parent or ROOT)[:4] + numbers).digest()",
    ),
    _table(
        "3.1.7",
        "register",
        "makes all digests again at every call",
        FULL,
        "self.digests = []\n        for index in range(num_computed // size):",
    ),
    _table(
        "3.1.7",
        "register",
        "swaps its own block for the one that is registered",
        "            self.digests.append(digest)\n",
        "            self.digests.append(digest)\n"
        "            twin = self.allocator.prefix_cache.find(digest)\n"
        "            if twin is not None and twin != self.blocks[index]:\n"
        "                self.allocator.fork([twin])\n"
        "                self.allocator.free([self.blocks[index]])\n"
        "                self.blocks[index] = twin\n",
    ),
]
