"""Several answers to one prompt: the first computes it, and the others begin with its blocks. Given."""

from collections import abc
from collections.abc import Callable
from dataclasses import replace

from .block_allocator import BlockAllocator
from .packing import PackedBatch, Scheduled, pack
from .sequence import Sequence


def places(sequence: Sequence) -> int:
    """How many requests run when this one has computed its prompt: itself and its siblings."""
    return 1 + len(sequence.siblings)


class PromptForks:
    """Samples the last row of a prompt once for each answer, and shares the blocks of the prompt (vLLM's `fork`).

    The first answer leads; the others are its siblings, which wait until the prompt is computed. Full blocks are shared
    by reference. A last block that is not full is copied, since every answer writes into its own.

    Args:
        allocator: the blocks.
        max_num_seqs: how many requests run at the same time, at most.
        note: called as note(kind, sequence): "prefill" of a sibling that begins, and "finish" of one that ended while
            it waited.
        put_back: lets a sibling wait for a place of its own, before all others.
    """

    def __init__(
        self,
        allocator: BlockAllocator,
        max_num_seqs: int,
        *,
        note: Callable[[str, Sequence], None],
        put_back: Callable[[Sequence], None],
    ):
        self.allocator, self.max_num_seqs = allocator, max_num_seqs
        self.note, self.put_back = note, put_back
        # Siblings that the call draws a token for, after those of its entries.
        self._sampled: list[Sequence] = []
        # The leader's last block, and that of a sibling. The next call copies one to the other, and then computes.
        self._copies: dict[Sequence, tuple[int, int]] = {}

    def free_places(self, running: abc.Sequence[Sequence]) -> int:
        """How many more requests may run beside these and their siblings; below 0 if some siblings have no place."""
        return self.max_num_seqs - sum(map(places, running))

    def keep_places(self, running: abc.Sequence[Sequence]) -> bool:
        """Whether siblings need all places that are left: without them they would compute the prompt again."""
        return any(one.siblings for one in running) and self.free_places(running) <= 0

    def pack(self, call: abc.Sequence[Scheduled], running: abc.Sequence[Sequence]) -> PackedBatch:
        """The batch of a call, in which siblings are sampled as far as there are places, and blocks are copied."""
        batch, most = pack(call), max(0, self.max_num_seqs - len(running))
        drawn = [
            (sibling, stop - 1)
            for entry, (_, stop) in zip(call, batch.spans, strict=True)
            for sibling in entry.sequence.siblings
            if entry.needs_token
        ][:most]
        self._sampled = [sibling for sibling, _ in drawn]
        return replace(
            batch,
            sample_rows=[*batch.sample_rows, *(row for _, row in drawn)],
            sampling=[*batch.sampling, *(sibling.sampling for sibling in self._sampled)],
            copies=list(self._copies.values()),
        )

    def end_call(self) -> list[Sequence]:
        """The call has returned, so its copies are made. Returns the siblings that it has drawn a token for."""
        self._copies = {}
        return self._sampled

    def fail_call(self) -> list[Sequence]:
        """The call has raised, before its copies were made or after. Returns the siblings that hold one of them."""
        copies, self._copies = self._copies, {}
        return [sibling for sibling, (_, own) in copies.items() if own in sibling.block_table.blocks]

    def begin(self, leader: Sequence, running: list[Sequence]) -> None:
        """Adds those siblings of a computed prompt to `running` that have room; the others wait as any request does."""
        siblings = leader.siblings
        for sibling in siblings:
            if not sibling.is_done and len(running) < self.max_num_seqs and self._fork(sibling, leader):
                running.append(sibling)
                self.note("prefill", sibling)
        leader.siblings = [sibling for sibling in siblings if not sibling.num_computed]
        self.pass_on(leader)

    def _fork(self, sibling: Sequence, leader: Sequence) -> bool:
        """Gives a sibling the blocks of the prompt; False when it cannot have them now."""
        if sibling not in self._sampled or not self.allocator.can_allocate(1):
            return False
        copy = sibling.block_table.fork(leader.block_table, leader.num_computed)
        if copy is not None:
            self._copies[sibling] = copy
        sibling.num_computed = leader.num_computed
        return True

    def pass_on(self, leader: Sequence) -> None:
        """Lets the first of the siblings that still wait lead the others: it computes the prompt itself."""
        siblings, leader.siblings = leader.siblings, []
        waiting = [sibling for sibling in siblings if not sibling.is_done]
        for sibling in siblings:
            if sibling.is_done:
                self.note("finish", sibling)
        if waiting:
            waiting[0].siblings = waiting[1:]
            self.put_back(waiting[0])
