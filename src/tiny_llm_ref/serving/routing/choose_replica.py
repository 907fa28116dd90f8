"""The choice of a replica, from numbers alone: outstanding tokens, less the tokens that a prefix cache saves."""

from collections.abc import Container, Mapping, Sequence

from ..blocks.block_allocator import block_hash


def prefix_hashes(prompt: Sequence[int], block_size: int) -> list[bytes]:
    """The names of the full blocks of a prompt, as the prefix cache of an engine has them.

    Args:
        prompt: token ids.
        block_size: tokens.

    Returns:
        A digest for each full block, the first block first. A tail that fills no block has none.
    """
    hashes, parent = [], None
    for start in range(0, len(prompt) - block_size + 1, block_size):
        parent = block_hash(parent, prompt[start : start + block_size])
        hashes.append(parent)
    return hashes


def cached_tokens(hashes: Sequence[bytes], seen: Container[bytes], block_size: int) -> int:
    """The tokens at the front of a prompt that a replica need not compute again.

    Only an unbroken run of blocks from the first one counts: an engine stops at the first block that it does not find.

    Args:
        hashes: `prefix_hashes` of the prompt.
        seen: digests of the blocks that the replica has computed.
        block_size: tokens.

    Returns:
        Tokens, a multiple of the block size.
    """
    blocks = 0
    while blocks < len(hashes) and hashes[blocks] in seen:
        blocks += 1
    return blocks * block_size


def choose_replica(outstanding: Mapping[str, int], cached: Mapping[str, int]) -> str:
    """The replica that will have the fewest tokens left to compute once it has this request too.

    All replicas would compute the same prompt and answer, except for what they have cached. So cached tokens are a
    discount: a busy replica with a warm cache loses to an idle one with a cold cache as soon as its queue is longer
    than the discount. Affinity that always wins would send all requests that share a system prompt to one replica.

    Args:
        outstanding: tokens that each replica still has to compute, of all requests that were sent to it.
        cached: tokens of this prompt that each replica has in its cache; the same names.

    Returns:
        The name of a replica. Among equals the one with the shorter queue, then the first one in `outstanding`.

    Raises:
        ValueError: there is no replica.
    """
    if not outstanding:
        raise ValueError("no replica is running: wait until one has started")
    # TASK 3.7.9: the fewest tokens left to compute, cached ones deducted; then the shorter queue; then the first.
    return min(outstanding, key=lambda name: (outstanding[name] - cached[name], outstanding[name]))
