"""From lists of integers to one step of a model and back: what stands between the policy and the arrays.

Knows how rows are padded and how tokens are drawn. What to run, and when, is the policy's business.
"""

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class ModelRunner:
    """A model of a solution as a `ServingModel`: `step` in, one token a sampled row out.

    Shapes come from few buckets, so that a graph compiler sees few programs: the rows of a batch are padded to a
    power of two, a prompt or a chunk of one to a multiple of `prompt_bucket` or to a size of a ladder, and never
    further than its cache goes.

    Args:
        model: `Qwen3ModelWeek2` of a solution, or what has its calls.
        kit: `backend_mlx` or `backend_torch`.
        device: where the model is.
        sampler: the solution's `make_sampler`; without one every token is greedy.
        on_logits: called as on_logits(rows, logits (len(rows), V) in NumPy) of each sampled step, for tests.
        prompt_bucket: 1 pads no prompt; a Gaudi wants 128.
        chunk_mask: the solution's `chunked_attention_mask`, for the chunks of a prompt that see other keys than their
            own. Without one the cache says who sees whom, with the same result.
        pad_last: "bucket" pads to `prompt_bucket`; "chunk" to the smallest of `chunk_sizes` that is large enough, for
            fewer programs and more padding. What is longer than all of these is padded to the bucket.
        chunk_sizes: the ladder of "chunk", in ascending order.

    Raises:
        ValueError: another `pad_last`.
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
        chunk_mask: Callable | None = None,
        pad_last: str = "bucket",
        chunk_sizes: Sequence[int] = (32, 64, 128, 256, 512),
    ):
        if pad_last not in ("bucket", "chunk"):
            raise ValueError(f'pad_last is {pad_last!r}: give "bucket" or "chunk"')
        self.model, self.kit, self.device = model, kit, device
        self.sampler, self.on_logits, self.prompt_bucket = sampler, on_logits, prompt_bucket
        self.chunk_mask, self.chunk_sizes = chunk_mask, tuple(chunk_sizes) if pad_last == "chunk" else ()
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
            self._array(ids),
            self._array(positions),
            kv_cache,
            self._kept(kv_cache, longest, sample_rows),
            **self._mask(offsets[0], L, kv_cache),
        )
        self._forget_padding(kv_cache, L - longest)
        if not sample_rows:
            # Nobody reads a token of this step: it might still run, or not even have begun, when its time is taken.
            for layer in kv_cache:
                layer.materialize()
            self.kit.synchronize(self.device)
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
        """The size that a prompt's tokens are padded to; a batch's rows of one token never are."""
        if _is_batch(kv_cache):
            return longest
        bucket = -(-longest // self.prompt_bucket) * self.prompt_bucket
        size = next((size for size in self.chunk_sizes if size >= longest), bucket)
        return max(longest, min(size, kv_cache[0].max_seq_len - kv_cache[0].offset))

    def _kept(self, kv_cache: Sequence, longest: int, sample_rows: Sequence[int]):
        """Which tokens of each row the head sees: none, the last, or the last before the padding.

        The latter as a number in an array, also where a prompt fills its bucket: one program for the whole bucket.
        """
        if not sample_rows:
            return 0
        is_padded = self.prompt_bucket > 1 or self.chunk_sizes
        return self._array([longest - 1]) if is_padded and not _is_batch(kv_cache) else 1

    def _mask(self, offset: int, L: int, kv_cache: Sequence) -> dict:
        """The mask of a chunk over all keys that its cache will hand out; none where these are the chunk's own alone.

        A prompt's beginning says "causal", in a word that kernels know without a mask. Where a chunk starts is a number
        in an array: no new program for every start.
        """
        if self.chunk_mask is None or _is_batch(kv_cache):
            return {}
        S, dtype = kv_cache[0].span(L), self.model.embedding.weight.dtype
        return (
            {} if S == L else {"mask": self.chunk_mask(self._array(offset), L, total_length=S, dtype=dtype)}
        )

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


def _is_batch(kv_cache: Sequence) -> bool:
    """Whether these caches hold a row for every slot, and not one request."""
    return hasattr(kv_cache[0], "add_request")


def _way(params: Any) -> tuple | None:
    """What `make_sampler` is called with; None is greedy."""
    if params is None or params.temperature == 0:
        return None
    return params.temperature, params.top_p, params.top_k
