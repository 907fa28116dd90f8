"""The state of one request in Week 3, and how the tokens of several requests become one row."""

from collections import abc
from typing import Any

from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.sampling import SamplingParams
from tiny_llm_engine.scheduled import Scheduled


class Sequence(SequenceState):
    """A prompt and the answer that follows it, as one text that is computed piece by piece.

    Tokens that are known and not computed are its work. There are no phases: a prompt in mid-prefill, a decode,
    a preempted request and a prefix hit differ in `num_computed` alone.

    Args:
        prompt_tokens: ids of the prompt.
        tokenizer: `eos_token_ids` and `detokenizer()` as on Day 1.6.
        request_id: the request's number, for results and events.
        sampling: how to draw, when to stop, and how many tokens at most; greedy, to the end of the context, when None.
        max_seq_len: tokens of prompt and answer together, at most; the scheduler lowers it to what the model reads.
        priority: "interactive" or "batch", for the queue.

    Raises:
        ValueError: no such priority.
    """

    def __init__(
        self,
        prompt_tokens: abc.Sequence[int],
        tokenizer: Any,
        *,
        request_id: int = 0,
        sampling: SamplingParams | None = None,
        max_seq_len: int,
        priority: str = "interactive",
    ):
        limits = {"max_seq_len": max_seq_len, "priority": priority}
        super().__init__(prompt_tokens, tokenizer, request_id=request_id, sampling=sampling, **limits)
        self.known_tokens = list(prompt_tokens)  # the prompt, then the answer: only ever appended to
        self.num_computed = 0  # tokens from the front whose keys and values are in the blocks
        self.num_preemptions = 0  # how often all of it had to be computed again

    # What follows from the two numbers.

    @property
    def num_uncomputed(self) -> int:
        """Tokens that are known and not computed: the work that is left. Tokens in flight (Day 3.7) do not count."""
        return len(self.known_tokens) - self.num_computed - self.num_in_flight

    @property
    def is_decoding(self) -> bool:
        """Whether the last token alone is left, and belongs to the answer."""
        if self.num_in_flight:
            return self.decodes_ahead(self)
        return self.num_uncomputed == 1 and self.num_computed >= self.num_prompt_tokens and not self.is_done

    # What happens to it.

    def take(self, token: int) -> None:
        """Takes the token that a step has chosen: appends it to the known tokens, or ends the request.

        Args:
            token: its id. It is known now, and not computed: that is the work of a later step.
        """
        # TASK 3.3.1: an end token ends it and is not appended; then append; then stop strings; then the limit.
        # The order is that of Task 2.6.5. `num_computed` does not change here: `commit` changes it.
        # A request that has ended while its step ran takes no token.
        if self.is_done:
            return
        if token in self.eos_token_ids:
            self.finish("stop")
            return
        self.known_tokens.append(token)
        self.tokens.append(token)
        self.answer.add(token)
        if self.answer.stopped:
            self.finish("stop")
        elif len(self.tokens) >= self.max_new_tokens:
            self.finish("length")

    def preempt(self) -> None:
        """Gives all blocks back. Prompt and answer so far are known: they are computed again when there is room."""
        # TASK 3.3.4: nothing else is dropped: no token, and no text that a reader has received.
        self.block_table.release()
        self.num_computed = 0
        self.num_preemptions += 1


def pack(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row. The entries may come in any order.

    Args:
        plan: entries of different requests, whose blocks are reserved.
    """
    batch = PackedBatch()
    # TASK 3.3.2: for each entry its tokens, their positions and slots, where the next entry begins, and its past.
    # A row is sampled only when it holds the last token that is known. In the middle of a prompt the prompt follows.
    for entry in plan:
        table, start, stop = entry.sequence.block_table, entry.start, entry.stop
        batch.token_ids.extend(entry.sequence.known_tokens[start:stop])
        batch.positions.extend(range(start, stop))
        batch.slots.extend(table.slots(start, stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            batch.sample_rows.append(len(batch.token_ids) - 1)
            batch.sampling.append(entry.sequence.sampling)
    # END TASK
    return batch
