"""Several answers to one prompt: the first computes it, and the others begin with its blocks. Given."""

from collections import abc

from .block_allocator import BlockAllocator
from .packing import PackedBatch, Scheduled
from .sequence import Sequence


class PromptForks:
    """Samples the last row of a prompt once for each answer, and shares the blocks of the prompt (vLLM's `fork`).

    Full blocks are shared by reference. A last block that is not full is copied, since every answer writes into its
    own: the copies are made at the beginning of the next call of the model, before that writes anything.

    Args:
        allocator: the blocks.
    """

    def __init__(self, allocator: BlockAllocator):
        self.allocator = allocator
        self.sampled: list[
            Sequence
        ] = []  # siblings that the call has drawn a token for, after those of its entries
        self._copies: list[tuple[int, int]] = []

    def add_to(self, batch: PackedBatch, call: abc.Sequence[Scheduled], most: int) -> None:
        """Adds what siblings need to the batch of a call: rows that are sampled once more, and copies of blocks.

        Args:
            call: what the batch was packed from.
            most: how many siblings can begin, at most.
        """
        self.sampled = []
        batch.copies.extend(self._copies)
        self._copies = []
        if not any(entry.sequence.siblings for entry in call):
            return
        for entry, (_, stop) in zip(call, batch.spans, strict=True):
            siblings = entry.sequence.siblings if entry.needs_token else []
            for sibling in siblings[: max(0, most - len(self.sampled))]:
                self.sampled.append(sibling)
                batch.sample_rows.append(stop - 1)
                batch.sampling.append(sibling.sampling)

    def begin(self, sibling: Sequence, leader: Sequence) -> bool:
        """Gives a sibling the blocks of the prompt that its leader has computed; False when it cannot have them now."""
        if sibling not in self.sampled or not self.allocator.can_allocate(1):
            return False
        copy = sibling.block_table.fork(leader.block_table, leader.num_computed)
        self._copies += [] if copy is None else [copy]
        sibling.num_computed = leader.num_computed
        return True
