"""The runner that stands between the policy and the arrays: padding, buckets, sampling row by row."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from support.close import assert_close
from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_course.trace.serve import Serving
from tiny_llm_engine.chunked_prefill.model_runner import ModelRunner
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_ref.serving import SamplingParams

VOCAB = 5
SCORES = 9 * np.roll(np.eye(VOCAB), 1, axis=1)  # row i prefers token i + 1


class Layer:
    """A cache that only counts."""

    max_seq_len = 20

    def __init__(self):
        self.offset, self.rewound, self.materialized, self.unused = 0, 0, False, 0

    def rewind(self, n: int) -> None:
        self.rewound += n

    def materialize(self) -> None:
        self.materialized = True

    def num_keys(self, L: int) -> int:
        return self.unused + L


class Model:
    """Writes down what it was called with, and scores row i by SCORES[i]."""

    num_hidden_layers = 1

    class config:
        context, vocab_size = 30, 99

    def __init__(self, b):
        self.b, self.calls, self.masks = b, [], []
        self.embedding = SimpleNamespace(weight=b.array([0.0]))

    def __call__(self, ids, positions, cache, logits_to_keep, mask="causal"):
        self.masks.append(mask)
        keep = logits_to_keep if isinstance(logits_to_keep, int) else self.b.numpy(logits_to_keep).tolist()
        self.calls.append((self.b.numpy(ids).tolist(), self.b.numpy(positions).tolist(), keep))
        return self.b.array(SCORES[: len(ids), None])

    def create_kv_cache(self, max_seq_len):
        return max_seq_len


def runner(b, **options) -> ModelRunner:
    return ModelRunner(Model(b), b.backend_module, create_batch_cache=lambda model, *sizes: sizes, **options)


def prefill(made: ModelRunner, tokens, offset=0, unused: int = 0, sample=True, **options):
    layer = Layer()
    layer.unused = unused
    return made.prefill(tokens, offset, [layer], sample=sample, **options), layer


def decode(made: ModelRunner, tokens, offsets=None, **options):
    return made.decode(tokens, offsets or [0] * len(tokens), [Layer()], **options)


def test_a_prompt_is_one_row_of_its_tokens(b):
    made = runner(b)
    chosen, layer = prefill(made, [4, 3, 2], 6)
    assert made.model.calls == [([[4, 3, 2]], [[6, 7, 8]], 1)]
    assert (chosen, layer.rewound) == (1, 0)


@pytest.mark.parametrize(("count", "padded"), [(1, 4), (2, 4), (3, 4), (4, 4), (5, 8), (17, 20)])
def test_a_prompt_is_padded_to_its_bucket_and_no_further_than_the_cache(b, count, padded):
    """The padding is computed, kept out of the logits, and forgotten by the cache."""
    made = runner(b, prompt_bucket=4)
    _, layer = prefill(made, [3] * count)
    [(ids, positions, keep)] = made.model.calls
    assert ids == [[3] * count + [0] * (padded - count)]
    assert positions == [list(range(padded))]
    assert keep == [count - 1], "the last token before the padding, as a number in an array"
    assert layer.rewound == padded - count


@pytest.mark.parametrize(("count", "padded"), [(1, 3), (3, 3), (4, 8), (8, 8), (9, 10), (13, 15), (19, 20)])
def test_with_pad_last_chunk_a_prompt_is_padded_to_the_ladder(b, count, padded):
    """To the smallest size that is large enough; behind the ladder, to the bucket."""
    made = runner(b, prompt_bucket=5, pad_last="chunk", chunk_sizes=(3, 8, 10))
    _, layer = prefill(made, [3] * count)
    [(ids, _, keep)] = made.model.calls
    assert (len(ids[0]), keep, layer.rewound) == (padded, [count - 1], padded - count)


def test_pad_last_is_one_of_two(b):
    with pytest.raises(ValueError, match='pad_last is \'last\': give "bucket" or "chunk"'):
        runner(b, pad_last="last")


@pytest.mark.parametrize(
    ("used", "bucket"), [([0], 1), ([1], 2), ([0, 1], 2), ([2], 4), ([0, 3], 4), ([4], 5)]
)
def test_a_batch_is_padded_to_a_power_of_two_or_to_all_slots(b, used, bucket):
    """Rows behind the last slot in use are cut off to the bucket; an idle row computes token 0 at position 0."""
    made = runner(b, prompt_bucket=4)
    tokens = [7 if slot in used else None for slot in range(5)]
    chosen = decode(made, tokens, [3 if slot in used else 0 for slot in range(5)])
    expected = [SCORES[slot].argmax() if slot in used else None for slot in range(5)]
    assert chosen == expected, "one entry per slot"
    [(ids, positions, _)] = made.model.calls
    assert ids == [[7] if slot in used else [0] for slot in range(bucket)]
    assert positions == [[3] if slot in used else [0] for slot in range(bucket)]


def test_without_sampling_nothing_is_scored_and_nothing_is_read(b, monkeypatch):
    made = runner(b, on_logits=lambda rows, logits: pytest.fail("nothing was sampled"))
    monkeypatch.setattr(b.backend_module, "argmax", lambda logits: pytest.fail("nothing was sampled"))
    chosen, layer = prefill(made, [4, 3, 2], sample=False)
    assert chosen is None and made.model.calls[0][2] == 0, "logits_to_keep=0: the head has nothing to do"
    assert layer.materialized, "a lazy library must compute the caches at some time"


def test_a_chunk_has_ended_on_the_device_when_its_step_returns(b, monkeypatch):
    """Only then is its time a chunk's. A sampled step needs no second wait: the token was read."""
    made, waited = runner(b), []
    monkeypatch.setattr(b.backend_module, "synchronize", waited.append)
    prefill(made, [4, 3, 2], sample=False)
    assert waited == [made.device]
    prefill(made, [4, 3, 2])
    assert waited == [made.device]


