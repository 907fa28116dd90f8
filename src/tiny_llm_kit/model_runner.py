"""From lists of integers to one step of a model and back: what stands between the policy and the arrays.

Knows how rows are padded and how tokens are drawn. What to run, and when, is the policy's business.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class ModelRunner:
    """A model of a solution as a `ServingModel`: `step` in, one token a sampled row out.

    Shapes come from few buckets, so that a graph compiler sees few programs: the rows of a batch are padded to a
    power of two, a prompt to a multiple of `prompt_bucket`, or to what is left of its cache.

    Args:
        model: `Qwen3ModelWeek2` of a solution, or what has its calls.
        kit: `backend_mlx` or `backend_torch`.
        device: where the model is.
        sampler: the solution's `make_sampler`; without one every token is greedy.
        on_logits: called as on_logits(rows, logits (len(rows), V) in NumPy) of each sampled step, for tests.
        prompt_bucket: 1 pads no prompt; a Gaudi wants 128.
    """

    def __init__(
        self,
        model: Any,
        kit: ModuleType,
        device: str = "cpu",
        sampler: Callable[..., Callable] | None = None,
        on_logits: Callable | None = None,
        *,
        prompt_bucket: int = 1,
    ):
        self.model, self.kit, self.device = model, kit, device
        self.sampler, self.on_logits, self.prompt_bucket = sampler, on_logits, prompt_bucket
        self.num_hidden_layers = model.num_hidden_layers
        self.max_model_len, self.vocab_size = model.config.max_position_embeddings, model.config.vocab_size

    def create_kv_cache(self, max_seq_len: int | None = None) -> list:
        return self.model.create_kv_cache(max_seq_len)

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list:
        return self.model.create_batch_cache(max_active_requests, min(max_seq_len, self.max_model_len))

    def step(
        self,
        tokens: Sequence[Sequence[int]],
        offsets: Sequence[int],
        kv_cache: Sequence,
        *,
        sample_rows: Sequence[int],
        sampling: Sequence[Any] | None = None,
    ) -> list[int]:
        """See `ServingModel.step`. One copy to the device, one copy back."""
        with self.kit.inference():
            return self._step(tokens, offsets, kv_cache, sample_rows, sampling)

    def _step(
        self,
        tokens: Sequence[Sequence[int]],
        offsets: Sequence[int],
        kv_cache: Sequence,
        sample_rows: Sequence[int],
        sampling: Sequence[Any] | None,
    ) -> list[int]:
        rows = self._rows(tokens)
        longest = max(map(len, rows))
        L = self._padded(longest, kv_cache)
        ids = [[*row, *[0] * (L - len(row))] for row in rows]
        positions = [list(range(start, start + L)) for start in [*offsets, *[0] * len(rows)][: len(rows)]]
        logits = self.model(
            self._array(ids), self._array(positions), kv_cache, self._kept(longest, L, sample_rows)
        )
        self._forget_padding(kv_cache, L - longest)
        if not sample_rows:
            for layer in kv_cache:
                layer.materialize()
            return []
        return self._choose(logits[:, -1], sample_rows, sampling or [None] * len(sample_rows))

    def _array(self, values: list):
        return self.kit.to_array(values, device=self.device)

    @staticmethod
    def _rows(tokens: Sequence[Sequence[int]]) -> list[list[int]]:
        """The rows to run: up to the last slot in use, padded to a power of two. An idle row computes token 0."""
        used = 1 + max(row for row, content in enumerate(tokens) if content)
        bucket = min(1 << (used - 1).bit_length(), len(tokens))
        return [list(row) or [0] for row in tokens[:bucket]]

    def _padded(self, longest: int, kv_cache: Sequence) -> int:
        """The bucket of a prompt; a batch's rows of one token are never padded."""
        bucket = -(-longest // self.prompt_bucket) * self.prompt_bucket
        room = kv_cache[0].max_seq_len - kv_cache[0].offset if longest > 1 else 1
        return max(longest, min(bucket, room))

    def _kept(self, longest: int, L: int, sample_rows: Sequence[int]):
        """Which tokens of each row the head sees: none, the last, or the last before the padding.

        The latter as a number in an array, also where a prompt fills its bucket: one program for the whole bucket.
        """
        if not sample_rows:
            return 0
        return 1 if L == 1 or self.prompt_bucket == 1 else self._array([longest - 1])

    @staticmethod
    def _forget_padding(kv_cache: Sequence, count: int) -> None:
        if count:
            for layer in kv_cache:
                layer.rewind(count)

    def _choose(self, logits, sample_rows: Sequence[int], sampling: Sequence[Any]) -> list[int]:
        """One token for each sampled row. Every way of drawing runs over all rows, so that its shape stays the same."""
        if self.on_logits is not None:
            self.on_logits(list(sample_rows), self.kit.to_numpy(logits)[list(sample_rows)])
        by_row = dict(zip(sample_rows, sampling, strict=True))
        ids = self.kit.argmax(logits)
        for way in dict.fromkeys(_way(params) for params in sampling):
            if way is not None:
                drawn = self._sampler()(*way)(logits)
                wants = self._array([_way(by_row.get(row)) == way for row in range(logits.shape[0])])
                ids = self.kit.where(wants, drawn, ids)
        ids = ids.tolist()  # the one copy from the device
        return [ids[row] for row in sample_rows]

    def _sampler(self) -> Callable[..., Callable]:
        if self.sampler is None:
            raise ValueError("this runner has no sampler: give it the solution's make_sampler")
        return self.sampler


def _way(params: Any) -> tuple | None:
    """What `make_sampler` is called with; None is greedy."""
    if params is None or params.temperature == 0:
        return None
    return params.temperature, params.top_p, params.top_k
