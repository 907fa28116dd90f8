"""Week 2 Day 7: chunked prefill, the side of the arrays: masks, logits, keys and values in float32.

Oracles: NumPy in float64; one call of Day 2.1's model with the whole prompt.
"""

import numpy as np
import pytest

from support.close import assert_close
from support.fake_model import ByteTokenizer
from support.masks import (
    FAR_STARTS,
    MANY,
    SHORT_TYPES,
    assert_no_loop,
    assert_shows,
    assert_traces,
)
from tiny_llm_course.grading.small_models import random_checkpoint, small_model

CHUNKED_QWEN = small_model(
    27, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=600
)


def causal_rows(start: int, size: int, total: int) -> np.ndarray:
    """Rows [start, start + size) of the causal mask, over so many keys: (size, total)."""
    return np.where(np.arange(total) <= np.arange(start, start + size)[:, None], 0.0, -np.inf)


# Task 2.7.6: the mask.


@pytest.mark.task("2.7.6")
@pytest.mark.parametrize(("start", "size"), [(0, 1), (0, 5), (3, 1), (4, 3), (1, 6), (130, 7)])
def test_chunked_prefill_mask_is_rows_of_the_causal_mask(b, start, size):
    """Rows [start, start + size) of the causal mask of the whole prompt: (L, S) with S = start + size."""
    mask = b.numpy(b.chunked_attention_mask(start, size))
    assert mask.shape == (size, start + size), f"(L, S) is ({size}, {start + size}), not {mask.shape}"
    assert_close(
        mask, causal_rows(start, size, start + size), atol=0, idea=f"a chunk of {size} after {start}"
    )


@pytest.mark.task("2.7.6")
def test_chunked_prefill_masks_of_all_chunks_are_the_whole_mask(b):
    """Cut anywhere, the chunks' rows below each other are the causal mask of Day 1.3."""
    whole = b.numpy(b.causal_mask(11, 11, b.dtype("float32")))
    for start, stop in ((0, 1), (1, 4), (4, 9), (9, 11)):
        mask = b.numpy(b.chunked_attention_mask(start, stop - start, 11))
        assert_close(mask, whole[start:stop], atol=0, idea=f"tokens {start} to {stop - 1} of a prompt of 11")


@pytest.mark.task("2.7.6")
@pytest.mark.parametrize(("start", "size", "total"), [(0, 3, 8), (5, 2, 9), (4, 4, 8), (2, 1, 256)])
def test_chunked_prefill_mask_hides_the_unused_tail(b, start, size, total):
    """A static cache hands out `total_length` keys; those behind the chunk are seen by nobody."""
    mask = b.numpy(b.chunked_attention_mask(start, size, total))
    assert mask.shape == (size, total), f"one column for each of {total} keys, not {mask.shape}"
    assert_close(
        mask, causal_rows(start, size, total), atol=0, idea=f"keys from {start + size} on hold nothing yet"
    )


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_is_added_to_scores(b):
    """Added, not multiplied or indexed: 0 and -inf in a type of floats, float32 unless another one is asked for."""
    for name in ("float32", "bfloat16"):
        mask = b.chunked_attention_mask(2, 3, dtype=b.dtype(name))
        assert mask.dtype == b.dtype(name), f"asked for {name}, got {mask.dtype}"
    assert b.chunked_attention_mask(2, 3).dtype == b.dtype("float32"), "float32 is the default"
    mask = b.array(b.numpy(b.chunked_attention_mask(2, 3)))  # on the device of the scores
    seen = b.numpy(b.softmax(b.array(np.ones((3, 5))) + mask, axis=-1))
    expected = np.exp(causal_rows(2, 3, 5)) / np.array([[3], [4], [5]])
    assert_close(seen, expected, idea="weights of equal scores: every visible key gets the same")


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_takes_its_start_from_an_array(b):
    """With the start in an array, a compiled program serves every position: the numbers are the same."""
    for start in (0, 4, 9):
        mask = b.chunked_attention_mask(b.array(np.array(start)), 3, 12)
        assert_close(
            b.numpy(mask), causal_rows(start, 3, 12), atol=0, idea=f"a start of {start}, in an array"
        )


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_is_no_loop(b):
    """A mask of any size is a comparison of two arrays: no Python for each token of the chunk, or of the past."""
    assert_no_loop(lambda n: b.chunked_attention_mask(5, n), "a loop over the chunk")
    assert_no_loop(lambda n: b.chunked_attention_mask(n, 3), "a loop over the past")


