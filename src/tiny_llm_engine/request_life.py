"""The life of a request in Week 2 and in Week 3: the check of its prompt, its numbers, and how it ends. Given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .answer_text import AnswerText
from .packed_model import Sampled
from .sampling import SamplingParams


def prompt_error(
    tokens: Sequence[int], vocab_size: int, max_seq_len: int, limit: str = "max_seq_len"
) -> str | None:
    """Why a prompt cannot be served, in one line; None when it can.

    Args:
        tokens: its ids.
        vocab_size: token ids are below it.
        max_seq_len: tokens of prompt and answer together, at most.
        limit: the caller's name of `max_seq_len`, for the message.
    """
    if not tokens:
        return "the prompt is empty: give the model at least one token to continue"
    strange = [] if _all_known(tokens, vocab_size) else _strange(tokens, vocab_size)
    if strange:
        return f"token id {strange[0]} is not one of 0 to {vocab_size - 1}: the prompt is not of this model"
    if len(tokens) >= max_seq_len:
        return (
            f"the prompt has {len(tokens)} tokens, but {limit} is {max_seq_len} with the answer: shorten it"
        )
    return None


def _all_known(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether all ids are in the vocabulary, for prompts of thousands of them: no Python code runs per token."""
    return set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size


def _strange(tokens: Sequence[int], vocab_size: int) -> list[int]:
    return [t for t in tokens if type(t) is not int or not 0 <= t < vocab_size]


PRIORITIES = ("interactive", "batch")


def check_priority(priority: str) -> str:
    """Returns the priority.

    Raises:
        ValueError: there is no such class.
    """
    if priority not in PRIORITIES:
        raise ValueError(f"priority is {priority!r}: choose {' or '.join(PRIORITIES)}")
    return priority


