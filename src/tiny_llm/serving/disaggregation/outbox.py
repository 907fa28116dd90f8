"""The producer's side: which tokens of a prompt are kept for another engine, and when their rows are free again."""

from collections.abc import Sequence

from tiny_llm_extensions.kv_transfer.transfers import Outgoing, SavedBlock


class Outbox:
    """The prompts that are kept for other engines, in rows of a buffer.

    Args:
        num_rows: of the buffer; each holds a block.
        block_size: tokens per block.
        keep_seconds: how long a prompt waits for its reader after its request has ended.

    Attributes:
        free: the rows that hold nothing.
        transfers: the prompts by their names, which both engines know.
    """

    def __init__(self, num_rows: int, block_size: int, keep_seconds: float):
        self.block_size, self.keep_seconds = block_size, keep_seconds
        self.free = [*reversed(range(num_rows))]
        self.transfers: dict[str, Outgoing] = {}

    def begin(self, transfer_id: str, tokens: Sequence[int]) -> bool:
        """A request will compute a prompt for another engine. Returns whether it is the first with this name. Given."""
        is_new = transfer_id not in self.transfers
        self.transfers.setdefault(transfer_id, Outgoing(tokens))
        return is_new

    def to_save(self, transfer_id: str, computed: int) -> list[SavedBlock]:
        """What is copied into the buffer after a step: blocks that are full, and at the prompt's end its last one.

        Nothing is copied twice, also if a preempted request computes its prompt again. Without a free row the rest
        waits for a later step.

        Args:
            transfer_id: maybe one that is no longer in `transfers`, because its reader wants no more.
            computed: tokens from the front of the text that are in the request's blocks now.

        Returns:
            Blocks in the order of the text; their rows are no longer free.
        """
        # TASK 4.6.1: a block that is not full changes with the next step. Only at the end of the prompt is it final.
        raise NotImplementedError("week 4 day 6 task 1: Outbox.to_save")

    def saved(self, transfer_id: str, blocks: Sequence[SavedBlock]) -> None:
        """These blocks are in the buffer: they may be read, unless the reader has left meanwhile. Given."""
        if (transfer := self.transfers.get(transfer_id)) is None:
            self.free += [block.row for block in blocks]
        else:
            transfer.blocks += blocks

    def end(self, transfer_id: str, now: float) -> None:
        """The request has ended, completely or not. What was saved stays readable for a while. Given."""
        if (transfer := self.transfers.get(transfer_id)) is not None:
            transfer.is_over, transfer.expires = True, now + self.keep_seconds

    def open(self, transfer_id: str) -> bool:
        """An engine begins to read. Returns whether the prompt is known. Given."""
        if (transfer := self.transfers.get(transfer_id)) is not None:
            transfer.readers += 1
        return transfer is not None

    def unread(self, transfer_id: str, wanted: range) -> list[SavedBlock]:
        """The blocks in the buffer with tokens that are wanted. Given."""
        blocks = self.transfers[transfer_id].blocks
        return [block for block in blocks if block.stop > wanted.start and block.start < wanted.stop]

    def has_all(self, transfer_id: str, wanted: range) -> bool:
        """Whether no further block comes with tokens that are wanted. Given."""
        transfer = self.transfers[transfer_id]
        return transfer.is_over or transfer.stop >= wanted.stop

    def close(self, transfer_id: str, is_done: bool, now: float) -> None:
        """An engine reads no longer.

        Args:
            is_done: whether it has all that it wants: then nobody needs the prompt any more, even while its request
                computes. An engine that died was not done, and another one may ask for the same prompt.
            now: seconds.
        """
        # TASK 4.6.2: one reader less. After one that was done the transfer is over and expires now; then `expire`.
        raise NotImplementedError("week 4 day 6 task 2: Outbox.close")

    def expire(self, now: float) -> None:
        """Forgets prompts that were read or have waited too long, and frees their rows.

        A row is never freed while an engine reads it: in shared memory it would read the next prompt's numbers.

        Args:
            now: seconds.
        """
        # TASK 4.6.2: which transfers are due, and read by nobody? Their rows are free again, and their names too.
        raise NotImplementedError("week 4 day 6 task 2: Outbox.expire")
