"""The state of one request in Week 3: the tokens that are known, and how many of them are computed."""

from collections import abc
from typing import Any

from tiny_llm_common.answer_text import AnswerText
from tiny_llm_common.packed_model import Sampled
from tiny_llm_common.prompt_check import prompt_error
from tiny_llm_common.request_queue import check_priority
from tiny_llm_common.sampling import SamplingParams

from ..blocks.block_table import BlockTable


class Sequence:
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
        check_priority(priority)
        self.sampling = sampling or SamplingParams(max_tokens=None)
        self.request_id, self.max_seq_len, self.priority = request_id, max_seq_len, priority
        self.prompt_tokens = list(prompt_tokens)
        self.known_tokens = list(prompt_tokens)  # the prompt, then the answer: only ever appended to
        self.tokens: list[int] = []  # the answer alone, without the token that ended it
        self.num_computed = 0  # tokens from the front whose keys and values are in the blocks
        self.num_cached = 0  # those of them that came from the prefix cache at the first admission
        self.num_preemptions = 0  # how often all of it had to be computed again
        self.waiting_since = 0.0  # when the scheduler's `add` took it, in seconds of the scheduler's clock
        self.token_time = 0.0  # when its last token came
        self.block_table: BlockTable  # the scheduler's `add` gives it one
        self.sampled: list[Sampled] = []  # what the model said about each token of the answer
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self.answer = AnswerText(tokenizer, self.sampling.stop, self.sampling)
        ends = () if self.sampling.ignore_eos else tokenizer.eos_token_ids
        self.eos_token_ids = frozenset(ends).union(self.sampling.stop_token_ids or ())
        self.grammar: Any = None  # what its text has to follow, compiled
        self._stop_token: int | None = None  # the one of `stop_token_ids` that ended it
        self._model_ends = ends
        self._is_in_call = False  # a call of the model is running on it, or about to
        self._is_aborted = False  # it ends when that call does

    # What follows from the two numbers.

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_uncomputed(self) -> int:
        """Tokens that are known and not computed: the work that is left."""
        return len(self.known_tokens) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Whether the last token alone is left, and belongs to the answer."""
        is_last = self.num_uncomputed == 1 and self.num_computed >= self.num_prompt_tokens
        return is_last and not self.is_done

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    @property
    def stop_reason(self) -> int | str | None:
        """What ended it, if the request named it: a stop string, or one of `stop_token_ids`."""
        return self._stop_token if self.answer.stop_string is None else self.answer.stop_string

    @property
    def max_new_tokens(self) -> int:
        """What the request's own limit and its context leave for the answer."""
        room, limit = self.max_seq_len - self.num_prompt_tokens, self.sampling.max_tokens
        return room if limit is None else min(room, limit)

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    # What happens to it.

    def take(self, token: int) -> None:
        """Takes the token that a step has chosen: appends it to the known tokens, or ends the request.

        Args:
            token: its id. It is known now, and not computed: that is the work of a later step.
        """
        # TASK 3.3.1: an end token ends it and is no part of it; then append; then stop strings; then the limit.
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

    def take_sampled(self, sampled: Sampled) -> None:
        """Takes the token that a step has chosen, and keeps what the model said about it."""
        if self.grammar is not None and (error := self.grammar.error_after(self.tokens)):
            self.fail(error)
        before = len(self.tokens)
        self.take(sampled.token)
        if len(self.tokens) > before:
            self.sampled.append(sampled)
        elif self.finish_reason == "stop":
            self._take_end(sampled.token)

    def _take_end(self, token: int) -> None:
        """Records which token has ended the request, and adds its text if that is wanted."""
        self._stop_token = None if token in self._model_ends else token
        if self.sampling.include_stop_str_in_output:
            self.answer.add_end(token)

    def preempt(self) -> None:
        """Gives all blocks back. Prompt and answer so far are known: they are computed again when there is room."""
        # TASK 3.3.4: nothing else is dropped: no token, and no text that a reader has received.
        self.block_table.release()
        self.num_computed = 0
        self.num_preemptions += 1

    def check(self, vocab_size: int, max_model_len: int, pool_tokens: int) -> None:
        """Ends the request with the reason if it can never be served; may lower `max_seq_len`.

        Args:
            vocab_size: token ids are below it.
            max_model_len: tokens that the model reads, at most.
            pool_tokens: tokens that all blocks together hold. Without `max_tokens` they limit the answer.
        """
        self.max_seq_len = min(self.max_seq_len, max_model_len)
        error = prompt_error(self.prompt_tokens, vocab_size, self.max_seq_len, "max_model_len")
        error = error or self.sampling.vocabulary_error(vocab_size)
        answer = self.max_new_tokens if self.sampling.max_tokens is not None else 1
        # The last token of an answer is never computed, and needs no room.
        if error is None and self.num_prompt_tokens + answer - 1 > pool_tokens:
            error = (
                f"a prompt of length {self.num_prompt_tokens} with an answer of {answer} never fits into the "
                f"{pool_tokens} tokens of all KV blocks: shorten it, lower max_tokens, or give more blocks"
            )
        if error is not None:
            self.fail(error)
        elif self.sampling.max_tokens is None:
            self.max_seq_len = min(self.max_seq_len, pool_tokens + 1)

    def finish(self, reason: str) -> None:
        """Ends the request: delivers what was held back of its text and frees its blocks. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self._release()

    def fail(self, error: str) -> None:
        """Ends the request with the finish reason "error" and a line that says why. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason, self.error = "error", error
        self._release()

    def abort(self) -> None:
        """Ends the request now; its text so far stays.

        If a call of the model is running on it, the request ends as soon as that call has returned or raised: until
        then the model writes into its blocks.
        """
        self._is_aborted = True  # mark first and look second: the call may end in between
        if not self._is_in_call:
            self.finish("abort")

    def begin_call(self) -> None:
        """The request is in a plan: its blocks stay until `end_call`."""
        self._is_in_call = True

    def end_call(self, failed: BaseException | None = None) -> None:
        """The call of the model is over, or will not come.

        Args:
            failed: what it raised; the blocks hold a part of the step then, so the request cannot go on.
        """
        self._is_in_call = False
        if self._is_aborted or (failed is not None and not isinstance(failed, Exception)):
            self.finish("abort")
        elif failed is not None:
            self.fail(str(failed) or type(failed).__name__)

    def _release(self) -> None:
        if hasattr(self, "block_table"):  # else it was never added to a scheduler
            self.block_table.release()
