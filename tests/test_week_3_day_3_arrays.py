"""Week 3 Day 3: hybrid batches, the side of the arrays: masks, attention and logits in float32.

Oracles: NumPy in float64, request by request; Day 2.1's model, which computes each text alone.
"""

from dataclasses import replace

import numpy as np
import pytest

from support.close import assert_close
from support.masks import assert_no_loop, assert_traces
from support.packed import PackedServing
from support.qwen3_layer import attention64
from support.steps import steps_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_extensions.make_loop import make_loop

QWEN = small_model(
    33, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=400
)

# Who sees whom among the rows of a step.


def mask64(segments, positions, window=None) -> np.ndarray:
    segments, positions = np.array(segments), np.array(positions)
    seen = (segments[:, None] == segments) & (positions <= positions[:, None])
    if window is not None:
        seen &= positions > positions[:, None] - window
    return np.where(seen, 0.0, -np.inf)


@pytest.mark.task("3.3.6")
def test_segment_mask_of_a_chunk_and_two_decodes(b):
    """Two decodes see themselves; a chunk from position 4 on is a triangle, wherever its rows are."""
    made = b.segment_mask(b.array([0, 1, 2, 2, 2]), b.array([7, 3, 4, 5, 6]))
    assert made.dtype == b.dtype("float32"), f"it is added to scores in float32, and is {made.dtype}"
    found = b.numpy(made)
    expected = mask64([0, 1, 2, 2, 2], [7, 3, 4, 5, 6])
    assert found.shape == (5, 5), f"(T, T) is (5, 5), not {found.shape}"
    assert not np.array_equal(found, expected.T), (
        "the mask is transposed: a row is a query and a column is a key, so `segments[:, None]` are the queries"
    )
    leaks = np.argwhere((found == 0) & (expected != 0)).tolist()
    assert not leaks, f"(query, key) that must not be seen: {leaks}; a row sees rows of its own request alone"
    assert_close(found, expected, atol=0, idea="0 for the own request up to the own position, -inf elsewhere")


@pytest.mark.task("3.3.6")
@pytest.mark.parametrize(
    ("segments", "positions"),
    [
        ([0], [0]),
        ([0, 0, 0], [0, 1, 2]),
        ([0, 0, 1, 1, 1], [0, 1, 0, 1, 2]),
        ([0, 1, 1, 2, 3, 3], [0, 255, 256, 257, 2048, 2049]),
        ([0, 0, 1, 2, 2], [5, 6, 5, 5, 6]),
        ([0, 255, 256, 257, 2048, 2049], [3, 3, 3, 3, 3, 3]),
    ],
)
@pytest.mark.parametrize("window", [None, 1, 2])
def test_segment_mask_compares_requests_and_positions(b, segments, positions, window):
    """The same position in two requests is nothing in common; requests and positions are compared as integers."""
    found = b.numpy(b.segment_mask(b.array(segments), b.array(positions), window))
    idea = f"segments {segments}, positions {positions}, window {window}"
    assert_close(found, mask64(segments, positions, window), atol=0, idea=idea)


@pytest.mark.task("3.3.6")
@pytest.mark.parametrize("window", [None, 2])
def test_segment_mask_does_not_depend_on_the_order_of_the_rows(b, rng, window):
    """A permutation of the rows permutes rows and columns of the mask."""
    segments, positions = [0, 1, 1, 1, 2, 2], [9, 3, 4, 5, 0, 1]
    order = rng.permutation(6)
    shuffled = [b.array(np.array(part)[order]) for part in (segments, positions)]
    found = b.numpy(b.segment_mask(*shuffled, window))
    expected = mask64(segments, positions, window)[np.ix_(order, order)]
    assert_close(found, expected, atol=0, idea="positions say who comes first, and not the place in the row")


@pytest.mark.task("3.3.6")
def test_segment_mask_is_array_code(b):
    """No Python loop over rows, and no number read on the host: one program for all values."""
    rows = b.array(list(range(8)))
    made = assert_traces(
        b, b.segment_mask, rows, rows, idea="segments and positions may be read on the device alone"
    )
    assert made.shape == (8, 8), f"(T, T), not {made.shape}"
    assert_no_loop(
        lambda n: b.segment_mask(b.array(list(range(n))), b.array(list(range(n)))), "compare whole arrays"
    )


