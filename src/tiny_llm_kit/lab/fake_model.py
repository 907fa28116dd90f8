"""A model, its caches, a tokenizer and a clock that are scripts: every call of a scheduler can be compared exactly.

The vocabulary is bytes. The caches hold the very tokens, so the model sees at once when a row is not what it should
be, and says so in an AssertionError.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..model.detokenizer import StreamDetokenizer

END, OTHER_END = 256, 257


class ByteTokenizer:
    """One id a byte, and two ids that end a text."""

    eos_token_ids = frozenset({END, OTHER_END})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(lambda token: bytes([token]) if token < END else b"")


class FakeClock:
    """Seconds that pass only while the fake model runs."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeCache:
    """The cache of one request in one layer: its tokens, and how many of them are the prompt."""

    def __init__(self):
        self.tokens: list[int] = []
        self.prompt_len: int | None = None
        self.is_released = False

    @property
    def offset(self) -> int:
        return len(self.tokens)

    def rewind(self, n: int) -> None:
        assert 0 <= n <= self.offset, f"rewind({n}) of a cache of {self.offset} tokens"
        self.tokens = self.tokens[: self.offset - n]

    def release(self) -> None:
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
        self.rows[slot] = FakeCache()
        self.rows[slot].tokens, self.rows[slot].prompt_len = list(prefilled.tokens), prefilled.prompt_len

    def remove_request(self, slot: int) -> None:
        assert self.rows[slot] is not None, f"remove_request({slot}), but no request is in this slot"
        self.rows[slot] = None

    def release(self) -> None:
        self.rows, self.is_released = [None] * len(self.rows), True


@dataclass(frozen=True)
class Call:
    """One step, as the scheduler asked for it."""

    tokens: list[list[int]]
    offsets: list[int]
    is_batch: bool
    sample_rows: list[int]
    sampling: list

    def __str__(self) -> str:
        """ "prompt Hi" or "decode a-c": a letter a slot, a dash for an idle one."""
        text = "".join(bytes(row).decode(errors="replace") or "-" for row in self.tokens)
        return f"{'decode' if self.is_batch else 'prompt'} {text}"


class FakeModel:
    """A `ServingModel` that answers each prompt with a script.

    It checks every step: rows stand where their caches end, each row continues its own request, a request that ended
    is not computed again. A step takes as many seconds of the clock as it has tokens, idle rows not counted.

    Args:
        answers: by prompt, the ids that follow it; a string stands for its bytes and `END`.
        max_model_len: its context.
        fails: by the number of the step, from 0: what it raises, before anything has changed.
        during: called with each step's number before it runs.
        clock: a `FakeClock` to move.
    """

    num_hidden_layers = 2
    vocab_size = 2**16

    def __init__(
        self,
        answers: Mapping[str, str | Sequence[int]],
        max_model_len: int = 64,
        *,
        fails: Mapping[int, BaseException] | None = None,
        during: Callable[[int], Any] = lambda step: None,
        clock: FakeClock | None = None,
    ):
        self.answers = {
            tuple(prompt.encode()): [*answer.encode(), END] if isinstance(answer, str) else list(answer)
            for prompt, answer in answers.items()
        }
        self.max_model_len, self.fails, self.during = max_model_len, fails or {}, during
        self.clock = clock or FakeClock()
        self.calls: list[Call] = []
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

    def step(self, tokens, offsets, kv_cache, *, sample_rows, sampling=None) -> list[int]:
        number, is_batch = len(self.calls), isinstance(kv_cache[0], FakeBatchCache)
        call = Call(
            [list(row) for row in tokens],
            list(offsets),
            is_batch,
            list(sample_rows),
            list(sampling or [None] * len(sample_rows)),
        )
        self._check(call, kv_cache)
        self.calls.append(call)
        self.during(number)
        if number in self.fails:
            raise self.fails[number]
        self.clock.now += sum(map(len, call.tokens))
        return self._decode(call, kv_cache) if is_batch else self._prompt(call, kv_cache)

    def _check(self, call: Call, layers: list) -> None:
        assert len(self.calls) < 1000, "1000 steps: the loop does not end"
        assert len(layers) == self.num_hidden_layers, (
            f"{len(layers)} caches for {self.num_hidden_layers} layers"
        )
        assert len(call.sampling) == len(call.sample_rows), "`sampling` has one entry for each sampled row"
        assert any(call.tokens), "a step without any token"
        assert not any(layer.is_released for layer in layers), "a step with a cache that was released"

    def _prompt(self, call: Call, layers: list[FakeCache]) -> list[int]:
        assert len(call.tokens) == 1, f"a prompt is one row, not {len(call.tokens)}"
        assert call.offsets == [layers[0].offset], (
            f"offset {call.offsets} for a cache that holds {layers[0].offset} tokens"
        )
        for layer in layers:
            layer.tokens = layer.tokens + call.tokens[0]
        if not call.sample_rows:
            return []
        assert call.sample_rows == [0], f"the only row of a prompt is row 0, not {call.sample_rows}"
        for layer in layers:
            layer.prompt_len = layer.offset
        return [self._answer(layers[0])[0]]

    def _decode(self, call: Call, layers: list[FakeBatchCache]) -> list[int]:
        used = [slot for slot, row in enumerate(layers[0].rows) if row]
        assert len(call.tokens) == len(layers[0].rows), (
            f"{len(call.tokens)} rows for {len(layers[0].rows)} slots: an idle slot is []"
        )
        given = [slot for slot, row in enumerate(call.tokens) if row]
        assert given == used, f"tokens for slots {given}, but requests are in {used}: an idle slot is []"
        assert call.sample_rows == used, f"sampled rows {call.sample_rows}, but requests are in {used}"
        return [self._decode_row(call, layers, slot) for slot in used]

    def _decode_row(self, call: Call, layers: list[FakeBatchCache], slot: int) -> int:
        """Adds the row's token to its cache in every layer, and returns what follows."""
        rows = [layer.rows[slot] for layer in layers]
        assert all(row is not None for row in rows), f"slot {slot} was not filled in every layer"
        held = rows[0].offset
        assert call.offsets[slot] == held, (
            f"slot {slot}: offset {call.offsets[slot]}, but its cache holds {held} tokens"
        )
        answer, done = self._answer(rows[0]), held - rows[0].prompt_len
        assert call.tokens[slot] == answer[done : done + 1], (
            f"slot {slot} was given {call.tokens[slot]}, but the last token of its request is {answer[done]}"
        )
        assert done + 1 < len(answer), f"slot {slot} was computed again after its request had ended"
        for row in rows:
            row.tokens = row.tokens + call.tokens[slot]
        return answer[done + 1]

    def _answer(self, row: FakeCache) -> list[int]:
        prompt = tuple(row.tokens[: row.prompt_len])
        assert prompt in self.answers, f"no such prompt was asked: {bytes(prompt)!r}"
        return self.answers[prompt]

    @property
    def trace(self) -> list[str]:
        """Every step in a few letters."""
        return [str(call) for call in self.calls]

    def unreleased(self) -> str:
        """What still holds memory, in words; empty when all is given back."""
        own = sum(not cache.is_released for cache in self.caches)
        batch = sum(not cache.is_released for cache in self.batch_caches)
        return ", ".join(
            f"{count} {kind}" for count, kind in ((own, "requests' caches"), (batch, "batch caches")) if count
        )
