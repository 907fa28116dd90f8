"""Buckets as a product: after a warm-up no step has a new shape, nothing is read inside a step, and answers stay.

A shape is what a compiler for fixed shapes sees: on the torch port every operation with its shapes, strides, types and
Python numbers; on the MLX port how often `mx.compile` calls the function that it was given.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_model import ByteTokenizer
from support.served import Guesses
from tiny_llm_course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_course.grading.small_models import random_checkpoint, random_weights, small_model
from tiny_llm_course.recorded_operations import record
from tiny_llm_engine.engine_options import EngineLimits
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.gaudi.lone_prompts import put_lone_prompts_on
from tiny_llm_extensions.graphs import step_shapes
from tiny_llm_extensions.graphs.padded_steps import warm_up
from tiny_llm_extensions.graphs.step_shapes import StepShapes, limits_of_steps
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.runners import packed_runner
from tiny_llm_ref import serving
from tiny_llm_ref.serving import (
    POLICIES,
    BlockAllocator,
    Buckets,
    HybridScheduler,
    PackedBatch,
    PackedInputs,
    Sampled,
    SamplingParams,
    Sequence,
    choose_k,
    make_buckets,
)

LEN, PAGE, SEQS, BUDGET, BLOCKS = 40, 4, 6, 24, 24
CASE = small_model(
    4,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    intermediate_size=8,
    vocab_size=31,
    max_position_embeddings=LEN,
    rms_norm_eps=1e-6,
    rope_theta=1e4,
)
STRATEGIES = ("exponential", "linear", "padding-aware")


def buckets_of(strategy="exponential", **limits) -> Buckets:
    return make_buckets(strategy, BUDGET, SEQS, LEN, PAGE, **limits)


class Load:
    """Random requests for a runner: some share beginnings, some draw, blocks are scarce."""

    def __init__(self, runner, seed=0):
        self.rng, self.sequences, self.preemptions = random.Random(seed), [], 0
        allocator = BlockAllocator(BLOCKS, PAGE, watermark=0.0)
        limits = {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS, "buckets": runner.buckets}
        self.loop = make_loop(serving, "hybrid", runner, allocator, on_event=self._hear, **limits)

    def _hear(self, event):
        self.preemptions += event.kind == "preempt"

    def _request(self):
        shared = [3] * self.rng.choice([0, 0, 9, 17])
        own = [self.rng.randrange(31) for _ in range(self.rng.randint(1, 14))]
        sampling = SamplingParams(
            max_tokens=self.rng.randint(1, 20),
            temperature=self.rng.choice([0.0, 0.0, 0.8]),
            seed=0,
            ignore_eos=True,
        )
        number = len(self.sequences)
        return Sequence(shared + own, ByteTokenizer(), request_id=number, sampling=sampling, max_seq_len=LEN)

    def run(self, steps: int) -> None:
        """So many steps that compute something; requests arrive in between."""
        while steps:
            if len(self.loop.waiting) < 3 and self.rng.random() < 0.4:
                self.sequences.append(self._request())
                self.loop.add(self.sequences[-1])
            steps -= self.loop.step()


@pytest.fixture(scope="module")
def torch_port():
    return Port("tiny_llm_ref", "torch", "cpu")


def key_of(arrays) -> tuple:
    """What a compiler looks a graph up by: the shapes and types of all arrays that a step is given, and which exist."""
    return tuple(None if array is None else (tuple(array.shape), array.dtype) for array in arrays)


class Recorded:
    """A runner, and what its steps ask torch for: all keys, and of some steps every operation.

    Args:
        every: one in so many steps is computed, and recorded operation by operation; the others give zeros.
    """

    def __init__(self, port, buckets, every=1):
        self.port, self.every, self.calls = port, every, 0
        model = port.Qwen3ModelWeek3(random_checkpoint(port, CASE), "simple")
        self.runner = packed_runner(port, model, BLOCKS, PAGE, buckets=buckets, capture=self._capture)
        self.launch, self.runner.sampler.launch = self.runner.sampler.launch, self.sample
        self.operations, self.samplers, self.host_reads = {}, set(), 0  # operations by the key of the step

    def _capture(self, step):
        self._step = step
        return self

    def __call__(self, *arrays):
        key, self.calls = key_of(arrays), self.calls + 1
        if self.calls % self.every:
            assert key in self.operations
            sample_rows = PackedInputs.of(arrays).sample_rows
            return self.port.array(np.zeros((len(sample_rows), CASE.config.vocab_size)))
        out = []
        recording = record(lambda: out.append(self._step(*arrays)))
        self.host_reads += len(recording.host_reads)
        assert self.operations.setdefault(key, recording.signature) == recording.signature
        return out[0]

    def sample(self, *arguments):
        out = []
        self.samplers.add(record(lambda: out.append(self.launch(*arguments))).signature)
        return out[0]

    @property
    def shapes(self) -> tuple[int, int]:
        """Different steps and different samplers, by their operations."""
        return len(set(self.operations.values())), len(self.samplers)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_after_a_warm_up_no_step_has_a_new_shape(torch_port, strategy):
    """One shape per bucket, and two per number of rows for the sampler; no number is read inside the model.

    Every step has a known key, and one in ten, which is recorded whole, the operations that belong to its key.
    """
    buckets = buckets_of(strategy)
    recorded, listed = Recorded(torch_port, buckets), buckets.warm_up_list()
    warm_up(recorded.runner)
    assert recorded.shapes == (len(listed), 2 * len({bucket.rows for bucket in listed}))
    warm, recorded.every = recorded.shapes, 10
    load = Load(recorded.runner)
    load.run(200)
    assert recorded.shapes == warm and recorded.host_reads == 0
    assert load.preemptions and any(one.num_cached for one in load.sequences), "the load is a hard one"


def test_a_gaudi_has_a_second_graph_for_a_prompt_alone_and_warms_it_up(torch_port, monkeypatch):
    port = SimpleNamespace(device="hpu")
    has = {"fixed_sizes": lambda device: ("tokens", "pages"), "cannot_compile": lambda device: None}
    monkeypatch.setattr(step_shapes, "given_of", lambda port: SimpleNamespace(**has))
    options = EngineOptions(block_size=PAGE, max_num_seqs=SEQS, enable_prefix_caching=True)
    shapes = StepShapes(port, serving, options, EngineLimits(LEN, BUDGET, True), BLOCKS)
    listed = shapes.buckets.warm_up_list()
    alone = [bucket for bucket in listed if bucket.size[1:] == (0, 0)]
    assert shapes.num_shapes == len(listed) + len(alone) and len(alone) == 2
    assert shapes.largest_bias == (24, 24 + 60 * PAGE), "padding counts: the requests have 60 pages at most"
    recorded = Recorded(torch_port, shapes.buckets)
    put_lone_prompts_on(recorded.runner)
    shapes.warm_up(recorded.runner)
    assert len(recorded.operations) == shapes.num_shapes
    recorded.every, met = 10, set()
    recorded.runner.before.append(
        lambda batch: met.add((batch.context_lens == [0], len(batch.token_ids) > 1))
    )
    load = Load(recorded.runner)
    load.run(200)
    assert len(recorded.operations) == shapes.num_shapes and (True, True) in met


def test_where_pages_are_not_padded_the_rows_have_few_shapes(torch_port):
    """What only depends on rows: the layers' first and last part, and the head."""
    buckets = buckets_of(pad_pages=False)
    model = torch_port.Qwen3ModelWeek3(random_checkpoint(torch_port, CASE), "device")
    runner, shapes = packed_runner(torch_port, model, BLOCKS, PAGE, buckets=buckets), set()
    head = model.head
    model.head = lambda x: shapes.add(tuple(x.shape)) or head(x)
    [layer] = model.layers
    project_out = layer.project_out
    layer.project_out = lambda x, heads: shapes.add((*x.shape, *heads.shape)) or project_out(x, heads)
    warm_up(runner)
    warm = set(shapes)
    assert len(warm) == len(buckets.warm_up_list()) + len({bucket.rows for bucket in buckets.warm_up_list()})
    Load(runner).run(50)
    assert shapes == warm


