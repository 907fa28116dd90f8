"""A model that does nothing, in no time: what a step takes with it is the scheduler's own."""

from collections.abc import Callable, Sequence
from typing import Any


class NoCache:
    """The cache of a request, of which only the length is kept."""

    offset = 0

    def rewind(self, n: int) -> None:
        pass

    def release(self) -> None:
        pass


class NoBatchCache:
    """The cache of a batch, which keeps nothing."""

    def add_request(self, prefilled: NoCache, slot: int) -> None:
        pass

    def remove_request(self, slot: int) -> None:
        pass

    def release(self) -> None:
        pass


class IdleModel:
    """A `ServingModel` whose every token is the same."""

    num_hidden_layers, max_model_len, vocab_size = 4, 4096, 4096

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[NoCache]:
        return [NoCache() for _ in range(self.num_hidden_layers)]

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list[NoBatchCache]:
        return [NoBatchCache() for _ in range(self.num_hidden_layers)]

    def prefill(
        self,
        tokens: Sequence[int],
        offset: int,
        kv_cache: Sequence[NoCache],
        *,
        sampling: Any = None,
        sample: bool,
    ) -> int | None:
        return 7 if sample else None

    def decode(
        self,
        tokens: Sequence[int | None],
        offsets: Sequence[int],
        kv_cache: Sequence[NoBatchCache],
        *,
        sampling: Sequence[Any] | None = None,
    ) -> list[int | None]:
        return [None if token is None else 7 for token in tokens]


class PacedModel(IdleModel):
    """An idle model on a clock of its own, which moves by what a call costs: every latency is exact.

    Args:
        seconds: what a call costs, by its tokens: those of a prompt, and one for a decode step, however many run.
    """

    def __init__(self, seconds: Callable[[int], float]):
        self._seconds, self.now = seconds, 0.0

    def clock(self) -> float:
        return self.now

    def prefill(self, tokens: Sequence[int], *arguments: Any, **options: Any) -> int | None:
        self.now += self._seconds(len(tokens))
        return super().prefill(tokens, *arguments, **options)

    def decode(self, *arguments: Any, **options: Any) -> list[int | None]:
        self.now += self._seconds(1)
        return super().decode(*arguments, **options)