def test_every_row_is_drawn_as_its_own_request_wants(b):
    """Each way of drawing runs once, over all rows, so that its shape does not depend on who wants it."""
    seen = []

    def make_sampler(temp, top_p, top_k):
        def sample(logits):
            seen.append((temp, top_p, top_k, tuple(logits.shape)))
            return b.array(np.full(logits.shape[0], int(10 * temp)))

        return sample

    made = runner(b, sampler=make_sampler)
    warm, hot = SamplingParams(0.7, top_k=3), SamplingParams(1.5, top_p=0.9)
    ways = [warm, None, hot, warm]
    assert decode(made, [1] * 4, sampling=ways) == [7, 2, 15, 7]
    assert seen == [(0.7, None, 3, (4, VOCAB)), (1.5, 0.9, None, (4, VOCAB))]
    chosen = decode(made, [1, None, 1, None], sampling=[SamplingParams(0), None, hot, warm])
    assert chosen == [1, None, 15, None], "temperature 0 is greedy; nobody draws for an idle row"
    assert len(seen) == 3, f"only the ways of running requests are computed: {seen}"


def test_a_runner_without_a_sampler_refuses_to_draw(b):
    with pytest.raises(ValueError, match="no sampler: give it the solution's make_sampler"):
        prefill(runner(b), [1], sampling=SamplingParams(0.5))
    assert prefill(runner(b), [1], sampling=SamplingParams(0))[0] == 1


def test_logits_are_handed_out_by_row(b):
    seen = []
    made = runner(b, on_logits=lambda rows, logits: seen.append((rows, logits)))
    decode(made, [1, None, 1])
    [(rows, logits)] = seen
    assert rows == [0, 2]
    assert_close(logits, [SCORES[0], SCORES[2]], idea="one row of logits for each sampled row")


def test_sizes_come_from_the_model(b):
    made = runner(b)
    assert (made.num_hidden_layers, made.max_model_len) == (1, 30)
    assert made.create_kv_cache(9) == 9
    assert made.create_batch_cache(3, 40) == (3, 30), "no slot is longer than the model's context"


def test_a_chunk_that_sees_more_than_itself_gets_the_mask_of_the_solution(b):
    """Over all keys that the cache hands out, padding included, and where it starts as a number in an array."""
    asked = []

    def chunk_mask(start, size, total_length, dtype):
        asked.append((b.numpy(start).item(), size, total_length, dtype))
        return "the mask"

    made = runner(b, prompt_bucket=4, chunk_mask=chunk_mask)
    prefill(made, [1, 2, 3], 6, unused=16, sample=False)
    prefill(made, [1], 9, unused=16)
    assert asked == [(6, 4, 20, b.dtype("float32")), (9, 4, 20, b.dtype("float32"))]
    assert made.model.masks == ["the mask", "the mask"]


