"""KV memory in blocks: Day 3.1 fills the allocator, the block table and the prefix cache.

Day 3.2 fills `flat_blocks`, the list of the blocks that some requests of a step read. A block is a
number here: the memory itself belongs to a backend.
"""