@pytest.mark.task("2.7.6")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
@pytest.mark.parametrize("form", [int, np.array], ids=["number", "array"])
def test_chunked_prefill_mask_is_exact_far_into_a_prompt(b, start, dtype, form):
    """Chunks behind 250 tokens and more, in bf16 and float16, which have no 257 and no 2,049."""
    start_given = start if form is int else b.array(form(start))
    mask = b.numpy(b.chunked_attention_mask(start_given, MANY, start + MANY + 4, b.dtype(dtype)))
    idea = f"a chunk of {MANY} after {start} in {dtype}: each token sees the keys up to its own position"
    assert_shows(mask, np.arange(start, start + MANY), idea)


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_does_not_read_its_start(b):
    """The host must not wait for a start in an array; and the mask is made where the start is."""
    idea = (
        "a start in an array is compared, never read: no int(), no .item(), no `if`; new arrays on its device"
    )
    made = assert_traces(
        b, lambda start: b.chunked_attention_mask(start, 3, 12), b.array(np.array(4)), idea=idea
    )
    assert tuple(made.shape) == (3, 12), f"(L, S) is (3, 12), not {tuple(made.shape)}"


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_is_where_it_was_asked_for(b):
    """A start that is a plain number has no device: the mask is made where the caller says, for the scores there."""
    made = assert_traces(
        b,
        lambda scores: scores + b.chunked_attention_mask(4, 3, **b.backend_module.like(scores)),
        b.array(np.zeros((3, 7))),
        idea="the mask belongs on `device`: make both ranges of positions there",
    )
    assert tuple(made.shape) == (3, 7), f"(L, S) is (3, 7), not {tuple(made.shape)}"


@pytest.mark.task("2.7.6")
def test_chunked_prefill_mask_refuses_what_has_no_mask(b):
    """A negative start, an empty chunk, fewer keys than the chunk's end; each with its numbers, and no good one."""
    for arguments, message in (
        ((-1, 3), "chunk_start is -1"),
        ((2, 0), "chunk_size is 0"),
        ((4, 3, 6), "total_length is 6, but the chunk ends at 4 \\+ 3"),
        ((b.array(np.array(4)), 3), "chunk_start is an array"),
    ):
        with pytest.raises(ValueError, match=message):
            b.chunked_attention_mask(*arguments)
    assert b.chunked_attention_mask(4, 3, 7).shape == (3, 7), "the chunk's end may be the last key"


@pytest.mark.task("2.7.6")
@pytest.mark.parametrize("attention", ["simple", "device"])
def test_chunked_prefill_with_the_mask_in_the_runner(b, s, rng, attention):
    """The runner uses the mask for every chunk behind the first: logits, keys and values of one shot."""
    prompt = rng.integers(0, 61, size=61).tolist()
    model = b.Qwen3ModelWeek2(random_checkpoint(b, CHUNKED_QWEN), attention)
    made = Prefill(b, s, model, prompt, 17, chunk_mask=b.chunked_attention_mask)
    made.finish()
    made.check("with chunked_attention_mask in the runner")


# Task 2.7.2, on a real model.


class Prefill:
    """A request whose prompt runs through a real model, chunk by chunk; what the head and the host were asked for."""

    def __init__(self, b, s, model, prompt: list[int], step: int, **options):
        self.b, self.model, self.prompt, self.logits = b, model, prompt, []
        runner = b.runner(model, on_logits=lambda rows, one: self.logits.append(one), **options)
        self.request = s.Request(runner, ByteTokenizer(), prompt, prefill_max_step=step, max_seq_len=600)

    @property
    def caches(self) -> list:
        return self.request.kv_cache

    def chunk(self) -> int:
        """One chunk; how many tokens it had."""
        return self.request.try_prefill()

    def finish(self) -> int:
        """All chunks that are left; how many there were."""
        for count in range(1, len(self.prompt) + 2):
            self.chunk()
            if self.request.is_prefill_done:
                return count
        pytest.fail(f"more chunks than the prompt has tokens: {len(self.prompt)}")

    def held(self, layer: int) -> np.ndarray:
        """Keys and values of the tokens in the request's own cache: (2, Hkv, tokens, D)."""
        cache = self.caches[layer]
        return np.stack([self.b.numpy(part)[0, :, : cache.offset] for part in (cache.keys, cache.values)])

    def check(self, idea: str) -> None:
        """Logits, keys and values against one call of the model with the whole prompt."""
        caches = self.model.create_kv_cache(600)
        logits = self.b.numpy(self.model(self.b.array([self.prompt]), 0, caches, logits_to_keep=1))[:, -1]
        for layer, cache in enumerate(caches):
            whole = np.stack(
                [self.b.numpy(part)[0, :, : cache.offset] for part in (cache.keys, cache.values)]
            )
            found = self.held(layer)
            assert found.shape == whole.shape, (
                f"layer {layer} holds {found.shape[2]} tokens, the prompt has {whole.shape[2]}: {idea}"
            )
            assert_close(found, whole, atol=1e-4, idea=f"keys and values of layer {layer}: {idea}")
        assert len(self.logits) == 1, f"logits were asked for {len(self.logits)} times, and once is enough"
        assert_close(self.logits[0], logits, atol=1e-4, idea=f"logits of the last token: {idea}")
        assert self.request.next_token == int(logits.argmax()), "the first token follows from these logits"


