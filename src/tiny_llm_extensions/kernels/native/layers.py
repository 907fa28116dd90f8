"""A step in one call, by `layers.cpp`: what it reads, and the call."""

from array import array
from collections.abc import Callable, Sequence
from itertools import accumulate, chain, groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from tiny_llm_engine.arrays.layers import Array
from tiny_llm_engine.packed_model import PackedInputs, PastReads

from ..kernel_matrix import NO_MATRIX, is_native
from .attention import KEPT, TOKENS, DecodeKernel, RunArrays, Runs, run_arrays
from .kernel import FLOAT, NUMBER, POINTER, TILES, Kernel, NativeArray, PortArrays, ProductKernel, empty
from .layer_fields import LayerFields, can_compute, can_look_up, columns_of_mlp
from .library import GIVEN, NativeError, library
from .quantized_product import QuantizedKernel

POOL_FIELDS = 4  # of a `Pool` in C++: keys, values and their scales
TEXT_FIELDS = 4  # of a `Text`
INCLUDED = "between_products.cpp", "prompt_attention.cpp", "unit_attention.h", *TILES


class LayersKernel(Kernel):
    """`layers.cpp`, with the files of a solution.

    Args:
        package: the package of the solution, which has the files.
        kernels: one for each of the files that it includes.
    """

    file = "layers.cpp"
    tasks = ProductKernel.tasks | QuantizedKernel.tasks | DecodeKernel.tasks

    def __init__(self, package: str, kernels: tuple[ProductKernel, QuantizedKernel, DecodeKernel]):
        super().__init__(package)
        self.kernels = kernels

    def compute_of(self, kept: str) -> Callable[..., int]:
        """The function for pages that keep numbers of this type, see `KEPT`. Nothing is checked.

        In C: (Step* step, float eps, float scale, bool all_bf16, int threads).

        Raises:
            NativeError: there is no such kernel on this machine.
        """
        if kept not in self._functions:
            files = (
                *((file, GIVEN) for file in INCLUDED),
                *((kernel.file, self.package) for kernel in self.kernels),
            )
            function = library(self.file, GIVEN, files, KEPT.get(kept, ())).compute_layers
            function.argtypes = [POINTER, FLOAT, FLOAT, NUMBER, NUMBER]
            self._functions[kept] = function
        return self._functions[kept]

    def try_out(self) -> None:
        """See `Kernel`: each of the files, for a task that is met in a layer has written to pages already."""
        for problem in filter(None, (kernel.problem for kernel in self.kernels)):
            raise NativeError(problem)
        step = np.zeros(32, np.int64)  # of no layers
        self.check(self.compute_of("bfloat16")(step.ctypes.data, 0.0, 0.0, True, 1))


class NativeStep:
    """A step in one call.

    Operation by operation, a layer is thirty to forty calls of an array library. For one token of a small model they
    take many times as long as reading the weights. The call writes the keys and values of the step where they belong;
    nothing else reads these pools meanwhile. A packed table and a packed head are parts of the call; the model computes
    others.

    Args:
        model: one that the kernel `can_compute`.
        kernel: `layers.cpp` with the solution's kernels.
        arrays: of the port.
    """

    takes_lists = True  # a runner need not make arrays of its inputs

    def __init__(self, model: Any, kernel: LayersKernel, arrays: PortArrays):
        self.kernel, self.arrays, config = kernel, arrays, model.config
        heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.sizes = model.norm.weight.shape[0], *heads, max(map(columns_of_mlp, model.layers))
        self.eps, self.scale = model.norm.eps, config.head_dim**-0.5
        table, head = model.embedding.weight, model.w_lm_head
        self.has_table, self.has_head = can_look_up(table, model.norm.weight.dtype), is_native(head)
        fields = self._fields = LayerFields(arrays)
        before = fields.matrix(table) if self.has_table else NO_MATRIX
        after = fields.matrix(head) if self.has_head else NO_MATRIX
        self._layers = array("q", chain(*map(fields.layer, model.layers)))
        self._ends = array("q", [*before, fields.address(model.norm.weight), *after])
        self._angles = [fields.address(part) for part in (model.rope.cos, model.rope.sin)]

    def _as_array(self, numbers: Any) -> Array:
        return self.arrays.of_integers(numbers) if isinstance(numbers, list) else numbers

    def __call__(self, model: Any, inputs: PackedInputs, pools: Sequence[Any]) -> Array | None:
        """See `Qwen3ModelWeek3`. The inputs are lists, or arrays.

        Before the call only numbers of Python and NumPy are touched, where that is possible: when the weights of a step
        have gone through the caches, the first operation of an array library takes some fifty microseconds.
        """
        reads = step_reads(inputs, pools[0].page_size, model.config.sliding_window is not None)
        own = inputs.positions, inputs.slots, inputs.token_ids, inputs.sample_rows
        rows = [
            array("q", part if isinstance(part, list) else () if part is None else part.tolist())
            for part in own
        ]
        ids, sampled = rows[2:]
        pages = array("q", chain(*(self._pool(pool) for pool in pools)))
        dtype = self.arrays.names[model.norm.weight.dtype]
        begun = None if self.has_table else model.embedding(self._as_array(inputs.token_ids))
        x = empty((len(ids), self.sizes[0]), dtype) if begun is None else self.arrays.native_array(begun)
        logits = empty((len(sampled), model.config.vocab_size), dtype)
        addresses = [x.address, logits.address, *self._angles, *(part.address for part in reads.runs)]
        tables = map(_address, (*rows, reads.texts, reads.slots, self._layers, self._ends, pages))
        counts = len(pools), len(sampled), len(reads.texts) // TEXT_FIELDS, len(reads.slots)
        sizes = *counts, model.config.sliding_window or 0, len(ids), *self.sizes
        step, kept = array("q", [*addresses, *tables, *sizes]), self.arrays.names[pools[0].keys.dtype]
        flags = self.eps, self.scale, dtype == "bfloat16", self.arrays.threads()
        if (blank := self.kernel.compute_of(kept)(_address(step), *flags)) != 0:
            self.kernel.check(blank)
        if not sampled:
            return None
        if self.has_head:
            return self.arrays.written(logits)
        return model.finish(self.arrays.written(x)[None], self._as_array([*sampled]))

    def _pool(self, pool: Any) -> Sequence[int]:
        """A `Pool`; its addresses are asked once for as long as only kernels write to it."""
        if not pool.known_addresses:
            pool.known_addresses = [*self.arrays.addresses_of(pool), 0, 0][:POOL_FIELDS]
        return pool.known_addresses


