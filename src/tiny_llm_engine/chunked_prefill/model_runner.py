"""The layer between policy and arrays: from lists of integers to one call of a model and back.

It pads rows and draws tokens. The policy decides what runs when.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ..solutions.backend import Backend
from ..solutions.solution_types import Array, SamplingParams


class ModelRunner:
    """A model of a solution as a `ServingModel`: lists of integers in, tokens out.

    Shapes come from few buckets, so that a graph compiler sees few programs: the rows of a batch are padded to a
    power of two, a prompt or its chunk to a multiple of `prompt_bucket` or to a bucket size, and never beyond
    the length of its cache.

    Args:
        model: `Qwen3ModelWeek2` of a solution, or an object with its methods.
        backend_module: `backend_mlx` or `backend_torch`.
        device: the model's device.
        sampler: the solution's `make_sampler`; without one every token is greedy.
        on_logits: called as on_logits(rows, logits (len(rows), V) in NumPy) after each sampled call, for tests.
        prompt_bucket: prompts are padded to a multiple of this; 1 does not pad, a Gaudi needs 128.
        chunk_mask: the solution's `chunked_attention_mask`, for chunks that see more keys than their own. When None the
            cache makes the mask, with the same result.
        pad_last: "bucket" pads to `prompt_bucket`; "chunk" to the smallest of `chunk_sizes` that is large enough, for
            fewer programs and more padding. A prompt longer than all of these is padded to the bucket.
        chunk_sizes: the bucket sizes of "chunk", in ascending order; an adaptive chunk size is one of them too.
        create_batch_cache: the solution's function of this name, which batches of several requests need.

    Raises:
        ValueError: `pad_last` has another value.
    """

    def __init__(
        self,
        model: Any,
        backend_module: Backend,
        device: str = "cpu",
        sampler: Callable[..., Callable] | None = None,
        on_logits: Callable | None = None,
        *,
        prompt_bucket: int = 1,
        chunk_mask: Callable | None = None,
        pad_last: str = "bucket",
        chunk_sizes: Sequence[int] = (32, 64, 128, 256, 512),
        create_batch_cache: Callable[[Any, int, int], list] | None = None,
    ):
        if pad_last not in ("bucket", "chunk"):
            raise ValueError(f'pad_last is {pad_last!r}: give "bucket" or "chunk"')
        self.model, self.backend_module, self.device = model, backend_module, device
        self.sampler, self.on_logits, self.prompt_bucket = sampler, on_logits, prompt_bucket
        self.chunk_mask, self.chunk_sizes = chunk_mask, tuple(chunk_sizes)
        self.pads_to_sizes = pad_last == "chunk"
        self._create_batch_cache = create_batch_cache
        self.num_hidden_layers = model.num_hidden_layers
        self.max_model_len, self.vocab_size = model.config.context, model.config.vocab_size

    def create_kv_cache(self, max_seq_len: int | None = None) -> list:
        return self.model.create_kv_cache(max_seq_len)

    def create_batch_cache(self, max_active_requests: int, max_seq_len: int) -> list:
        if self._create_batch_cache is None:
            raise ValueError("this runner serves one request: give it create_batch_cache for batches")
        return self._create_batch_cache(self.model, max_active_requests, min(max_seq_len, self.max_model_len))

    def prefill(
        self,
        tokens: Sequence[int],
        offset: int,
        kv_cache: Sequence,
        *,
        sampling: SamplingParams | None = None,
        sample: bool,
    ) -> int | None:
        """See `ServingModel.prefill`. One copy to the device, at most one copy back."""
        with self.backend_module.inference():
            count, L = len(tokens), self._padded(len(tokens), kv_cache[0])
            draws = Draws([sampling_key(sampling)])
            padded, positions = [*tokens, *[0] * (L - count)], range(offset, offset + L)
            numbers = self._array([*padded, *positions, offset, count - 1, *draws.choices])
            logits = self.model(
                numbers[None, :L],
                numbers[None, L : 2 * L],
                kv_cache,
                self._kept(numbers[2 * L + 1 : 2 * L + 2]) if sample else 0,
                **self._mask(numbers[2 * L], L, kv_cache[0]),
            )
            self._forget_padding(kv_cache, L - count)
            if sample:
                return self._choose(logits[:, -1], [0], draws, numbers[2 * L + 2 :])[0]
            # Nothing is sampled in this step, so synchronise before the caller takes the time.
            for layer in kv_cache:
                layer.materialize()
            self.backend_module.synchronize(self.device)
            return None

    def decode(
        self,
        tokens: Sequence[int | None],
        offsets: Sequence[int],
        kv_cache: Sequence,
        *,
        sampling: Sequence[SamplingParams | None] | None = None,
    ) -> list[int | None]:
        """See `ServingModel.decode`. One copy to the device, one copy back. An idle row computes token 0."""
        running = [slot for slot, token in enumerate(tokens) if token is not None]
        with self.backend_module.inference():
            rows = min(
                1 << running[-1].bit_length(), len(tokens)
            )  # a power of two, up to the last one in use
            params = sampling or [None] * len(tokens)
            draws = Draws([sampling_key(params[row]) if row in running else None for row in range(rows)])
            numbers = self._array(
                [[token or 0 for token in tokens[:rows]], list(offsets[:rows]), draws.choices]
            )
            logits = self.model(numbers[0][:, None], numbers[1][:, None], kv_cache, 1)
            chosen = self._choose(logits[:, -1], running, draws, numbers[2])
        by_slot = dict(zip(running, chosen, strict=True))
        return [by_slot.get(slot) for slot in range(len(tokens))]

    def _array(self, values: list):
        return self.backend_module.to_array(values, device=self.device)

    def _padded(self, count: int, cache: Any) -> int:
        """The length to which `count` prompt tokens are padded, at most the room in the cache."""
        bucket = -(-count // self.prompt_bucket) * self.prompt_bucket
        sizes = self.chunk_sizes if self.pads_to_sizes else ()
        size = next((size for size in sizes if size >= count), bucket)
        return max(count, min(size, cache.max_seq_len - cache.offset))

    def _kept(self, last: Array):
        """The tokens of a prompt that get logits: the last one, or the last one before the padding.

        The latter is an index in an array, even if a prompt fills its bucket: one program for the whole bucket.
        """
        return last if self.prompt_bucket > 1 or self.pads_to_sizes else 1

    def _mask(self, offset: Array, L: int, cache: Any) -> dict:
        """The mask of a chunk over all keys that its cache returns; none if these are only the chunk's own.

        The first chunk uses the model's default "causal", for which kernels need no mask. The chunk's start is a number
        in an array, so that it does not need a new program.
        """
        if self.chunk_mask is None:
            return {}
        S, dtype = cache.num_keys(L), self.model.embedding.weight.dtype
        return {} if S == L else {"mask": self.chunk_mask(offset, L, total_length=S, dtype=dtype)}

    @staticmethod
    def _forget_padding(kv_cache: Sequence, count: int) -> None:
        if count:
            for layer in kv_cache:
                layer.rewind(count)

    def _choose(self, logits, rows: Sequence[int], draws: "Draws", choices: Array) -> list[int]:
        """Choose one token for each of these rows; `choices` is `draws.choices` on the device.

        Each set of sampling parameters is drawn for all rows, so that the shape stays the same.
        """
        if self.on_logits is not None:
            self.on_logits(list(rows), self.backend_module.to_numpy(logits)[list(rows)])
        ids = self.backend_module.argmax(logits)
        for number, key in enumerate(draws.keys, start=1):
            ids = self.backend_module.where(choices == number, self._sampler()(*key)(logits), ids)
        ids = ids.tolist()  # the only copy from the device
        return [ids[row] for row in rows]

    def _sampler(self) -> Callable[..., Callable]:
        if self.sampler is None:
            raise ValueError("this runner has no sampler: give it the solution's make_sampler")
        return self.sampler


class Draws:
    """The sampling parameters of a batch, and which row uses which.

    Args:
        rows: `sampling_key` of each row.

    Attributes:
        keys: the different parameters, without greedy.
        choices: per row 0 for greedy, or the number of its parameters in `keys`, counted from 1.
    """

    def __init__(self, rows: Sequence[tuple | None]):
        self.keys = [key for key in dict.fromkeys(rows) if key is not None]
        self.choices = [0 if key is None else 1 + self.keys.index(key) for key in rows]


def sampling_key(params: SamplingParams | None) -> tuple | None:
    """The arguments for `make_sampler`; None for greedy."""
    if params is None or params.temperature == 0:
        return None
    return params.temperature, params.top_p, params.top_k