class OnMeta:
    """A runner on `meta`, where whatever reads a number raises; but the copies of tokens are let through, and kept."""

    def __init__(self, monkeypatch, port, **options):
        import torch

        weights = {name: torch.tensor(w, device="meta") for name, w in random_weights(CASE).items()}
        model = port.Qwen3ModelWeek3(Checkpoint(CASE.config, weights), "device")
        few = {
            "decode_tokens": (2, SEQS),
            "chunk_tokens": (BUDGET,),
            "decode_pages": (60,),
            "chunk_pages": (60,),
        }
        buckets = replace(buckets_of(), **few)
        self.copies: list[str] = []  # what was begun, and what was read
        self.shapes: list[tuple[int, ...]] = []
        monkeypatch.setattr(port.backend_module, "start_read", self._start)
        monkeypatch.setattr(port.backend_module, "threads_compute", lambda device: False)
        self.runner = packed_runner(port, model, BLOCKS, PAGE, buckets=buckets, **options)
        self.runner.device = self.runner.sampler.device = "meta"

    def _start(self, array):
        number = len(self.shapes)
        self.shapes.append(tuple(array.shape))
        self.copies.append(f"begin {number}")

        def read():
            self.copies.append(f"read {number}")
            return np.zeros(array.shape, int)

        return read