@pytest.fixture(scope="module")
def chunked_models(b) -> dict:
    """The same weights with every attention of the cached model."""
    checkpoint = random_checkpoint(b, CHUNKED_QWEN)
    return {name: b.Qwen3ModelWeek2(checkpoint, name) for name in ("simple", "tiled", "device")}


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    ("attention", "step", "length"),
    [
        ("simple", 1, 6),
        ("tiled", 7, 24),
        ("device", 64, 150),
        ("simple", 128, 300),
        ("tiled", 257, 261),
        ("device", 128, 300),
    ],
)
def test_chunked_prefill_equals_one_shot(b, s, rng, chunked_models, attention, step, length):
    """Logits of the last token, and keys and values of all, whatever the step; in as many chunks as that takes."""
    prompt = rng.integers(0, 61, size=length).tolist()
    made = Prefill(b, s, chunked_models[attention], prompt, step)
    chunks = made.finish()
    assert chunks == -(-length // step), f"{length} tokens in steps of {step}: {chunks} chunks"
    made.check(f"{length} tokens in chunks of {step}")


@pytest.mark.task("2.7.2")
def test_chunked_prefill_equals_one_shot_with_padding(b, s, rng, chunked_models):
    """A runner that pads its chunks for a compiler hides the padding, and forgets it, in every chunk."""
    prompt = rng.integers(0, 61, size=47).tolist()
    made = Prefill(b, s, chunked_models["simple"], prompt, 13, prompt_bucket=8)
    made.finish()
    made.check("47 tokens in chunks of 13, each padded to a multiple of 8")


@pytest.mark.task("2.7.2")
def test_chunked_prefill_of_two_prompts_by_turns(b, s, rng, chunked_models):
    """All that a prefill remembers is its own: two of them, by turns, do not disturb each other."""
    prompts = [rng.integers(0, 61, size=size).tolist() for size in (23, 31)]
    first, second = (Prefill(b, s, chunked_models["simple"], prompt, 9) for prompt in prompts)
    for _ in range(3):
        first.chunk()
        second.chunk()
    second.chunk()
    for made in (first, second):
        made.check("computed by turns with another prompt")


@pytest.mark.task("2.7.2")
def test_chunked_prefill_decodes_like_one_shot(b, s, rng, chunked_models):
    """Moved into a slot, the prompt answers as Day 2.6's `prefill` does."""
    prompt, answers = rng.integers(0, 61, size=29).tolist(), []
    for prefill in (
        lambda request: [request.try_prefill() for _ in range(3)],
        lambda request: request.prefill(),
    ):
        made = Prefill(b, s, chunked_models["simple"], prompt, 10)
        prefill(made.request)
        batch = s.Batch(made.request.model, 2, 600)
        batch.place(made.request)
        for _ in range(4):
            batch.decode()
        answers.append(list(made.request.tokens))
    assert answers[0] == answers[1] and len(answers[0]) == 5, f"chunked {answers[0]}, one shot {answers[1]}"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_runs_the_head_once(b, s, rng, chunked_models, monkeypatch):
    """The head scores one token of the whole prompt, and the host reads one: the last token of the last chunk."""
    made = Prefill(b, s, chunked_models["simple"], rng.integers(0, 61, size=25).tolist(), 10)
    rows, reads = [], []
    head, argmax = made.model.head, b.backend_module.argmax
    monkeypatch.setattr(made.model, "head", lambda x: rows.append(x.shape[1]) or head(x))
    monkeypatch.setattr(
        b.backend_module, "argmax", lambda logits: reads.append(tuple(logits.shape)) or argmax(logits)
    )
    for chunk in range(2):
        made.chunk()
        assert sum(rows) == 0, f"the head scored {rows} tokens up to chunk {chunk}, which ends no prompt"
        assert not reads, f"chunk {chunk} ends no prompt, and a token was read"
        assert made.request.next_token is None, "no token before the last chunk"
    made.chunk()
    assert sum(rows) == 1, f"the head scores the last token alone: {rows}"
    assert reads == [(1, 61)], f"one token is read, once: {reads}"


@pytest.mark.task("2.7.2")
def test_chunked_prefill_writes_its_own_keys_and_values_alone(b, s, rng, chunked_models):
    """What earlier chunks have written stays as it is, to the last bit; the cache ends with the chunk."""
    made = Prefill(b, s, chunked_models["simple"], rng.integers(0, 61, size=60).tolist(), 13)
    for _ in range(3):
        before = [np.copy(made.held(layer)) if made.request.offset else None for layer in range(2)]
        start = made.request.offset
        made.chunk()
        for layer, old in enumerate(before):
            found = made.held(layer)
            assert found.shape[2] == start + 13, (
                f"layer {layer} holds {found.shape[2]} tokens, not {start + 13}"
            )
            if old is not None:
                assert_close(
                    found[:, :, :start],
                    old,
                    atol=0,
                    rtol=0,
                    idea="earlier chunks are computed once, and kept",
                )
            assert np.abs(found[:, :, start:]).min(axis=(0, 1, 3)).all(), "a new token has no keys or values"
