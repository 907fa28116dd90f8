"""What a scheduler plans: the parts of a `Sequence` that Day 3.3 does not teach, and the entries of a plan. Given."""

from abc import ABC, abstractmethod
from collections import abc
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from .answer_text import AnswerText
from .events import Part
from .packed_model import Sampled
from .request_life import RequestLife, check_priority, prompt_error
from .sampling import SamplingParams


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
        super().__init__(AnswerText(tokenizer, self.sampling.stop, self.sampling))
        self.request_id, self.max_seq_len, self.priority = request_id, max_seq_len, priority
        self.prompt_tokens = list(prompt_tokens)
        self.num_in_flight = (
            0  # tokens after the computed ones that the stages of a pipeline compute (Day 3.7)
        )
        # Asked while tokens are in flight (Day 4.4).
        self.decodes_ahead: abc.Callable[[Any], bool] = waits_for_token
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
    def cacheable_tokens(self) -> abc.Sequence[int]:
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


class KnownText(Protocol):
    """What a plan says something about: a text whose tokens are known before they are computed."""

    known_tokens: list[int]
    sampling: SamplingParams
    block_table: Any  # of the solution

    @property
    def num_prompt_tokens(self) -> int: ...


Text = TypeVar("Text", bound=KnownText)


@dataclass(frozen=True)
class Scheduled(Generic[Text]):
    """An entry of a plan: the tokens of one request that the step computes.

    Its properties say what the entry is until `commit` has taken the new tokens.

    Args:
        sequence: the request.
        start: position of the first token.
        size: how many; all of them are known, or it is one that a step in flight draws (Day 4.4).
    """

    sequence: Text
    start: int
    size: int

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + self.size

    @property
    def needs_token(self) -> bool:
        """Whether it ends with the last token, so that the model has to choose the next one.

        Before the step of that token is committed it is not known yet, and the entry ends after the known ones.
        """
        return self.stop >= len(self.sequence.known_tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it is the last token of an answer, and nothing else."""
        return self.size == 1 and self.needs_token and self.start >= self.sequence.num_prompt_tokens


def check_plan(plan: abc.Sequence[Scheduled]) -> None:
    """Raises a ValueError when one request has two entries."""
    planned: set[KnownText] = set()
    for entry in plan:
        if entry.sequence in planned:
            raise ValueError(
                f"request {entry.sequence.request_id} is planned twice in one step: `plan_step` adds one entry for a"
                " request, so call `plan_decodes` and `plan_prompts` at most once each"
            )
        planned.add(entry.sequence)


def step_parts(call: abc.Sequence[Scheduled], running: abc.Sequence[SequenceState]) -> tuple[Part, ...]:
    """The chunks of a call, then its decodes, which have waited for the chunks even in the same call.

    Args:
        call: entries whose tokens are not taken yet.
        running: the requests that run; those of them that are ready to decode have waited for the chunks.
    """
    decodes = tuple(entry.sequence for entry in call if entry.is_decode)
    served = (Part("decode", decodes, len(decodes)),) if decodes else ()
    if len(decodes) == len(call):
        return served
    ready = sum(sequence.is_decoding for sequence in running)
    chunks = [entry for entry in call if not entry.is_decode]
    parts = (Part("chunk", (entry.sequence,), entry.size, entry.start, ready) for entry in chunks)
    return (*parts, *served)


@dataclass
class Piece:
    """What one answer has gained since the piece before.

    Args:
        index: which of the request's answers.
        text: characters that follow those of earlier pieces; empty while a character or a stop string is incomplete.
        sampled: its new tokens, with their log-probabilities if the request asked for them.
        finish_reason: of the last piece, "stop", "length", "abort" or "error"; None before.
        error: with "error", one line that says why.
        stop_reason: of the last piece, the stop string or stop token of the request that has ended it.
    """

    index: int
    text: str = ""
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    stop_reason: int | str | None = None

    def followed_by(self, later: "Piece") -> "Piece":
        """This piece and the next one of the same answer as one piece."""
        text, sampled = self.text + later.text, self.sampled + later.sampled
        return Piece(self.index, text, sampled, later.finish_reason, later.error, later.stop_reason)


class EngineRequest(Protocol):
    """A prompt and its answers, as the engine takes it."""

    @property
    def sequences(self) -> abc.Sequence[SequenceState]:
        """One for each answer."""
        ...

    def abort(self) -> None:
        """Ends all answers that have not ended."""
