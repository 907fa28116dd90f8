"""Takes rejected drafts out of a block table."""

from ..blocks.block_table import BlockTable


def rewind(table: BlockTable, num_tokens: int) -> None:
    """Gives back the blocks that no token before `num_tokens` needs. Their keys and values are forgotten.

    What a rejected draft has written into a block that stays is overwritten by the token at its position.

    Args:
        table: of a request that goes on.
        num_tokens: tokens whose keys and values are kept.

    Raises:
        ValueError: the table holds fewer tokens, or other requests can find a block that would be given back.
    """
    if not table.num_registered <= num_tokens <= table.capacity:
        raise ValueError(
            f"{num_tokens} tokens cannot be kept: {table.num_registered} can be found by other requests, and the blocks"
            f" have room for {table.capacity}"
        )
    # TASK 4.3.5: keep the blocks of the first `num_tokens`, also one that is full in part; give the others back.
    # The allocator frees a list of blocks; the table must not hold them any longer.
    kept = -(-num_tokens // table.allocator.block_size)
    rejected = table.blocks[kept:]
    del table.blocks[kept:]
    table.allocator.free(rejected)