class RequestLife(ABC):
    """An answer that grows until its request ends. `Request` of Week 2 and `Sequence` of Week 3 are such.

    Args:
        answer: its text, still empty.
    """

    def __init__(self, answer: AnswerText):
        self.answer = answer
        self.tokens: list[int] = []  # of the answer, without the token that ended it
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self._is_computing = False  # a call of the model is using it, or is about to
        self._is_aborted = False  # it ends at the end of that call

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: str) -> None:
        """Ends the request: adds held-back text, and releases its memory. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self.release()

    def fail(self, error: str) -> None:
        """Ends the request with the finish reason "error" and a line that says why. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason, self.error = "error", error
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Gives the memory of its keys and values back. A second call does nothing."""

    def begin_call(self) -> None:
        """The next call of the model computes it: its memory stays until `end_call`."""
        self._is_computing = True

    def end_call(self, failed: BaseException | None = None) -> None:
        """The call of the model is over, or will not come. A request that was aborted meanwhile ends now.

        Args:
            failed: what it raised. The memory may hold a part of the step then, so the request cannot go on. On Ctrl-C
                it ends as aborted, else with the error's message.
        """
        self._is_computing = False
        if self._is_aborted or (failed is not None and not isinstance(failed, Exception)):
            self.finish("abort")
        elif failed is not None:
            self.fail(str(failed) or type(failed).__name__)


class SequenceState(RequestLife, ABC):
    """The numbers of a request that schedulers read, what ends it, and what the model said about its tokens.

    Args:
        prompt_tokens, tokenizer, request_id, sampling, max_seq_len, priority: see `Sequence`.

    Raises:
        ValueError: no such priority.
    """

    known_tokens: list[int]  # the prompt, then the answer
    num_computed: int  # tokens from the front whose keys and values are in the blocks
    num_preemptions: int
    block_table: Any  # of the solution; the scheduler's `add` gives it one

    def __init__(
        self,
        prompt_tokens: Sequence[int],
        tokenizer: Any,
        *,
        request_id: int = 0,
        sampling: SamplingParams | None = None,
        max_seq_len: int,
        priority: str = "interactive",
    ):
        check_priority(priority)
        self.sampling = sampling or SamplingParams(max_tokens=None)
        super().__init__(AnswerText(tokenizer, self.sampling.stop, self.sampling))
        self.request_id, self.max_seq_len, self.priority = request_id, max_seq_len, priority
        self.prompt_tokens = list(prompt_tokens)
        self.num_in_flight = (
            0  # tokens after the computed ones that the stages of a pipeline compute (Day 3.7)
        )
        # Asked while tokens are in flight (Day 4.4).
        self.decodes_ahead: Callable[[Any], bool] = waits_for_token
        self.num_cached = 0  # tokens that came from the prefix cache at the first admission
        self.waiting_since = 0.0  # when the scheduler's `add` took it, in seconds of the scheduler's clock
        self.token_time = 0.0  # when its last token came
        self.sampled: list[Sampled] = []  # what the model said about each token of the answer
        self.prompt_sampled: dict[
            int, Sampled
        ] = {}  # and about those of the prompt, by position, if that was asked
        self._model_ends = () if self.sampling.ignore_eos else tokenizer.eos_token_ids
        self.eos_token_ids = frozenset(self._model_ends).union(self.sampling.stop_token_ids or ())
        self.grammar: Any = None  # what its text has to follow, compiled
        self._stop_token: int | None = None  # the one of `stop_token_ids` that ended it

    @abstractmethod
    def take(self, token: int) -> None:
        """Takes the token that a step has chosen."""

    @abstractmethod
    def preempt(self) -> None:
        """Gives all blocks back."""

    @property
    @abstractmethod
    def num_uncomputed(self) -> int:
        """Tokens that are known and not computed."""

    @property
    @abstractmethod
    def is_decoding(self) -> bool:
        """Whether the last token alone is left, and belongs to the answer."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_tokens)

    @property
    def num_scheduled(self) -> int:
        """Tokens from the front that are computed or in flight: the next chunk begins there."""
        return self.num_computed + self.num_in_flight

    @property
    def cacheable_tokens(self) -> Sequence[int]:
        """Tokens that may come from the prefix cache: what the model thinks of a prompt is computed from all of it."""
        return self.known_tokens if self.sampling.prompt_logprobs is None else []

    @property
    def max_new_tokens(self) -> int:
        """What the request's own limit and its context leave for the answer."""
        room, limit = self.max_seq_len - self.num_prompt_tokens, self.sampling.max_tokens
        return room if limit is None else min(room, limit)

    @property
    def stop_reason(self) -> int | str | None:
        """What ended it, if the request named it: a stop string, or one of `stop_token_ids`."""
        return self._stop_token if self.answer.stop_string is None else self.answer.stop_string

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

    def prompt_positions(self, start: int, stop: int) -> range:
        """Positions from `start` to before `stop` after which a token of the prompt gets its log-probability."""
        wanted = self.sampling.prompt_logprobs is not None
        return range(start, min(stop, self.num_prompt_tokens - 1)) if wanted else range(0)

    def take_prompt_sampled(self, position: int, sampled: Sampled) -> None:
        """Keeps what the model said about the token after a position. Computed again, it is said again."""
        self.prompt_sampled[position + 1] = sampled

    def _take_end(self, token: int) -> None:
        """Records which token has ended the request, and adds its text if that is wanted."""
        self._stop_token = None if token in self._model_ends else token
        if self.sampling.include_stop_str_in_output:
            self.answer.add_end(token)

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

    def abort(self) -> None:
        """Ends the request now; its text so far stays.

        If a call of the model is running on it, the request ends as soon as that call has returned or raised: until
        then the model writes into its blocks.
        """
        self._is_aborted = True  # mark first and look second: the call may end in between
        if not self._is_computing:
            self.finish("abort")

    def release(self) -> None:
        if hasattr(self, "block_table"):  # else it was never added to a scheduler
            self.block_table.release()


def waits_for_token(sequence: SequenceState) -> bool:
    """Whether a request can decode while tokens of it are in flight: not without asynchronous scheduling."""
    return False


@contextmanager
def model_call(*requests: RequestLife) -> Iterator[None]:
    """Context of one call of the model on these requests.

    A request that is aborted during the call ends after it. A call that raises ends all of them, with the error's
    message or, on Ctrl-C, as aborted: their caches may hold a part of the step, so none of them can continue.
    """
    for request in requests:
        request.begin_call()
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        for request in requests:
            request.end_call(failed)


@dataclass(frozen=True)
class Completion:
    """The result of one request.

    Args:
        prompt_idx: index of its prompt in the list of prompts.
        text: the answer, without the prompt.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        error: one line that says why, with the finish reason "error".
    """

    prompt_idx: int
    text: str
    finish_reason: str
    error: str | None = None

    @classmethod
    def of(cls, request: Any) -> "Completion":
        """The completion of a `Request` that has ended."""
        reason = (
            request.finish_reason or "unfinished"
        )  # the second is a mistake of the caller, which tests then name
        return cls(request.prompt_idx, request.text, reason, request.error)