def use_native_step(model: Any, kernel: LayersKernel, arrays: PortArrays) -> None:
    """Puts a `NativeStep` on a model that it can compute, where the kernel works."""
    if can_compute(model) and kernel.works:
        model.compute = NativeStep(model, kernel, arrays)


def _address(fields: array) -> int:
    return fields.buffer_info()[0]


class CallReads(NamedTuple):
    """What a step reads, as `layers.cpp` takes it.

    Args:
        texts: of each chunk its first row, its rows, the slots that it reads, and where these begin in `slots`.
        slots: of the pasts and the rows of all chunks, those of each filled up to a multiple of `TOKENS`.
        runs: what the rows of decodes read, see `DecodeKernel.attend`: in layers without a window, then in those with
            one.
    """

    texts: array
    slots: array
    runs: tuple[NativeArray, ...]


def step_reads(inputs: PackedInputs, page_size: int, has_windows: bool) -> CallReads:
    """What the requests of a step read; the inputs are lists, or arrays, which are read for it."""
    requests = rows_of_requests(inputs.segments)
    runs = windowed = row_runs(inputs, inputs.decodes, requests, page_size)
    if has_windows:
        windowed = row_runs(inputs, inputs.window_decodes, requests, page_size)
    return CallReads(*step_texts(inputs, requests, page_size), (*runs, *windowed))


def rows_of_requests(segments: Any) -> list[tuple[int, int]]:
    """The first row of each request of a step, and the one after its last."""
    sizes = [len(list(rows)) for _, rows in groupby(listed(segments))]
    return list(pairwise(accumulate(sizes, initial=0)))


def row_runs(
    inputs: PackedInputs, reads: PastReads | None, requests: Sequence[tuple[int, int]], page_size: int
) -> RunArrays:
    """What each row of a step reads, see `DecodeKernel.attend`; the rows of chunks read nothing.

    Args:
        reads: the pasts of requests of one row.
        requests: see `rows_of_requests`.
    """
    past, own = past_runs(reads, page_size), listed(inputs.slots)
    runs: list[Runs] = [[] for _ in own]
    for start, stop in requests:
        if stop - start == 1:
            runs[start] = [*past.get(start, ()), (own[start], 1)]
    return run_arrays(runs)


def step_texts(
    inputs: PackedInputs, requests: Sequence[tuple[int, int]], page_size: int
) -> tuple[array, array]:
    """`CallReads.texts` and their slots; arguments as those of `row_runs`."""
    past, own = past_runs(inputs.chunks, page_size), listed(inputs.slots)
    texts, slots = array("q"), array("q")
    for start, stop in requests:
        if stop - start > 1:
            before = len(slots)
            for first, count in past.get(start, ()):
                slots.extend(range(first, first + count))
            slots.extend(own[start:stop])
            tokens = len(slots) - before
            texts.extend((start, stop - start, tokens, before))
            slots.extend([0] * (-tokens % TOKENS))
    return texts, slots


def past_runs(past: PastReads | None, page_size: int) -> dict[int, Runs]:
    """For each row with a past the runs of it, first slot and count. A run is at most a page."""
    if past is None:
        return {}
    rows, groups, blocks = listed(past.rows), listed(past.groups), past.blocks
    runs: dict[int, Runs] = {group: [] for group in groups}
    parts = blocks.block_groups, blocks.block_list, blocks.block_starts, blocks.block_usage
    for group, block, start, end in zip(*map(listed, parts), strict=True):
        if group in runs and end > start:
            runs[group].append((block * page_size + start, end - start))
    # Rows and groups of padding, see `padding.py`, read nothing.
    return {row: runs[group] for row, group in zip(rows, groups, strict=True) if group >= 0 and runs[group]}


def listed(numbers: Any) -> list[int]:
    """Integers as a list; an array is read for it."""
    return numbers if isinstance(numbers, list) else numbers.tolist()
