"""How large a chunk should be, by a rule of thumb."""

from collections.abc import Sequence

SIZES = (32, 64, 128, 256, 512)


def select_optimal_chunk_size(
    sequence_length: int,
    available_memory: int,
    active_decode_requests: int,
    batch_size: int,
    sizes: Sequence[int] = SIZES,
) -> int:
    """Placeholder until the branch `policy` brings the real one."""
    return sizes[-1]