def test_a_prompt_from_its_start_and_a_batch_keep_the_mask_of_their_caches(b):
    made = runner(b, chunk_mask=lambda *_, **options: pytest.fail("the chunk mask was asked for"))
    prefill(made, [1, 2, 3])
    decode(made, [1, 2], [6, 2])
    decode(made, [None, 2], [0, 6])
    assert made.model.masks == ["causal"] * 3


@pytest.mark.parametrize("attention", ["simple", "device"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("options", [{}, {"prompt_bucket": 8}, {"pad_last": "chunk", "chunk_sizes": (6, 9)}])
def test_the_chunk_mask_changes_no_logits(b, attention, window, options):
    """Behind windows too, and with padding; one of the chunks has one token."""
    case = CASES["tied-8"]
    windows = (
        {"sliding_window": window, "layer_types": ("sliding_attention", "full_attention")} if window else {}
    )
    case = replace(case, config=replace(case.config, **windows))
    model = b.Qwen3ModelWeek2(random_checkpoint(b, case), attention)
    prompt = np.random.default_rng(1).integers(0, 67, size=23).tolist()

    def logits(cuts, **options) -> np.ndarray:
        rows = []
        made = b.runner(model, on_logits=lambda _, one: rows.append(one), **options)
        own = made.create_kv_cache(30)
        for start, stop in zip([0, *cuts], [*cuts, 23], strict=True):
            made.prefill(prompt[start:stop], start, own, sample=True)
        return rows[-1]

    expected = logits([])
    for mask in (None, b.chunked_attention_mask):
        found = logits([6, 7, 15], chunk_mask=mask, **options)
        assert_close(found, expected, atol=1e-4, idea=f"chunk_mask={mask}: the last token's logits")


@pytest.mark.port("torch")
def test_a_step_of_torch_notes_nothing_for_gradients_and_leaves_caches_that_can_be_written_to():
    """Also by whoever is outside the runner: a batch takes a request in, and lets it go, between two steps."""
    import torch

    b, seen = Port("tiny_llm_ref", "torch", "cpu"), []
    model = b.Qwen3ModelWeek2(random_checkpoint(b, CASES["tied-1"]))
    inner = model.head
    model.head = lambda x: seen.append(torch.is_inference_mode_enabled()) or inner(x)
    made = b.runner(model)
    own, batch = made.create_kv_cache(20), made.create_batch_cache(2, 20)
    made.prefill([3, 4, 5], 0, own, sample=True)
    for _ in range(2):
        for shared, alone in zip(batch, own, strict=True):
            shared.add_request(alone, 0)
        made.decode([6, None], [3, 0], batch)
        for shared in batch:
            shared.remove_request(0)
    assert seen == [True] * 3 and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("drawn", [False, True])
def test_each_call_copies_to_the_device_once(b, monkeypatch, drawn):
    """Tokens, positions, the row to keep and who draws with what are one array."""
    params = SamplingParams(temperature=1.0) if drawn else None
    options = {"prompt_bucket": 4, "chunk_mask": lambda start, *a, **k: start}
    made, layer = runner(b, sampler=lambda *key: b.backend_module.argmax, **options), Layer()
    layer.unused, copies, copy = 3, [], made._array
    monkeypatch.setattr(made, "_array", lambda values: copies.append(1) or copy(values))
    made.prefill([1, 2, 3], 0, [layer], sampling=params, sample=True)
    assert len(copies) == 1
    made.decode([1, None, 2], [3, 0, 4], [layer], sampling=[params, None, params])
    assert len(copies) == 2


def test_a_gaudi_has_a_ladder_of_its_own_for_padding_and_for_adaptive_chunks(b):
    """Neither takes a size below 128 there, nor one between the rungs. No Gaudi is needed to see it."""
    port = Port("tiny_llm_ref", b.name, "cpu")
    port.device = "hpu"
    made = port.runner(Model(b))
    lengths = [
        made._padded(count, SimpleNamespace(max_seq_len=999, offset=0)) for count in (1, 128, 129, 300)
    ]
    assert lengths == [128, 128, 256, 512]
    assert Serving(resolve_serving("tiny_llm_ref"), made).adaptive_chunker().sizes == (128, 256, 512)
    assert Serving(resolve_serving("tiny_llm_ref"), None).adaptive_chunker().sizes == (32, 64, 128, 256, 512)
