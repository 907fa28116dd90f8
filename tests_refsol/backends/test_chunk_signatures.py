"""Chunked prefill as a compiler for fixed shapes would see it, on the torch port: programs as arithmetic says."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from support.fake_model import ByteTokenizer
from tiny_llm_course.grading.small_models import random_checkpoint
from tiny_llm_course.recorded_operations import record
from tiny_llm_course.see.week_2_day_7_graphs import CASE, CHUNK, CHUNKINGS, LIMIT, keys_read, run, whole_steps
from tiny_llm_ref.serving import ChunkedPrefillScheduler, Request, SamplingParams, Turns

V = CASE.config.vocab_size


@pytest.mark.parametrize("name", ["ladder", "padded", "static"])
def test_aligned_contexts_are_as_many_programs_as_arithmetic_says(port, name):
    policy = CHUNKINGS[name]
    layer = run(port, policy, policy.chunks())
    sizes, contexts = policy.product
    assert (len(layer.programs), layer.host_reads) == (sizes * contexts, 0)


@pytest.mark.parametrize(
    ("name", "contexts"), [("any block", range(0, 1024, 128)), ("aligned", (0, 512, 1024))]
)
def test_every_size_behind_every_context_is_a_program(port, name, contexts):
    policy = replace(CHUNKINGS[name], contexts=contexts)
    sizes, count = policy.product
    assert len(run(port, policy, policy.chunks()).programs) == sizes * count


def test_a_whole_prompt_is_a_program_for_each_step_of_its_length(port):
    lengths = [*range(1, 1024, 77), 1024]
    programs = run(port, CHUNKINGS["whole"], [(0, length) for length in lengths]).programs
    assert len(programs) == len({-(-length // 128) for length in lengths}) == 8


def test_the_policies_are_those_of_the_issue():
    products = {name: np.prod(policy.product) for name, policy in CHUNKINGS.items()}
    assert products == {"whole": 64, "any block": 256, "aligned": 64, "ladder": 48, "padded": 16, "static": 1}
    beyond = 256 - len(list(CHUNKINGS["any block"].chunks()))
    assert beyond == sum(1 for c in range(64) for size in (1, 2, 3, 4) if c + size > 64) == 6


def test_a_step_without_the_head_is_another_program(port):
    """Behind every context but the last, where no more than one chunk fits."""
    assert whole_steps(port, CHUNKINGS["padded"]) == 16 + 15


def test_one_program_reads_the_whole_cache_every_time(port):
    assert keys_read(port, CHUNKINGS["static"], 1000) == 2 * LIMIT
    assert keys_read(port, CHUNKINGS["padded"], 1000) == CHUNK + 2 * CHUNK


def test_the_memory_of_a_prefill_never_moves(port):
    runner = port.runner(port.Qwen3ModelWeek2(random_checkpoint(port, CASE)))
    request = Request(runner, ByteTokenizer(), [1] * 700, prefill_max_step=64, max_seq_len=800)
    places = set()
    while not request.is_prefill_done:
        request.try_prefill()
        parts = [part for cache in request.kv_cache for part in (cache.keys, cache.values)]
        places.add(tuple(map(torch.Tensor.data_ptr, parts)))
    assert len(places) == 1


# A scheduler at work.

SLOTS, SIZES, LONGEST = 3, (16, 32, 64), 400


class Programs:
    """A runner that writes down what each of its calls asks torch for, and each request that comes and goes."""

    def __init__(self, runner):
        self.runner, self.seen = runner, set()

    def __getattr__(self, name: str):
        return getattr(self.runner, name)

    def prefill(self, *arguments, **options) -> int | None:
        return self._record(lambda: self.runner.prefill(*arguments, **options))

    def decode(self, *arguments, **options) -> list[int | None]:
        return self._record(lambda: self.runner.decode(*arguments, **options))

    def _record(self, call):
        chosen = []
        self.seen.add(record(lambda: chosen.append(call())).signature)
        return chosen[0]

    def create_batch_cache(self, *arguments) -> list:
        layers = self.runner.create_batch_cache(*arguments)
        for layer in layers:
            for name in ("add_request", "remove_request"):
                setattr(layer, name, self._recorded(getattr(layer, name)))
        return layers

    def _recorded(self, call):
        def recorded(*arguments):
            self.seen.add(record(lambda: call(*arguments)).signature)

        return recorded


def warm_up(runner: Programs) -> None:
    """Every size behind every context, sampled or not; every number of rows in a short and in a long batch."""
    for context in range(0, 320, SIZES[-1]):
        for size, sample in [*((size, True) for size in SIZES), (SIZES[-1], False)]:
            own = runner.create_kv_cache(LONGEST)
            if context:
                runner.runner.prefill([1] * context, 0, own, sample=False)
            runner.prefill([1] * size, context, own, sample=sample)
    for length in (5, 300):
        batch, own = runner.create_batch_cache(SLOTS, LONGEST), runner.create_kv_cache(LONGEST)
        runner.runner.prefill([1] * length, 0, own, sample=False)
        for slot in range(SLOTS):
            for layer, shared in zip(own, batch, strict=True):
                shared.add_request(layer, slot)
            tokens = [1 if i <= slot else None for i in range(SLOTS)]
            runner.decode(tokens, [length + slot - i for i in range(SLOTS)], batch)
        for layer in batch:
            layer.remove_request(0)


def test_after_warm_up_five_hundred_mixed_steps_add_no_program(port):
    """Prompts of any length come and go, pause and resume, and decode beside each other."""
    model = port.Qwen3ModelWeek2(random_checkpoint(port, CASE), "device")
    options = {"chunk_mask": port.chunked_attention_mask, "pad_last": "chunk", "chunk_sizes": SIZES}
    runner = Programs(port.runner(model, **options))
    warm_up(runner)
    warm, events, rng = set(runner.seen), [], np.random.default_rng(7)

    def note(event):
        events.extend([event.kind, *(part.kind for part in event.parts)])

    options = {"turns": Turns(pause_prefill=True), "on_event": note}
    scheduler = ChunkedPrefillScheduler(runner, SLOTS, SIZES[-1], LONGEST, **options)
    for index in range(500):
        if index % 9 == 0 or len(scheduler.turns.queue) < 2:
            prompt = rng.integers(0, V, size=int(rng.integers(1, 319))).tolist()
            sampling = SamplingParams(max_tokens=int(rng.integers(1, 60)))
            scheduler.add(Request(runner, ByteTokenizer(), prompt, prompt_idx=index, sampling=sampling))
        assert scheduler.step()
    scheduler.close()
    assert min(map(events.count, ("chunk", "decode", "finish", "pause", "resume"))) >= 20, "it was mixed"
    assert not runner.seen - warm, f"{len(runner.seen - warm)} programs beside the {len(warm)} of the warm-up"
