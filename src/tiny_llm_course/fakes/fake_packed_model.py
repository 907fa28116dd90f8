"""A model of packed batches without arithmetic, whose tokens depend on all that a request can see.

Its memory holds one token per slot, and a fingerprint of the text up to that token. So it knows what a request really
reads through its block table, and raises an AssertionError if that is not one text.
"""

from collections.abc import Callable, Mapping, Sequence

from tiny_llm_engine.solutions.solution_types import BlockAllocator, PackedBatch, Sampled

from ..trace.simulation.simulated_model import SimulatedClock

END = 256  # ends a text of bytes


def fingerprint(tokens: Sequence[int], start: int = 0) -> int:
    """A number that depends on all tokens and on their order, continued from that of the text before."""
    for token in tokens:
        start = (start * 1_000_003 + token + 1) % (2**61 - 1)
    return start


class FakePackedModel:
    """A `PackedModel` that checks every batch. A call takes one second of the clock per token.

    Args:
        allocator: of the requests' blocks; the memory is as large as its pool.
        sampled: what makes a `Sampled` of a token.
        answers: by prompt, the text that follows it, and then the end. Other texts go on with letters of their own.
        ends: of the other texts, one in this many ends at each token; 0 means that none does.
        max_model_len: its context.
        fails: errors to raise by call number, from 0, after a part of the batch was written.
        during: called with each call's number while it runs.
        clock: a `SimulatedClock` to move.
    """

    num_hidden_layers = 2
    vocab_size = 2**16

    def __init__(
        self,
        allocator: BlockAllocator,
        sampled: Callable[[int], Sampled],
        answers: Mapping[str, str] | None = None,
        *,
        ends: int = 0,
        max_model_len: int = 64,
        fails: Mapping[int, BaseException] | None = None,
        during: Callable[[int], object] = lambda number: None,
        clock: SimulatedClock | None = None,
    ):
        self.allocator, self.sampled, self.ends = allocator, sampled, ends
        self.max_model_len, self.fails, self.during = max_model_len, fails or {}, during
        self.clock = clock or SimulatedClock()
        self.memory: dict[int, tuple[int, int]] = {}  # slot -> token, fingerprint of the text up to it
        self.batches: list[PackedBatch] = []
        self.scripts = {
            fingerprint([*prompt.encode(), *answer[:count].encode()]): [*answer.encode(), END][count]
            for prompt, answer in (answers or {}).items()
            for count in range(len(answer) + 1)
        }

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        number = len(self.batches)
        assert number < 2000, "2000 calls of the model: the loop does not end"
        self._check_shape(batch)
        self.batches.append(batch)
        self._check_blocks(batch, "before the model runs")
        self.during(number)
        self._check_blocks(batch, "while the model writes to it: an abort waits for the end of the call")
        seen = [self._write(batch, index, number in self.fails) for index in range(len(batch.context_lens))]
        if number in self.fails:
            raise self.fails[number]
        self.clock.now += len(batch.token_ids)
        rows = [value for values in seen for value in values]
        return [self.sampled(self.next_token(rows[row])) for row in batch.sample_rows]

    def next_token(self, seen: int) -> int:
        """The token that follows a text, by its fingerprint."""
        if seen in self.scripts:
            return self.scripts[seen]
        return END if self.ends and seen % self.ends == 0 else ord("a") + seen % 26

    def answer_alone(self, prompt: Sequence[int], most: int) -> list[int]:
        """The undisturbed answer of a request, at most this many tokens."""
        tokens: list[int] = []
        while len(tokens) < most and (token := self.next_token(fingerprint([*prompt, *tokens]))) != END:
            tokens.append(token)
        return tokens

    def _check_shape(self, batch: PackedBatch) -> None:
        T, R = len(batch.token_ids), len(batch.context_lens)
        assert T, "a call of the model without any token"
        assert len(batch.positions) == len(batch.slots) == T, (
            f"{T} tokens, {len(batch.positions)} positions and {len(batch.slots)} slots: one of each per row"
        )
        assert len(batch.query_start) == R + 1 and len(batch.block_tables) == R, (
            f"{R} contexts, {len(batch.query_start)} entries of query_start, {len(batch.block_tables)} tables"
        )
        starts = batch.query_start
        assert starts[0] == 0 and starts[-1] == T and all(a < b for a, b in batch.spans), (
            f"query_start is {starts} for {T} rows: it begins with 0 and ends with the number of rows"
        )
        assert len(set(batch.slots)) == T, f"two rows write into one slot: {batch.slots}"
        assert len(batch.sampling) == len(batch.sample_rows), "one entry of sampling per sampled row"
        assert set(batch.sample_rows) <= set(range(T)), f"sample_rows {batch.sample_rows} of {T} rows"

    def _check_blocks(self, batch: PackedBatch, when: str) -> None:
        free = [b for table in batch.block_tables for b in table if not self.allocator.reference_counts[b]]
        assert not free, f"block {free[0]} of a request in the batch was freed {when}"

    def _write(self, batch: PackedBatch, index: int, halfway: bool) -> list[int]:
        """Write the rows of a request; return the fingerprint of its text at each of them."""
        (first, stop), context = batch.spans[index], batch.context_lens[index]
        positions = batch.positions[first:stop]
        assert positions == list(range(context, context + stop - first)), (
            f"rows {first} to {stop - 1} stand at positions {positions}, after {context} computed tokens"
        )
        seen, fingerprints = self._read(batch.block_tables[index], context), []
        for row in range(first, stop if not halfway else first + 1):
            seen = fingerprint([batch.token_ids[row]], seen)
            slot = self._slot(batch.block_tables[index], batch.positions[row])
            assert batch.slots[row] == slot, (
                f"row {row} goes to slot {batch.slots[row]}, but position {batch.positions[row]} is in slot {slot}"
            )
            self.memory[slot] = batch.token_ids[row], seen
            fingerprints.append(seen)
        return fingerprints

    def _read(self, table: Sequence[int], context: int) -> int:
        """The fingerprint of the context that a block table shows."""
        seen = 0
        for position in range(context):
            token, written = self.memory.get(self._slot(table, position), (None, None))
            assert token is not None, f"position {position} of a past was never computed"
            seen = fingerprint([token], seen)
            assert seen == written, (
                f"position {position} of a past belongs to another text: its block was given away, or shared wrongly"
            )
        return seen

    def _slot(self, table: Sequence[int], position: int) -> int:
        size = self.allocator.block_size
        assert position // size < len(table), f"position {position} has no block: the table has {len(table)}"
        return table[position // size] * size + position % size

    @property
    def trace(self) -> list[str]:
        """Every call as text: "x@5 abc@0" is a token at position 5 of one text, and three of another."""
        return [
            " ".join(
                f"{bytes(batch.token_ids[start:stop]).decode(errors='replace')}@{context}"
                for (start, stop), context in zip(batch.spans, batch.context_lens, strict=True)
            )
            for batch in self.batches
        ]
