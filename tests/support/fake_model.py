"""A scripted model, with caches and a tokenizer, for exact comparison of scheduler calls.

The vocabulary is bytes. The caches hold the tokens themselves, so the model raises an AssertionError as soon as one
is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_course.fakes.fake_packed_model import END
from tiny_llm_course.trace.simulation.simulated_model import SimulatedClock
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.models.tokenization import StreamDetokenizer
from tiny_llm_engine.solutions.solution_types import SamplingParams

OTHER_END = 257


class ByteTokenizer:
    """A tokenizer with one id per byte, and two ids that end a text."""

    eos_token_ids = frozenset({END, OTHER_END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(lambda token: bytes([token]) if token < END else b"")


class FakeCache:
    """The cache of one request in one layer: its tokens, and how many of them are the prompt."""

    def __init__(self):
        self.tokens: list[int] = []
        self.prompt_len = 0  # set at the end of its prefill
        self.is_released = False

    @property
    def offset(self) -> int:
        return len(self.tokens)

    def rewind(self, n: int) -> None:
        assert 0 <= n <= self.offset, f"rewind({n}) of a cache of {self.offset} tokens"
        self.tokens = self.tokens[: self.offset - n]

    def release(self) -> None:
        assert not self.is_released, "a request's cache was released twice"
        self.tokens, self.is_released = [], True


class FakeBatchCache:
    """The cache of all slots in one layer; None is a free slot."""

    def __init__(self, slots: int, max_seq_len: int):
        self.max_seq_len = max_seq_len
        self.rows: list[FakeCache | None] = [None] * slots
        self.is_released = False

    def add_request(self, prefilled: FakeCache, slot: int) -> None:
        assert slot in range(len(self.rows)), f"add_request into slot {slot!r} of {len(self.rows)}"
        assert self.rows[slot] is None, f"slot {slot} is taken, and another request was added into it"
        assert not prefilled.is_released, "a request's cache was released before its tokens were copied"
        self.rows[slot] = row = FakeCache()
        row.tokens, row.prompt_len = list(prefilled.tokens), prefilled.prompt_len

    def remove_request(self, slot: int) -> None:
        assert self.rows[slot] is not None, f"remove_request({slot}), but no request is in this slot"
        self.rows[slot] = None

    def release(self) -> None:
        assert not self.is_released, "a batch's cache was released twice"
        self.rows[:], self.is_released = [None] * len(self.rows), True


@dataclass(frozen=True)
class PrefillCall:
    """A recorded prefill call: a prompt, or a piece of one."""

    tokens: list[int]
    offset: int
    sample: bool
    sampling: SamplingParams | None
    is_batch = False

    @property
    def computed(self) -> int:
        """Number of computed tokens."""
        return len(self.tokens)

    def __str__(self) -> str:
        """The call as text, such as "prompt Hi"."""
        return f"prompt {bytes(self.tokens).decode(errors='replace')}"


@dataclass(frozen=True)
class DecodeCall:
    """A recorded decode call, with one entry per slot."""

    tokens: list[int | None]
    offsets: list[int]
    sampling: list
    is_batch = True

    @property
    def slots(self) -> list[int]:
        """The slots that were given a token."""
        return [slot for slot, token in enumerate(self.tokens) if token is not None]

    @property
    def computed(self) -> int:
        """Number of computed tokens."""
        return len(self.slots)

    def __str__(self) -> str:
        """The call as text, such as "decode a-c": a letter per slot, a dash for an idle one."""
        letters = ("-" if token is None else bytes([token]).decode(errors="replace") for token in self.tokens)
        return f"decode {''.join(letters)}"


class FakeModel:
    """A `ServingModel` that answers each prompt with a script.

    It checks every call: tokens start where their caches end, each slot continues its own request, a request that
    ended is not computed again, no cache is released meanwhile. A call takes one second of the clock per token; idle
    slots do not count.

    Args:
        answers: by prompt, the ids that follow it; a string stands for its bytes and `END`.
        max_model_len: its context.
        fails: errors to raise by call number, from 0, before anything has changed.
        during: called with each call's number while it runs.
        clock: a `SimulatedClock` to move.
    """

    num_hidden_layers = 2
    vocab_size = 2**16

    def __init__(
        self,
        answers: Mapping[str, str | Sequence[int]],
        max_model_len: int = 64,
        *,
        fails: Mapping[int, BaseException] | None = None,
        during: Callable[[int], Any] = lambda number: None,
        clock: SimulatedClock | None = None,
    ):
        self.answers = {
            tuple(prompt.encode()): [*answer.encode(), END] if isinstance(answer, str) else list(answer)
            for prompt, answer in answers.items()
        }
        self.max_model_len, self.fails, self.during = max_model_len, fails or {}, during
        self.clock = clock or SimulatedClock()
        self.calls: list[PrefillCall | DecodeCall] = []
        self.caches: list[FakeCache] = []
        self.batch_caches: list[FakeBatchCache] = []

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[FakeCache]:
        made = [FakeCache() for _ in range(self.num_hidden_layers)]
        self.caches += made
        return made

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[FakeBatchCache]:
        made = [FakeBatchCache(max_active_requests, max_seq_len) for _ in range(self.num_hidden_layers)]
        self.batch_caches += made
        return made

    def prefill(self, tokens, offset, kv_cache, *, sampling=None, sample) -> int | None:
        assert tokens, "a call of the model without any token"
        assert all(isinstance(layer, FakeCache) for layer in kv_cache), (
            "a prompt goes into its request's own caches"
        )
        self._run(PrefillCall(list(tokens), offset, sample, sampling), kv_cache)
        held = kv_cache[0].offset
        assert offset == held, f"offset {offset} for a cache that holds {held} tokens"
        for layer in kv_cache:
            layer.tokens = layer.tokens + list(tokens)
        if not sample:
            return None
        for layer in kv_cache:
            layer.prompt_len = layer.offset
        return self._answer(kv_cache[0])[0]

    def decode(self, tokens, offsets, kv_cache, *, sampling=None) -> list[int | None]:
        assert all(isinstance(layer, FakeBatchCache) for layer in kv_cache), "decode is on the batch's caches"
        slots = len(kv_cache[0].rows)
        call = DecodeCall(list(tokens), list(offsets), list(sampling or [None] * slots))
        for name, given in (("tokens", tokens), ("offsets", offsets), ("sampling", call.sampling)):
            assert len(given) == slots, (
                f"{len(given)} {name} for {slots} slots: one entry per slot, also for idle ones"
            )
        used = [slot for slot, row in enumerate(kv_cache[0].rows) if row]
        assert call.slots == used, f"tokens for slots {call.slots}, requests in {used}: an idle slot is None"
        self._run(call, kv_cache)
        return [self._decode_row(call, kv_cache, slot) if slot in used else None for slot in range(slots)]

    def _run(self, call: PrefillCall | DecodeCall, layers: list) -> None:
        """Check and count any call, before anything has changed."""
        number = len(self.calls)
        assert number < 1000, "1000 calls of the model: the loop does not end"
        assert len(layers) == self.num_hidden_layers, f"{len(layers)} caches, {self.num_hidden_layers} layers"
        assert not any(layer.is_released for layer in layers), "a call with a cache that was released"
        self.calls.append(call)
        self.during(number)
        if number in self.fails:
            raise self.fails[number]
        assert not any(layer.is_released for layer in layers), (
            "a cache was released while the model was writing to it: an abort waits for the end of the call"
        )
        self.clock.now += call.computed

    def _decode_row(self, call: DecodeCall, layers: list[FakeBatchCache], slot: int) -> int:
        """Add the row's token to its cache in every layer, and return what follows."""
        rows = [row for layer in layers if (row := layer.rows[slot]) is not None]
        assert len(rows) == len(layers), f"slot {slot} was not filled in every layer"
        held = rows[0].offset
        assert call.offsets[slot] == held, (
            f"slot {slot}: offset {call.offsets[slot]}, but its cache holds {counted(held, 'token')}"
        )
        answer, done = self._answer(rows[0]), held - rows[0].prompt_len
        assert [call.tokens[slot]] == answer[done : done + 1], (
            f"slot {slot} was given {call.tokens[slot]}, but the last token of its request is {answer[done]}"
        )
        assert done + 1 < len(answer), f"slot {slot} was computed again after its request had ended"
        for row in rows:
            row.tokens = row.tokens + answer[done : done + 1]
        return answer[done + 1]

    def _answer(self, row: FakeCache) -> list[int]:
        prompt = tuple(row.tokens[: row.prompt_len])
        assert prompt in self.answers, f"no such prompt was asked: {bytes(prompt)!r}"
        return self.answers[prompt]

    @property
    def trace(self) -> list[str]:
        """Every call as a short text."""
        return [str(call) for call in self.calls]

    def unreleased(self) -> str:
        """A description of what still holds memory; empty when all is released."""
        own = sum(not cache.is_released for cache in self.caches)
        batch = sum(not cache.is_released for cache in self.batch_caches)
        return ", ".join(
            f"{count} {kind}" for count, kind in ((own, "requests' caches"), (batch, "batch caches")) if count
        )
