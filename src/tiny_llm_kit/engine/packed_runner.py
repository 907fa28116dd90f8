"""The layer between Week 3's policy and arrays: from a packed batch of integers to one forward and back.

With it stand the other ranks of a model as it sees them, for `parallel` has those that are processes, and its count of
padding.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from tiny_llm_common.moves import Move

from ..solution_types import Array, Bucket, Buckets, PackedBatch, Sampled
from ..terminal import FatalError
from .backend import Backend
from .backends.seeded_sampling import PendingDraws


class RankError(FatalError):
    """A rank is gone or cannot start, so the engine is gone: only together do its ranks hold the model."""


class OtherRanks:
    """No other ranks: this process has the model to itself.

    Attributes:
        group: all ranks, see `Group`.
        has_stages: whether the ranks share the layers, and not every matrix.
        failure: why a rank is gone, in one line; None while all are there.
        on_failure: called with that line, on a thread of its own.
    """

    group: Any = None
    has_stages = False
    failure: str | None = None
    on_failure: Callable[[str], object]

    @property
    def size(self) -> int:
        """Number of ranks, this one included."""
        return 1

    def make_pools(self, num_blocks: int, is_profiled: bool = False) -> None:
        """Every other rank makes KV pools of this many blocks, and a runner for them.

        Args:
            is_profiled: whether only memory is measured: then nothing is compiled.
        """

    def announce(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        """Every other rank begins to compute a batch, or will when it has computed those before.

        Raises:
            RankError: one is gone.
        """

    def computing(self) -> AbstractContextManager:
        """The body computes a batch that was announced.

        Raises:
            RankError: another rank is gone, or the body has raised.
        """
        return nullcontext()

    def close(self) -> None:
        """Ends the other ranks, and returns when they have ended."""


@dataclass
class PaddingWaste:
    """Rows and pages requested, and rows and pages computed.

    Args:
        tokens, padded_tokens: rows of all calls.
        pages, padded_pages: pages that attention read in all calls, in one layer.
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
        tokens, pages = len(batch.token_ids), sum(batch.past_pages(page_size))
        self.tokens += tokens
        self.pages += pages
        self.padded_tokens += tokens if bucket is None else bucket.tokens
        self.padded_pages += pages if bucket is None or bucket.chunk_pages is None else sum(bucket.size[1:])

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
        inputs_of, create_kv_pools, pad_inputs: the solution's functions.
        arrays_of: makes the solution's `PackedInputs` of the list that its `flatten` has made.
        on_logits: called as on_logits(rows, logits (len(rows), V) in NumPy) after each call that samples, for tests.
        buckets: `Buckets` of the solution: every call is padded to one of them. None pads nothing.
        capture: turns a forward, which is a function of arrays alone, into one that is captured and replayed; see the
            solution's `capture_step`.
        is_captured: whether steps of a bucket are; the others run the model as it is.
        ranks: the other ranks of the model, if any, which compute every batch too.
    """

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
        inputs_of: Callable,
        arrays_of: Callable,
        create_kv_pools: Callable[..., list],
        pad_inputs: Callable,
        on_logits: Callable | None = None,
        buckets: Buckets | None = None,
        capture: Callable[[Callable], Callable] = lambda forward: forward,
        is_captured: Callable[[Bucket | None], bool] = lambda bucket: True,
        ranks: OtherRanks | None = None,
    ):
        self.model, self.backend_module, self.device = model, backend_module, device
        self.num_blocks, self.block_size = num_blocks, block_size
        self.sampler, self.sampled, self.on_logits = sampler, sampled, on_logits
        self.num_hidden_layers = model.num_hidden_layers
        self.max_model_len, self.vocab_size = model.config.context, model.config.vocab_size
        self._create_kv_pools = create_kv_pools
        self.pools = pools = create_kv_pools(model, num_blocks, block_size)
        self.make_moves: Callable[[list[Move]], object] = lambda moves: None  # see `ColdStore`
        self._plain = lambda *arrays: model(arrays_of(arrays), pools)
        self._captured, self._is_captured = capture(self._plain), is_captured
        self.buckets, self.ranks, self._inputs_of = buckets, ranks or OtherRanks(), inputs_of
        self._pad_inputs = pad_inputs
        self.waste = PaddingWaste()

    @property
    def computed_tokens(self) -> int:
        """Rows that the model has computed so far, padding included."""
        return self.waste.padded_tokens

    def run(self, batch: PackedBatch) -> list[Sampled]:
        """See `PackedModel.run`."""
        bucket = None if self.buckets is None else self.buckets.of(batch)
        chosen = self._compute(batch, bucket)
        self.waste.count(batch, bucket, self.block_size)
        return chosen

    def warm_up(self, on_progress: Callable[[int, int], object] = lambda done, total: None) -> None:
        """Run every bucket that a load can need once, on a batch that writes only to the pad block.

        Each number of sampled rows also draws a token once: drawing has operations that the greedy choice has not.

        Args:
            on_progress: called as on_progress(done, total) after each bucket.

        Raises:
            ValueError: the runner has no buckets.
        """
        if self.buckets is None:
            raise ValueError("this runner has no buckets: give `warm_up_on` batches")
        listed, drawn = self.buckets.warm_up_list(), set()
        for done, bucket in enumerate(listed, start=1):
            temperatures = (0.0,) if bucket.rows in drawn else (0.0, 1.0)
            for temperature in temperatures:
                self._compute(self.buckets.padding_batch(self.num_blocks, temperature), bucket)
            drawn.add(bucket.rows)
            on_progress(done, len(listed))

    def warm_up_on(
        self,
        batches: Sequence[PackedBatch],
        on_progress: Callable[[int, int], object] = lambda done, total: None,
    ) -> None:
        """Run these batches once as they are, for an engine without buckets."""
        for done, batch in enumerate(batches, start=1):
            self._compute(batch, None)
            on_progress(done, len(batches))

    def follow(self, batch: PackedBatch, bucket: Bucket | None) -> None:
        """Compute a batch that rank 0 has announced; rank 0 draws the tokens."""
        with self.backend_module.inference():
            self._finish_with_ranks(self._logits(batch, bucket))

    def _compute(self, batch: PackedBatch, bucket: Bucket | None) -> list[Sampled]:
        with self.backend_module.inference():
            logits = self._logits_with_ranks(batch, bucket)
            chosen = [] if logits is None else self._choose(batch, logits)
            for pool in self.pools:
                pool.materialize()
            if logits is None:  # nothing was read, so synchronise before the caller takes the time
                self.backend_module.synchronize(self.device)
        return chosen

    def create_kv_pools(self, num_blocks: int, kv_cache_dtype: str) -> list[Any]:
        """More pools for the model, of another size and type."""
        return self._create_kv_pools(self.model, num_blocks, self.block_size, kv_cache_dtype=kv_cache_dtype)

    def _logits(self, batch: PackedBatch, bucket: Bucket | None) -> Array | None:
        self.make_moves(batch.moves)
        return self._forward_of(bucket)(*self._inputs(batch, bucket))

    def _forward_of(self, bucket: Bucket | None) -> Callable:
        return self._captured if self._is_captured(bucket) else self._plain

    def _inputs(self, batch: PackedBatch, bucket: Bucket | None) -> list[Array]:
        window, sizes = self.model.config.sliding_window, (self.block_size, self.num_blocks)
        inputs = self._inputs_of(batch, *sizes, window)
        if bucket is not None:
            inputs = self._pad_inputs(inputs, bucket, *sizes, window is not None)
        return (inputs if self._takes_lists else inputs.map(self._array)).flatten()

    @property
    def _takes_lists(self) -> bool:
        """Whether the model makes arrays of its inputs by itself, where it needs them."""
        return getattr(self.model.compute, "takes_lists", False)

    def _logits_with_ranks(self, batch: PackedBatch, bucket: Bucket | None) -> Array | None:
        """The logits, which all ranks compute together.

        Raises:
            RankError: a rank is gone, or this one has raised something while others wait for it.
        """
        if self.ranks.size == 1:
            return self._logits(batch, bucket)
        self.ranks.announce(batch, bucket)
        with self.ranks.computing():
            return self._finish_with_ranks(self._logits(batch, bucket))

    def _finish_with_ranks(self, logits: Array | None) -> Array | None:
        """Make all collective calls now, in the order in which the other ranks make them."""
        if logits is not None:
            self.backend_module.evaluate(logits)
        for pool in self.pools:
            pool.materialize()
        return logits

    def _array(self, values: list) -> Array:
        return self.backend_module.to_array(values, device=self.device)

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
