"""Continuous batching as a compiler for fixed shapes would see it, on the torch port: few programs, one read a step."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support.fake_model import ByteTokenizer
from tiny_llm_course.grading.small_models import random_checkpoint, random_weights, small_model
from tiny_llm_course.recorded_operations import record
from tiny_llm_engine.models.checkpoint import Checkpoint
from tiny_llm_ref.serving import Request, SamplingParams, batch_generate

CASE = small_model(1, max_position_embeddings=512)
V = CASE.config.vocab_size
BUCKET = 32


@pytest.fixture(scope="module")
def model(port):
    return port.Qwen3ModelWeek2(random_checkpoint(port, CASE))


class ViewWrites(TorchDispatchMode):
    """Collects the operations that write into a view of another tensor."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.is_mutable and args[0]._is_view():
            self.names.append(operation.name())
        return operation(*args, **(kwargs or {}))


def test_no_cache_is_written_through_a_view(port):
    """A graph captured on a Gaudi does not support it."""
    single, batch = port.TinyKvFullCache(300), port.BatchingKvCache(3, 300)
    tokens = torch.ones(1, 2, 5, 8)
    with ViewWrites() as control:
        torch.zeros(3, 3)[1:].fill_(1)
    with ViewWrites() as writes:
        single.update_and_fetch(tokens, tokens)
        batch.add_request(single, 1)
        batch.update_and_fetch(*2 * [torch.ones(2, 2, 1, 8)])
        batch.remove_request(1)
    assert (len(control.names), writes.names) == (1, []), "the first shows that such a write is seen"


class Recorded:
    """A runner, and of each of its calls (what it was, how many tokens or rows, what torch was asked for)."""

    def __init__(self, runner):
        self.runner, self.steps = runner, []

    def __getattr__(self, name: str):
        return getattr(self.runner, name)

    def prefill(self, tokens, *arguments, **options):
        return self._record(
            "prompt", len(tokens), partial(self.runner.prefill, tokens, *arguments, **options)
        )

    def decode(self, tokens, *arguments, **options):
        last = max(slot for slot, token in enumerate(tokens) if token is not None)
        rows = min(1 << last.bit_length(), len(tokens))
        return self._record("decode", rows, partial(self.runner.decode, tokens, *arguments, **options))

    def _record(self, kind: str, size: int, call):
        chosen = []
        self.steps.append((kind, size, record(lambda: chosen.append(call()))))
        return chosen[0]

    def programs(self, kind: str, size) -> set:
        return {recording.signature for k, n, recording in self.steps if k == kind and size(n)}


def serve(port, model, slots: int, requests: int, params: dict) -> Recorded:
    """Requests of random lengths come and go, all of them within 256 tokens."""
    rng = np.random.default_rng(7)
    recorded = Recorded(port.runner(model, prompt_bucket=BUCKET))
    made = []
    for index in range(requests):
        prompt = rng.integers(0, V, size=rng.integers(2, 120)).tolist()
        sampling = SamplingParams(max_tokens=int(rng.integers(1, 60)), **params)
        made.append(Request(recorded, ByteTokenizer(), prompt, prompt_idx=index, sampling=sampling))
    batch_generate(recorded, ByteTokenizer(), made, max_seq_len=250, batch_size=slots)
    return recorded


@pytest.mark.parametrize(
    ("slots", "requests", "params"), [(1, 3, {}), (3, 7, {"temperature": 0.7, "top_p": 0.9}), (8, 14, {})]
)
def test_a_decode_is_one_program_for_each_number_of_rows(port, model, slots, requests, params):
    """Whoever comes and goes, wherever they stand: only the bucket of rows matters, a power of two or all slots."""
    recorded = serve(port, model, slots, requests, params)
    rows = [size for kind, size, _ in recorded.steps if kind == "decode"]
    assert len(rows) >= 60 and max(rows) == slots
    for bucket in set(rows):
        assert len(recorded.programs("decode", lambda n, b=bucket: n == b)) == 1, f"{bucket} rows"


def test_a_prompt_is_one_program_for_each_bucket(port, model):
    """Also when it fills the bucket to the last place."""
    recorded = Recorded(port.runner(model, prompt_bucket=BUCKET))
    for length in (2, 17, 31, 32, 33, 50, 63, 64, 65, 80, 95, 96):
        recorded.prefill([1] * length, 0, recorded.create_kv_cache(250), sample=True)
    for bucket in (1, 2, 3):
        wanted = partial(lambda n, b: -(-n // BUCKET) == b, b=bucket)
        assert len(recorded.programs("prompt", wanted)) == 1, f"up to {bucket * BUCKET} tokens"


def held(port, length, context):
    """The cache of one request that has this many tokens."""
    own = port.TinyKvFullCache(context)
    own.update_and_fetch(*torch.ones(2, 1, 3, length, 8), length, "causal")
    return own


def test_adding_a_request_is_one_program_whatever_its_slot_and_its_length(port):
    cache, programs = port.BatchingKvCache(8, 250), set()
    for slot, length in enumerate([5, 1, 200, 33, 5, 120, 64, 2]):
        recording = record(partial(cache.add_request, held(port, length, 250), slot))
        assert not recording.host_reads
        if slot:  # the first one makes the arrays
            programs.add(recording.signature)
    assert len(programs) == 1


def test_removing_a_request_is_one_program_whatever_its_slot_and_its_length(port):
    cache, programs = port.BatchingKvCache(3, 250), set()
    for slot, length in enumerate([5, 200, 1]):
        cache.add_request(held(port, length, 250), slot)
    for slot in (2, 0, 1):
        recording = record(partial(cache.remove_request, slot))
        assert not recording.host_reads
        programs.add(recording.signature)
    assert len(programs) == 1


def test_the_memory_of_the_slots_never_moves(port):
    cache, places = port.BatchingKvCache(3, 20), set()
    for slot in (1, 0, 2):
        cache.add_request(held(port, 4 + slot, 20), slot)
        cache.update_and_fetch(*torch.ones(2, 3, 3, 1, 8))
        places.add((cache.keys.data_ptr(), cache.values.data_ptr()))
    assert len(places) == 1


def test_a_step_reads_its_tokens_and_nothing_else(port, monkeypatch):
    """On `meta` there are no numbers, and whatever reads one raises; but the one copy of the tokens is let through."""
    weights = {name: torch.tensor(w, device="meta") for name, w in random_weights(CASE).items()}
    runner = port.runner(port.Qwen3ModelWeek2(Checkpoint(CASE.config, weights)), prompt_bucket=BUCKET)
    runner.device = "meta"
    copies = []
    monkeypatch.setattr(
        torch.Tensor, "tolist", lambda self: copies.append(tuple(self.shape)) or [0] * self.shape[0]
    )
    own, batch = runner.create_kv_cache(250), runner.create_batch_cache(4, 250)
    warm = SamplingParams(0.7, top_p=0.9, top_k=5)
    assert runner.prefill([1, 2, 3], 0, own, sampling=warm, sample=True) == 0
    for layer, shared in zip(own, batch, strict=True):
        shared.add_request(layer, 2)
    assert copies == [(1,)], "a prompt: one copy of one token"
    for sampling in (None, warm):
        runner.decode([None, None, 5, None], [0, 0, 3, 0], batch, sampling=[None, None, sampling, None])
        assert copies.pop() == (4,) and len(copies) == 1, "a decode: one copy of a token for each row"
    assert runner.prefill([1] * 9, 0, runner.create_kv_cache(250), sample=False) is None
    assert copies == [(1,)], "nothing sampled, nothing copied"