BATCH = PackedBatch(
    [1, 2, 3], [4, 0, 1], [9, 0, 1], [0, 1, 3], [4, 0], [[0, 1], [2]], [0], [SamplingParams()]
)


def test_a_step_reads_its_tokens_and_nothing_else(monkeypatch, torch_port):
    made = OnMeta(monkeypatch, torch_port)
    warm_up(made.runner)
    rows = [bucket.rows for bucket in made.runner.buckets.warm_up_list()]
    assert len(made.shapes) == len(rows) + len(set(rows)) and set(made.shapes) == {(count,) for count in rows}
    made.shapes.clear()
    assert [one.token for one in made.runner.run(BATCH)] == [0] and made.shapes == [(6,)]


def test_a_step_that_runs_ahead_reads_its_tokens_after_the_next_one_is_submitted(monkeypatch, torch_port):
    """Also when that one takes its token from the device: one read per step, one step late."""
    made = OnMeta(monkeypatch, torch_port, async_scheduling=True)
    ahead = replace(BATCH, token_ids=[0, 2, 3], positions=[5, 0, 1], sources=[0, -1, -1])
    for batch in (BATCH, ahead):
        made.runner.submit(batch)
    assert [one.token for one in made.runner.collect()] == [0]
    made.runner.submit(ahead)
    made.runner.collect()
    assert made.copies == ["begin 0", "begin 1", "read 0", "begin 2", "read 1"]


class Traced:
    """A runner whose whole steps are functions of `mx.compile`; counts how often their Python runs."""

    def __init__(self, port):
        import mlx.core as mx

        self.port, self.traces, self._compile = port, 0, mx.compile
        model = port.Qwen3ModelWeek3(random_checkpoint(port, CASE), "simple")
        self.runner = packed_runner(port, model, BLOCKS, PAGE, buckets=buckets_of(), capture=self._capture)

    def _capture(self, step):
        self._step, self._compiled = step, self._compile(self._traced)
        return self

    def __call__(self, *arrays):
        [pool] = self.runner.pools
        before = pool.keys, pool.values
        self._missing = [array is None for array in arrays]
        logits = self._compiled([array for array in arrays if array is not None], *before)
        pool.keys, pool.values = before
        return self.port.array(np.zeros(logits.shape))  # what is never evaluated is traced, but not built

    def _traced(self, arrays, keys, values):
        self.traces += 1
        [pool], rest = self.runner.pools, iter(arrays)
        pool.keys, pool.values = keys, values
        return self._step(*(None if missing else next(rest) for missing in self._missing))


def test_mlx_traces_each_bucket_once():
    """`mx.compile` runs the function that it is given once for each set of shapes. Reading a number in it raises."""
    made = Traced(Port("tiny_llm_ref", "mlx", "cpu"))
    warm_up(made.runner)
    warm = made.traces
    assert warm == len(made.runner.buckets.warm_up_list())
    Load(made.runner).run(200)
    assert made.traces == warm


@pytest.mark.parametrize("backend", installed_backends())
def test_a_warm_up_changes_the_pad_page_alone(backend):
    """And tells how far it is."""
    port = Port("tiny_llm_ref", backend, "cpu")
    model = port.Qwen3ModelWeek3(random_checkpoint(port, CASE), "device")
    runner, told = packed_runner(port, model, BLOCKS, PAGE, buckets=buckets_of()), []
    warm_up(runner, lambda done, total: told.append((done, total)))
    count = len(runner.buckets.warm_up_list())
    assert told == [(done, count) for done in range(1, count + 1)]
    for pool in runner.pools:
        for part in (pool.keys, pool.values):
            assert not port.numpy(part)[:-PAGE].any()
    assert runner.computed_tokens == 0, "a warm-up is nobody's work"


ENGINES = [("hybrid", True), ("hybrid", False), ("separate", True)]
ENGINES += [(policy, True) for policy in POLICIES if policy != "slack"]  # that one needs a profile


