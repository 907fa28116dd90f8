"""KV memory in blocks: Day 3.1 fills the allocator with its prefix cache, and the block table.

Day 3.2 fills `flat_blocks` beside the table, the list of the blocks that some requests of a step read. A block is a
number here: the memory itself belongs to a backend.
"""