# Attention in three parts.


class Step:
    """Rows of some requests with random keys and values, the past of each in pages, and the oracle.

    Args:
        requests: (context, size) of each: tokens in pages, and rows of this step.
        heads: H, Hkv, D.
        page: tokens per page.
        poison: what stands in every slot that holds no past.
    """

    def __init__(self, b, s, rng, requests, heads=(4, 2, 6), page=4, poison=np.nan, spread=1.0):
        self.b, self.s, self.requests, self.page = b, s, requests, page
        H, Hkv, D = heads
        self.query = [spread * rng.normal(size=(size, H, D)) for _, size in requests]
        self.texts = [rng.normal(size=(2, context + size, Hkv, D)) for context, size in requests]
        blocks = rng.permutation(40).tolist()
        self.tables = [[blocks.pop() for _ in range(-(-sum(r) // page))] for r in requests]
        self.pages = np.full((2, 41 * page, Hkv, D), poison)
        for (context, _), text, table in zip(requests, self.texts, self.tables, strict=True):
            for p in range(context):
                self.pages[:, table[p // page] * page + p % page] = text[:, p]

    def attend(self, order=None, window=None, scale=None, dtype="float32") -> list[np.ndarray]:
        """packed_attention of the rows in an order of the requests; (size, H, D) of each request."""
        b, order = self.b, range(len(self.requests)) if order is None else order
        batch = self.s.PackedBatch()
        for i in order:
            context, size = self.requests[i]
            batch.token_ids.extend([0] * size)
            batch.positions.extend(range(context, context + size))
            batch.slots.extend([0] * size)
            batch.query_start.append(len(batch.token_ids))
            batch.context_lens.append(context)
            batch.block_tables.append(self.tables[i])
        mask = b.packed_mask(
            inputs_of(batch, self.page, 40, window, b.serving.flat_blocks).map(b.array), self.page, window
        )
        query, fresh = (
            self.query,
            [text[:, context:] for (context, _), text in zip(self.requests, self.texts, strict=True)],
        )
        arrays = [np.concatenate([query[i] for i in order])]
        arrays += [np.concatenate([fresh[i][kind] for i in order]) for kind in (0, 1)]
        pages = [kind.reshape(41, self.page, *kind.shape[1:]) for kind in self.pages]
        made = b.packed_attention(*(b.array(part, dtype) for part in (*arrays, *pages)), mask, scale)
        assert made.dtype == b.dtype(dtype), f"the output is {made.dtype}, the values are {dtype}"
        found = b.numpy(made)
        assert found.shape == arrays[0].shape, f"(T, H, D) is {arrays[0].shape}, not {found.shape}"
        places = dict(zip(order, batch.spans, strict=True))
        return [found[slice(*places[i])] for i in range(len(self.requests))]

    def expected(self, window=None, scale=None) -> list[np.ndarray]:
        """Each request alone, over its own text."""
        return [self._alone(i, window, scale) for i in range(len(self.requests))]

    def _alone(self, i, window, scale):
        (context, size), (key, value) = self.requests[i], self.texts[i]
        positions = np.arange(context, context + size)[:, None]
        keys = np.arange(context + size)
        seen = (keys <= positions) & (keys > positions - (window or np.inf))
        query, key, value = (part.swapaxes(0, 1) for part in (self.query[i], key, value))
        return attention64(query, key, value, scale, np.where(seen, 0.0, -np.inf)).swapaxes(0, 1)

    def check(self, **options):
        for i, (found, alone) in enumerate(
            zip(
                self.attend(**options),
                self.expected(options.get("window"), options.get("scale")),
                strict=True,
            )
        ):
            with_options = f", {options}" if options else ""
            kind = "a request of one row" if self.requests[i][1] == 1 else "a chunk"
            idea = f"request {i} of {self.requests}: {kind} with {self.requests[i][0]} tokens in pages{with_options}"
            assert_close(found, alone, atol=1e-5, rtol=1e-4, idea=idea)


MIXES = {
    "one prompt": [(0, 5)],
    "two prompts": [(0, 5), (0, 3)],
    "one decode": [(6, 1)],
    "decodes": [(6, 1), (1, 1), (13, 1)],
    "a first token alone": [(0, 1), (5, 1)],
    "a chunk with a past": [(7, 5)],
    "a chunk and two decodes": [(5, 1), (9, 1), (6, 7)],
    "a new prompt and two decodes": [(5, 1), (9, 1), (0, 7)],
    "two chunks with a past and two decodes": [(5, 1), (9, 1), (6, 7), (10, 3)],
    "edges of pages": [(3, 1), (4, 1), (5, 1), (7, 2), (8, 2), (9, 2)],
    "everything": [(11, 1), (0, 4), (3, 6), (0, 1), (8, 1), (16, 2)],
}


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("name", MIXES)
def test_packed_attention_is_attention_of_each_request_alone(b, s, rng, name):
    """Whatever shares the step: rows of a request see their own text up to themselves, and nothing else."""
    Step(b, s, rng, MIXES[name]).check()


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("heads", [(3, 3, 8), (6, 1, 5), (1, 1, 4)])
def test_packed_attention_for_every_grouping_of_heads(b, s, rng, heads):
    """As many K/V heads as heads, one for all, and one of each."""
    Step(b, s, rng, MIXES["everything"], heads=heads).check()


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("order", [(1, 0, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_packed_attention_takes_requests_in_any_order(b, s, rng, order):
    """Decodes before chunks, behind them or among them: the answer follows the request."""
    Step(b, s, rng, MIXES["two chunks with a past and two decodes"]).check(order=order)


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("window", [1, 3, 7])
def test_packed_attention_through_a_window(b, s, rng, window):
    """A window may end inside of the chunk, at its edge, or in the past."""
    Step(b, s, rng, MIXES["everything"]).check(window=window)


@pytest.mark.task("3.3.7")
def test_packed_attention_passes_the_scale_to_every_part(b, s, rng):
    """One scale for the keys of the step and for both pasts."""
    Step(b, s, rng, MIXES["everything"]).check(scale=0.7)


@pytest.mark.task("3.3.7")
def test_packed_attention_merges_statistics_and_not_averages(b, s, rng):
    """Scores of a hundred and more: the part with the larger maximum decides, and nothing overflows."""
    Step(b, s, rng, MIXES["everything"], spread=60.0).check()


@pytest.mark.task("3.3.7")
def test_packed_attention_keeps_the_type_of_the_values(b, s, rng):
    """Statistics are float32 inside; what comes out goes on in the type of the model."""
    step = Step(b, s, rng, MIXES["everything"], poison=0.0)
    found, exact = step.attend(dtype="bfloat16"), step.expected()
    for rows, alone in zip(found, exact, strict=True):
        assert_close(rows, alone, atol=5e-2, rtol=0, idea="bf16 in, statistics in float32, bf16 out")


# The whole model: one forward for everything.


def alone(b, model, tokens) -> np.ndarray:
    """(L, V): each text whole, by Day 2.1's model."""
    return b.numpy(model(b.array([tokens]), 0, model.create_kv_cache()))[0]


@pytest.fixture(scope="module")
def models(b):
    """Day 2.1's model and today's on the same weights."""
    checkpoint = random_checkpoint(b, QWEN)
    return b.Qwen3ModelWeek2(checkpoint), b.Qwen3ModelWeek3(checkpoint)


def texts(rng, *lengths) -> list[list[int]]:
    return [rng.integers(0, 61, size=length).tolist() for length in lengths]


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("seed", range(6))
def test_random_mixes_equal_separate_runs(b, s, seed):
    """Random shapes of models, texts, cuts and orders: every sampled row has the logits of its text alone."""
    rng = np.random.default_rng(seed)
    H, Hkv = [(4, 2), (3, 3), (6, 1), (4, 4), (6, 3), (2, 1)][seed]
    heads = {"num_attention_heads": H, "num_key_value_heads": Hkv, "head_dim": int(2 * rng.integers(2, 6))}
    config = replace(QWEN.config, **heads, tie_word_embeddings=seed % 2 == 0)
    checkpoint = random_checkpoint(b, replace(QWEN, config=config, seed=seed))
    serving = PackedServing(b, s, b.Qwen3ModelWeek3(checkpoint, "tiled" if seed % 2 else "simple"))
    made = [serving.sequence(text, i) for i, text in enumerate(texts(rng, *rng.integers(1, 24, size=5)))]
    done = [0] * len(made)
    while any(done[i] < len(one.known_tokens) for i, one in enumerate(made)):
        entries = []
        for i in rng.permutation(len(made)):
            left = len(made[i].known_tokens) - done[i]
            if left and rng.random() < 0.7:
                size = int(min(left, rng.integers(1, 9)))
                entries.append((made[i], done[i], size))
                done[i] += size
        if entries:
            serving.run(entries)
    week2 = b.Qwen3ModelWeek2(checkpoint)
    for one in made:
        found = serving.logits[one.request_id][len(one.known_tokens) - 1]
        idea = f"a text of {len(one.known_tokens)} tokens in random pieces, {H} heads over {Hkv}"
        assert_close(found, alone(b, week2, one.known_tokens)[-1], atol=1e-4, idea=idea)


@pytest.mark.task("3.3.7")
def test_every_linear_layer_is_called_once_per_step(b, s, rng, models, monkeypatch):
    """A chunk and two decodes: each weight is read once, for all rows; the head for those that need a token."""
    serving = PackedServing(b, s, models[1])
    made = [serving.sequence(text, i) for i, text in enumerate(texts(rng, 20, 6, 9))]
    serving.run([(made[0], 0, 5), (made[1], 0, 5), (made[2], 0, 8)])
    dense = type(models[1].layers[0].wq)
    product, calls = dense.__call__, []

    def counted(w, x):
        calls.append((id(w.weight), x.shape[-2]))
        return product(w, x)

    monkeypatch.setattr(dense, "__call__", counted)
    serving.run([(made[1], 5, 1), (made[2], 8, 1), (made[0], 5, 7)])
    weights = [weight for weight, _ in calls]
    layers = 7 * QWEN.config.num_hidden_layers
    assert len(weights) == len(set(weights)) == layers + 1, (
        f"{len(weights)} products with {len(set(weights))} weights: {layers} in the layers and the head, each once"
    )
    assert [rows for _, rows in calls[:-1]] == [9] * layers, "all 9 rows go through every layer together"
    assert calls[-1][1] == 2, f"2 rows need a token, and {calls[-1][1]} reached the head"


@pytest.mark.task("3.3.7")
def test_no_row_reaches_the_head_while_no_token_is_needed(b, s, rng, models):
    """A chunk in the middle of a prompt: keys and values are written, and no logits exist."""
    serving = PackedServing(b, s, models[1])
    made = serving.sequence(texts(rng, 11)[0])
    assert serving.run([(made, 0, 6)]) == [], "6 of 11 tokens: no token is needed"
    assert len(serving.run([(made, 6, 5)])) == 1, "the last one is followed by a new token"
    found, expected = serving.rows[0], alone(b, models[0], made.known_tokens)[-1]
    assert_close(
        found, expected, atol=1e-4, idea="keys and values of the first chunk were written all the same"
    )


@pytest.mark.task("3.3.7")
@pytest.mark.parametrize("caching", [False, True])
def test_a_scheduler_with_preemptions_gives_the_logits_of_each_text_alone(b, s, rng, models, caching):
    """Few blocks, so that requests are preempted in mid-prefill and in mid-decode: each token's logits are those of its
    text computed whole."""
    week2, week3 = models
    serving = PackedServing(b, s, week3, num_blocks=9, caching=caching)
    preempted, logits = [], {}

    def hear(event):
        if event.kind == "preempt":
            preempted.append(event.request.request_id)
        elif event.kind == "token":  # in the order of the sampled rows
            logits.setdefault(event.request.request_id, []).append(serving.rows.pop(0))

    loop = make_loop(
        s,
        "hybrid",
        serving.runner,
        serving.allocator,
        max_num_batched_tokens=7,
        max_num_seqs=4,
        on_event=hear,
    )
    made = [serving.new_sequence(text, i, max_tokens=8) for i, text in enumerate(texts(rng, 13, 4, 9, 6))]
    for one in made:
        loop.add(one)
    for _ in steps_of(loop, made):
        loop.step()
    assert preempted, "the pool is small enough for preemptions"
    for one in made:
        whole = alone(b, week2, one.known_tokens)[one.num_prompt_tokens - 1 : -1]
        idea = f"request {one.request_id} of {len(made)}, preempted {one.num_preemptions} times"
        assert_close(np.array(logits[one.request_id]), whole, atol=1e-4, idea=idea)
    assert serving.allocator.num_free == 9, "all blocks are free again"