@pytest.mark.parametrize(("policy", "chunked"), ENGINES)
@given(
    seed=st.integers(0, 10**6),
    strategy=st.sampled_from(STRATEGIES),
    pages=st.booleans(),
    drafting=st.booleans(),
)
@settings(max_examples=15, deadline=None)
def test_every_answer_is_the_one_without_buckets_and_every_call_has_a_bucket(
    policy, chunked, seed, strategy, pages, drafting
):
    """Random loads on a model that checks every batch, under every policy, with the limits that the engine knows.

    Drafts are right up to a place that changes from step to step.
    """
    rng = random.Random(seed)
    has_chunks = chunked and POLICIES.get(policy, HybridScheduler).cuts_prompts
    budget, caching = BUDGET if has_chunks else LEN, rng.random() < 0.5
    has_drafts = drafting and policy not in POLICIES
    limits = {} if caching else limits_of_steps(None if has_drafts else policy, has_chunks, BLOCKS)
    buckets = make_buckets(strategy, budget, SEQS, LEN, PAGE, pad_pages=pages, **limits)
    allocator = BlockAllocator(BLOCKS, PAGE, enable_prefix_caching=caching)
    model, met = FakePackedModel(allocator, Sampled, max_model_len=LEN), set()
    run = model.run
    model.run = lambda batch: met.add(buckets.of(batch)) or run(batch)
    options = {"max_num_batched_tokens": budget, "max_num_seqs": SEQS, "enable_chunked_prefill": chunked}
    if has_drafts:
        guesses = Guesses(lambda right, sequence: [*right[: rng.randrange(6)], 97], model)
        options["drafts"] = Proposals(choose_k, guesses, SEQS - 1)
    loop = make_loop(serving, policy, model, allocator, buckets=buckets, clock=model.clock, **options)
    made = []
    for number in range(rng.randint(1, 14)):
        prompt = [97] * rng.choice([0, 8, 12]) + [rng.randrange(97, 120) for _ in range(rng.randint(1, 24))]
        sampling = SamplingParams(max_tokens=rng.randint(1, 12), ignore_eos=True)
        made.append(Sequence(prompt, ByteTokenizer(), request_id=number, sampling=sampling, max_seq_len=LEN))
        loop.add(made[-1])
        for _ in range(rng.choice([0, 0, 1, 3])):
            loop.step()
    while loop.has_work_remaining():
        assert loop.step() or not loop.has_work_remaining()
    for one in made:
        assert one.tokens == model.answer_alone(one.prompt_tokens, one.max_new_tokens)
    assert met <= set(buckets.warm_up_list())
    assert all(len(batch.sample_rows) <= SEQS for batch in model.batches), "drafts beyond the rows of a step"


TOO_SHORT = [
    ({"decode_tokens": (1, 2)}, {}, "decode_tokens of the buckets ends with 2"),
    ({"chunk_tokens": (12, 16)}, {}, "chunk_tokens of the buckets ends with 16"),
    ({"chunk_tokens": (20, 24)}, {"mixed_steps": False}, "max_num_batched_tokens is 24"),
]


@pytest.mark.parametrize(("ladders", "options", "says"), TOO_SHORT)
def test_ladders_that_are_too_short_are_one_line(ladders, options, says):
    model = FakePackedModel(BlockAllocator(BLOCKS, PAGE), Sampled, max_model_len=LEN)
    options |= {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS}
    with pytest.raises(ValueError, match=rf"^{says}.*$"):
        make_loop(
            serving, "hybrid", model, model.allocator, buckets=replace(buckets_of(), **ladders), **options
        )


def test_a_budget_that_is_lowered_while_it_runs_stops_nobody():
    """The server's slider may go below the smallest padded chunk: such a chunk is the smallest step there is."""
    model = FakePackedModel(BlockAllocator(BLOCKS, PAGE), Sampled, max_model_len=LEN)
    options = {"max_num_batched_tokens": BUDGET, "max_num_seqs": SEQS, "buckets": buckets_of()}
    loop = make_loop(serving, "hybrid", model, model.allocator, **options)
    loop.scheduler.max_num_batched_tokens = SEQS
    loop.add(Sequence([97] * 30, ByteTokenizer(), max_seq_len=LEN, sampling=SamplingParams(max_tokens=2)))
    while loop.has_work_remaining():
        assert loop.step() or not loop.has_work_remaining()


# ---- graphs with and without chunks, as the appendix on Gaudi has them


@pytest.mark.parametrize(
    "strategy, length, pad_pages, whole, two_calls, one_call",
    [
        ("exponential", 2048, True, 32, 55, 85),
        ("exponential", 8192, True, 44, 95, 135),
        ("linear", 8192, True, 200, 206, 254),
        ("linear", 32768, True, 764, 626, 686),
        ("linear", 8192, False, 71, 11, 11),
    ],
)
def test_the_appendix_counts_graphs(strategy, length, pad_pages, whole, two_calls, one_call):
    def count(budget, **readers):
        made = make_buckets(strategy, budget, 16, length, 128, pad_pages=pad_pages, **readers)
        return len(made.warm_up_list())

    assert count(length, chunk_readers=0, decode_readers=0) == whole
    assert count(512, chunk_readers=1, decode_readers=1) == two_calls
    assert count(512, chunk_readers=1) == one_call
