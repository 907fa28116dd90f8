"""The layer between Week 3's policy and arrays: from a packed batch of integers to one forward and back."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from .backends.seeded_sampling import PendingDraws
from .packed_model import FlatBlocks, PackedInputs, inputs_of
from .solutions.backend import Backend
from .solutions.solution_types import Array, Bucket, Buckets, PackedBatch, Sampled

Forward = Callable[[PackedInputs], Array | None]  # logits, or None if no row is sampled


@dataclass
class PaddingWaste:
    """Rows and pages requested, and rows and pages computed.

    Args:
        tokens, padded_tokens: rows of all calls.
        pages, padded_pages: pages that attention read in all calls whose pages were padded, in one layer.
    """

    tokens: int = 0
    padded_tokens: int = 0
    pages: int = 0
    padded_pages: int = 0

    def count(self, batch: PackedBatch, bucket: Bucket | None, page_size: int) -> None:
        """Add a call.

        Args:
            batch: the requested batch.
            bucket: the bucket that it was padded to; None if it was not padded.
            page_size: tokens per page.
        """
        tokens = len(batch.token_ids)
        self.tokens += tokens
        self.padded_tokens += tokens if bucket is None else bucket.tokens
        if bucket is not None and bucket.chunk_pages is not None:
            self.pages += sum(batch.past_pages(page_size))
            self.padded_pages += sum(bucket.size[1:])

    def since(self, earlier: "PaddingWaste") -> "PaddingWaste":
        """The counts since `earlier`."""
        before = vars(earlier)
        return PaddingWaste(**{name: value - before[name] for name, value in vars(self).items()})

    @property
    def token_share(self) -> float:
        """The share of padding among the rows."""
        return 1 - self.tokens / self.padded_tokens if self.padded_tokens else 0.0

    @property
    def page_share(self) -> float:
        """The share of padding among the pages."""
        return 1 - self.pages / self.padded_pages if self.padded_pages else 0.0


class PackedRunner:
    """A model of a solution as a `PackedModel`: one forward per call, one copy of tokens back.

    Args:
        model: `Qwen3ModelWeek3` of a solution, or an object with its methods.
        backend_module: `backend_mlx` or `backend_torch`.
        device: the model's device.
        num_blocks: blocks of the KV pools, as the allocator has them.
        block_size: tokens per block.
        sampler: chooses the tokens, see `SeededSampler`.
        sampled: makes the solution's `Sampled` of a token and its log-probabilities.
        flat_blocks, create_kv_pools: the solution's functions.
        on_logits: called as on_logits(rows, logits (len(rows), V) in NumPy) after each call that samples, for tests.

    Attributes:
        most_blocks: blocks that the pools can have.
        before: called with each batch before it is computed.
        bucket_of: the bucket that a batch is padded to; None pads nothing.
        pad: pads the inputs of a batch to its bucket.
        lists: the inputs of a batch, padded to its bucket, as lists.
        forward_of: computes the logits of inputs that have the shapes of a bucket.
        logits: computes those of a batch.
        buckets: what `bucket_of` chooses from, for those who ask.
        waste: the rows of all calls, padding included.
    """

    buckets: Buckets | None = None

    def __init__(
        self,
        model: Any,
        backend_module: Backend,
        device: str = "cpu",
        *,
        num_blocks: int,
        block_size: int = 128,
        sampler: Any,
        sampled: Callable,
        flat_blocks: Callable[..., FlatBlocks],
        create_kv_pools: Callable[..., list],
        on_logits: Callable | None = None,
    ):
        self.model, self.backend_module, self.device = model, backend_module, device
        self.num_blocks, self.most_blocks, self.block_size = num_blocks, num_blocks, block_size
        self.sampler, self.sampled, self.on_logits = sampler, sampled, on_logits
        self.num_hidden_layers = model.num_hidden_layers
        self.max_model_len, self.vocab_size = model.config.context, model.config.vocab_size
        self._create_kv_pools = create_kv_pools
        self.pools = pools = create_kv_pools(model, num_blocks, block_size)
        self._flat_blocks, self.waste = flat_blocks, PaddingWaste()
        self.plain_forward: Forward = lambda inputs: model(inputs, pools)
        self.before: list[Callable[[PackedBatch], object]] = []
        self.bucket_of: Callable[[PackedBatch], Bucket | None] = lambda batch: None
        self.pad: Callable[[PackedInputs, Bucket | None], PackedInputs] = lambda inputs, bucket: inputs
        self.lists: Callable[[PackedBatch, Bucket | None], PackedInputs] = self._lists
        self.forward_of: Callable[[Bucket | None], Forward] = lambda bucket: self.plain_forward
        self.logits: Callable[[PackedBatch, Bucket | None], Array | None] = self._logits

    @property
    def computed_tokens(self) -> int:
        """Rows that the model has computed so far, padding included."""
        return self.waste.padded_tokens

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        bucket = self.bucket_of(batch)
        chosen = self.compute(batch, bucket)
        self.waste.count(batch, bucket, self.block_size)
        return chosen

    def compute(self, batch: PackedBatch, bucket: Bucket | None) -> list[Sampled]:
        """One token for each sampled row of a batch, which is padded to a bucket."""
        with self.backend_module.inference():
            logits = self.logits(batch, bucket)
            chosen = [] if logits is None else self._choose(batch, logits)
            self.backend_module.materialize(self.pools)
            if logits is None:  # nothing was read, so synchronise before the caller takes the time
                self.backend_module.synchronize(self.device)
        return chosen

    def create_kv_pools(self, num_blocks: int, kv_cache_dtype: str) -> list[Any]:
        """More pools for the model, of another size and type."""
        kind = {"kv_cache_dtype": kv_cache_dtype, "most_blocks": None}
        return self._create_kv_pools(self.model, num_blocks, self.block_size, **kind)

    def _logits(self, batch: PackedBatch, bucket: Bucket | None) -> Array | None:
        self.prepare(batch)
        return self.forward_of(bucket)(self._inputs(batch, bucket))

    def prepare(self, batch: PackedBatch) -> None:
        """Does what comes before the computing of a batch."""
        for hook in self.before:
            hook(batch)

    def _inputs(self, batch: PackedBatch, bucket: Bucket | None) -> PackedInputs:
        inputs = self.lists(batch, bucket)
        return inputs if self._takes_lists else inputs.map(self._array)

    def _lists(self, batch: PackedBatch, bucket: Bucket | None) -> PackedInputs:
        window, sizes = self.model.config.sliding_window, (self.block_size, self.num_blocks)
        return self.pad(inputs_of(batch, *sizes, window, self._flat_blocks), bucket)

    @property
    def _takes_lists(self) -> bool:
        """Whether the model makes arrays of its inputs by itself, where it needs them."""
        return getattr(self.model.compute, "takes_lists", False)

    @property
    def _array(self) -> Callable[[list], Array]:
        """Makes an array on the device."""
        return partial(self.backend_module.to_array, device=self.device)

    def _choose(self, batch: PackedBatch, logits: Array) -> list[Sampled]:
        """One token for each sampled row."""
        return self._read(batch, *self._draw(batch, logits))

    def _draw(self, batch: PackedBatch, logits: Array) -> tuple[PendingDraws, PendingDraws | None]:
        """Begins to draw, and to score prompts: the rows after those that are sampled, before those of a bucket."""
        if self.on_logits is not None and batch.sample_rows:
            self.on_logits(
                batch.sample_rows, self.backend_module.to_numpy(logits)[: len(batch.sample_rows)].copy()
            )
        rows = batch.sample_rows[: len(batch.sampling)]
        positions = [batch.positions[row] + 1 for row in rows]  # of the new tokens
        draws = self.sampler.launch(logits, batch.sampling, positions, batch.requests)
        return draws, self._score_prompts(batch, logits) if batch.prompt_rows else None

    def _score_prompts(self, batch: PackedBatch, logits: Array) -> PendingDraws:
        asked, first = batch.prompt_rows, len(batch.sampling)
        tokens = [row.sequence.prompt_tokens[row.position + 1] for row in asked]
        counts = [row.sequence.sampling.prompt_logprobs for row in asked]
        return self.sampler.score(logits[first : first + len(asked)], tokens, counts)

    def _read(self, batch: PackedBatch, draws: PendingDraws, prompts: PendingDraws | None) -> list[Sampled]:
        """Waits for the tokens, and tells requests the log-probabilities of their prompts' tokens."""
        for row, choice in zip(batch.prompt_rows, prompts.choices() if prompts else (), strict=True):
            row.sequence.take_prompt_sampled(row.position, self.sampled(*choice))
        return [self.sampled(*choice) for choice in draws.choices()]
